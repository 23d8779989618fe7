"""A node: what it computes it keeps first, what it has computed it does not compute again, and what stays, stays."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.federation.protocol import Precision, Stamp
from fedlightning.federation.remote.failure import FAILURE, decode_failure
from fedlightning.federation.remote.generation import Generation, RequestDigest, Standing
from fedlightning.federation.remote.message_types import MessageTypes
from fedlightning.federation.remote.packet import Packet
from fedlightning.federation.remote.roster_codec import decode_enrolment, decode_roster, encode_join
from fedlightning.federation.remote.standing import Asked
from fedlightning.federation.remote.training_codec import (
    decode_answer,
    decode_answers,
    encode_asked,
)
from fedlightning.oracle import Sequential
from tests.support.federations import loop_for
from tests.support.nodes import node
from tests.support.paths import ROOT
from tests.support.situations import seeded
from tests.support.small import Line, Normed, Personal, regression_data

FEDERATION = "f" * 32
MAKE = seeded(lambda: Line(fl.SCAFFOLD(0.05)))


def service_in(folder, make=MAKE, clients=(1, 3), **options):
    return node(make(), Sequential(), regression_data(), clients, folder, **options)


def request_of(make=MAKE, index=0, seed=5, **options):
    server = loop_for(make(), Sequential(), **options).server
    return server.request(Stamp(index, 0), seed)


def handled(service, packet):
    return Packet.from_bytes(service.handle(packet.to_bytes()))


def ask(service, request, *standings):
    return handled(service, encode_asked(Asked(FEDERATION, request, standings)))


def failure(service, packet):
    reply = handled(service, packet)
    assert reply.kind == FAILURE
    found = decode_failure(reply)
    return f"{found.error}: {found.text}"


def counted(service, monkeypatch):
    """How many clients the node computes, from now on."""
    computed, train = [], service.runner.train
    monkeypatch.setattr(
        service.runner,
        "train",
        lambda request, cohort: computed.extend(each.id for each in cohort.members) or train(request, cohort),
    )
    return computed


def test_a_node_says_which_clients_it_has(tmp_path):
    service = service_in(tmp_path)
    enrolment = decode_enrolment(handled(service, Packet("enrol")))
    assert (enrolment.client_ids, enrolment.samples.tolist()) == ([1, 3], [9, 10])
    assert len(set(enrolment.data)) == 2
    assert enrolment.algorithm == "fedlightning.algorithms.scaffold:SCAFFOLD"
    assert [each.name for each in enrolment.parameters][:2] == ["body.0.weight", "body.0.bias"]


def test_a_node_says_which_buffers_change(tmp_path):
    service = service_in(tmp_path, seeded(lambda: Normed(fl.FedAvg(0.05))))
    roster = decode_roster(handled(service, encode_join(Precision())))
    assert roster.buffers == ("net.1.running_mean", "net.1.running_var", "net.1.num_batches_tracked")
    assert roster.start_buffers.tolist() == [0.0] * 8 + [1.0] * 8 + [0.0]
    assert roster.start_loss > 0


def test_a_repeated_request_is_answered_from_the_file(tmp_path, monkeypatch):
    service, request = service_in(tmp_path), request_of()
    first = ask(service, request, Standing(1), Standing(3))
    computed = counted(service, monkeypatch)
    assert ask(service, request, Standing(1), Standing(3)) == first
    assert ask(service, request, Standing(3)).arrays["0/update.dz"] == first.arrays["1/update.dz"]
    assert computed == []
    service.close()
    later = service_in(tmp_path)  # after a restart
    computed = counted(later, monkeypatch)
    assert ask(later, request, Standing(1), Standing(3)) == first
    assert computed == []
    other = ask(later, replace(request, seed=6), Standing(1), Standing(3))
    assert (computed, other == first) == ([1, 3], False)


def test_what_one_client_lacks_is_computed_for_it_alone(tmp_path, monkeypatch):
    service, request = service_in(tmp_path), request_of()
    ask(service, request, Standing(3))
    computed = counted(service, monkeypatch)
    answers = decode_answers(ask(service, request, Standing(1), Standing(3)))
    assert computed == [1]
    types = MessageTypes(fl.SCAFFOLD(0.05))
    assert [decode_answer(each, types).client_ids for each in answers] == [[1], [3]]


def test_an_answer_starts_from_the_state_that_the_server_names(tmp_path):
    service = service_in(tmp_path)
    first, second = request_of(index=0), request_of(index=1)
    ask(service, first, Standing(1))
    base = RequestDigest(first).generation(Standing(1))
    accepted = ask(service, second, Standing(1, base)).arrays["0/update.dc"]
    rejected = ask(service, second, Standing(1)).arrays["0/update.dc"]
    assert accepted != rejected  # the control variate of the first round is there, or it is not
    assert ask(service, second, Standing(1, base)).arrays["0/update.dc"] == accepted


def test_a_state_that_is_gone_is_refused_before_anything_is_computed(tmp_path, monkeypatch):
    service = service_in(tmp_path)
    computed = counted(service, monkeypatch)
    gone = Standing(3, Generation(7, 0, "a" * 32))
    packet = encode_asked(Asked(FEDERATION, request_of(index=8), (Standing(1), gone)))
    assert "StoreError: The server goes on from the state of client 3 after round 8, phase 1" in failure(
        service, packet
    )
    assert computed == []


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        (
            lambda: encode_asked(Asked(FEDERATION, request_of(), (Standing(2),))),
            "Client 2 is not at this node, .* 1, 3",
        ),
        (lambda: encode_asked(Asked("..", request_of(), (Standing(1),))), "is no id of a federation"),
        (lambda: encode_asked(Asked("../elsewhere", request_of(), ())), "is no id of a federation"),
        (lambda: Packet("run", {"code": "1"}), "no answer to a message of the kind 'run'"),
        (lambda: Packet("ask"), "has federation = nothing|has round = nothing"),
        (lambda: Packet("evaluate"), "made without evaluation data"),
    ],
)
def test_requests_that_do_not_fit_are_refused(packet, why, tmp_path):
    service = service_in(tmp_path)
    with pytest.raises(ValueError, match=why):
        raise ValueError(failure(service, packet()))
    assert [path.name for path in tmp_path.rglob("*")] == ["lock"]
    assert not (tmp_path.parent / "elsewhere").exists()
    assert "PacketError" in decode_failure(Packet.from_bytes(service.handle(b"x"))).error


def test_an_error_of_the_objective_is_named_and_keeps_nothing(tmp_path, caplog):
    class Failing(Line):
        def objective(self, batch):
            raise KeyError(f"patient {batch[0][0].tolist()}")

    service = service_in(tmp_path, seeded(lambda: Failing(fl.SCAFFOLD(0.05))))
    packet = encode_asked(Asked(FEDERATION, request_of(), (Standing(1),)))
    text = failure(service, packet)
    assert re.search(r"Failing\.objective failed for client 1: KeyError: \(its text stays at the node", text)
    assert "patient" not in text  # errors quote data
    assert "patient" in caplog.text
    assert not list(tmp_path.glob("*/client-*/*"))


def test_what_is_personal_never_leaves(tmp_path):
    make = seeded(lambda: Personal(fl.FedAPM(0.05)))
    service = service_in(tmp_path, make)
    base = {}
    for index in range(3):
        request = request_of(make, index)
        standings = [Standing(client, base.get(client)) for client in (1, 3)]
        data = ask(service, request, *standings).to_bytes()
        base = {each.client: RequestDigest(request).generation(each) for each in standings}
        for client in (1, 3):
            content = torch.load(tmp_path / FEDERATION / f"client-{client}" / f"{base[client]}.pt", weights_only=True)
            for name, value in content["states"].items():
                assert value.numpy().tobytes() not in data, name
            assert content["states"]["personal"].abs() > 1e-4
        for x, y in (regression_data().federation.train[place] for place in range(46)):
            assert x.numpy().tobytes() not in data
            assert x.double().numpy().tobytes() not in data
            assert y.double().numpy().tobytes() not in data


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks of a process")
def test_a_node_killed_at_any_step_loses_nothing_and_applies_nothing_twice(tmp_path):
    """Requests are repeated after the restart; answers and states are those of a node that was never killed."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.killed_node", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    whole = found["whole"]
    assert whole["computed"] == 3
    assert {step for step, *_ in found["killed"]} == {*whole["steps"]}
    assert len(found["killed"]) >= 24
    for step, count, status, end in found["killed"]:
        assert status == 9, (step, count)
        assert end["end"] == whole["end"], (step, count, end)
        assert end["left"] == []
        asked_again = 3 - end["received before"]
        assert end["computed"] <= asked_again, (step, count, end)
        if step == "send":  # all was in files before the kill
            assert (asked_again, end["computed"]) == (4 - count, 3 - count)
