"""Rounds in which fewer clients send finite numbers than a rule needs are skipped, whatever the transport."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.channel import QSGD, Channel, ErrorFeedback, MultiKrum, TopK, Transform
from fedlightning.oracle import Autocast, Sequential, Vectorized
from fedlightning.tasks import ClientNumbers
from tests.support.federations import CLIENTS, K, close, loop_for, quadratic, rounds_of, run
from tests.support.lies import without
from tests.support.nodes import NODES, NUMBERS, FederationOfNodes, Wires, assert_same, nodes_of
from tests.support.over_the_wire import FederationOverTheWire
from tests.support.peers import played
from tests.support.small import trainer

ALONE = 100  # the node that has client 0 alone
ALL_SIX = MultiKrum(adversaries=1, selected=5)
WHY = r"Round 2 was skipped: MultiKrum\(.*\) needs the updates of 6 clients or more, and of 6 that were asked, 5 sent"

pytestmark = [
    pytest.mark.filterwarnings("ignore:NaN or infinite numbers came from client 0"),
    pytest.mark.filterwarnings("ignore:Round 2.* did not answer"),
]
over_algorithms = pytest.mark.parametrize(
    "algorithm", [fl.SCAFFOLD(0.05), fl.CDMA_ADA(0.05)], ids=["one", "two phases"]
)


@dataclass(frozen=True)
class Broken(Transform):
    """Client 0 sends NaN in the second round."""

    def apply(self, sent, memory, exchange, purpose):
        broken = torch.tensor([exchange.round == 1 and client == 0 for client in exchange.client_ids])
        return replace(sent, values={k: v.masked_fill(broken[:, None], torch.nan) for k, v in sent.values.items()}), {}


REMEMBERING = Channel(client=[ErrorFeedback(TopK(0.5))], aggregate=ALL_SIX, download=[QSGD(8)])
SENDING_NAN = replace(REMEMBERING, client=[*REMEMBERING.client, Broken()])


def without_the_second(algorithm, **options):
    """The point after the first and the third round of three."""
    first, _, third = rounds_of(algorithm, 3)
    return run(loop_for(quadratic(algorithm), channels=REMEMBERING, **options), [first, third])[-1]


def carried_out(federation, batches, left_out=1):
    """What a federation reports of three rounds, after a check that the second one is skipped."""
    points = []

    def result_of(batch):
        result = federation.run(batch, Autocast("cpu"))
        points.append(federation.point.clone())
        return result

    with pytest.warns(RuntimeWarning, match=WHY):
        results = [result_of(batch) for batch in batches]
    assert [result.undone for result in results] == [False, True, False]
    assert (results[1].metrics["skipped"], results[1].metrics["left_out"]) == (1, left_out)
    assert torch.equal(points[0], points[1])
    return results


@over_algorithms
def test_the_round_leaves_no_trace_but_what_was_sent(algorithm):
    here = loop_for(quadratic(algorithm), channels=SENDING_NAN)
    carried_out(here, rounds_of(algorithm, 3))
    assert torch.equal(here.point, without_the_second(algorithm))
    silent = loop_for(quadratic(algorithm), channels=REMEMBERING)
    first, second, third = rounds_of(algorithm, 3)
    carried_out(silent, [first, without(second, 0), third], left_out=0)
    assert torch.equal(silent.point, here.point)
    phases = len(algorithm.phases)
    sent = here.upload / (2 * phases + 1)
    assert silent.upload == here.upload - sent / CLIENTS
    assert here.download == silent.download


@over_algorithms
def test_over_the_wire(algorithm):
    there = FederationOverTheWire(quadratic(algorithm), CLIENTS, Sequential(), channels=SENDING_NAN)
    carried_out(there, rounds_of(algorithm, 3))
    assert torch.equal(there.point, without_the_second(algorithm, oracle=Sequential()))


@over_algorithms
@pytest.mark.parametrize("is_silent", [False, True])
def test_by_nodes(algorithm, is_silent, tmp_path):
    channel = REMEMBERING if is_silent else SENDING_NAN
    services = nodes_of(quadratic(algorithm), Sequential(), NUMBERS, NODES, tmp_path, channels=channel)
    carrier = Wires(services)
    there = FederationOfNodes(quadratic(algorithm), CLIENTS, Sequential(), carrier, services, channels=channel)

    def rounds():
        for batch in rounds_of(algorithm, 3):
            carrier.dead = {ALONE} if is_silent and batch.index == 1 else set()
            yield batch

    answered = carried_out(there, rounds(), left_out=int(not is_silent))
    first, second, third = rounds_of(algorithm, 3)
    here = loop_for(quadratic(algorithm), Sequential(), channels=channel)
    results = carried_out(here, [first, without(second, 0) if is_silent else second, third], int(not is_silent))
    assert torch.equal(there.point, without_the_second(algorithm, oracle=Sequential()))
    assert_same(here, there, zip(results, answered, strict=True), tmp_path, NODES)


@pytest.mark.filterwarnings("ignore:Round 2 was skipped")  # threads take warnings off each other
@over_algorithms
def test_in_two_processes(algorithm):
    def of(processes):
        federation = loop_for(quadratic(algorithm), channels=SENDING_NAN, processes=processes)
        results = [federation.run(b, Autocast("cpu")) for b in rounds_of(algorithm, 3, processes=processes)]
        return federation.point, [result.undone for result in results]

    (one, undone), (other, others) = played(2, of)
    assert undone == others == [False, True, False]
    assert torch.equal(one, other)
    close(one, without_the_second(algorithm), 1e-11)


def test_a_fit_goes_on_and_logs_it(tmp_path):
    ends = []
    for rounds in (1, 2):
        momentum = partial(torch.optim.SGD, lr=0.5, momentum=0.9)
        task = quadratic(fl.FedAvg(0.05), channel=SENDING_NAN, server_optimizer=momentum, oracle=Vectorized())
        run_ = trainer(tmp_path, max_steps=rounds, precision="64-true")
        if rounds == 1:
            run_.fit(task, ClientNumbers(CLIENTS, local_steps=K))
        else:
            with pytest.warns(RuntimeWarning, match=WHY):
                run_.fit(task, ClientNumbers(CLIENTS, local_steps=K))
        assert run_.global_step == rounds
        ends.append(torch.cat([task.x, task.y]).detach())
    assert torch.equal(*ends)
    assert (run_.callback_metrics["skipped"], run_.callback_metrics["left_out"]) == (1, 1)
