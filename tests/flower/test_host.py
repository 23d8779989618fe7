"""A node builds the task of each run, and goes on with it after it was killed."""

from __future__ import annotations

import contextlib
import json
import warnings
from dataclasses import replace
from uuid import UUID

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from lightning.fabric import seed_everything

from fedlightning.algorithms import SCAFFOLD, FedAPM
from fedlightning.data.remote import RemoteClients
from fedlightning.federation.protocol import Precision
from fedlightning.federation.remote.enrolment import EnrolmentError
from fedlightning.federation.remote.failure import decode_failure
from fedlightning.federation.remote.packet import Packet
from fedlightning.federation.remote.roster_codec import decode_enrolment
from fedlightning.federation.remote.run_config import LocalWork, RunConfig, name_of_run
from fedlightning.federation.remote.silence import NodeError
from fedlightning.federation.remote.store import StoreError
from fedlightning.federation.transport.remote import Deadlines, Remote
from fedlightning.flower.host import NodeHost
from fedlightning.flower.kept_run import keep_run
from fedlightning.flower.node_config import NodeConfig
from fedlightning.oracle import Sequential
from fedlightning.tasks.base import FederatedLightningModule
from tests.support.hospital import Offset, Records, Tumour
from tests.support.nodes import Wires
from tests.support.small import trainer

HOSPITAL = "tests.support.hospital"
SEQUENTIAL = {"class_path": "fedlightning.oracle.Sequential"}


def described(task, algorithm, seed=3, precision="32-true", **work):
    """A run as the server tells nodes of it."""
    chosen = {"class_path": f"fedlightning.algorithms.{type(algorithm).__name__}", "init_args": {"lr": algorithm.lr}}
    arguments = {"algorithm": chosen, "oracle": SEQUENTIAL, "self_check": "off"}
    return RunConfig(
        {"class_path": f"{HOSPITAL}.{task.__name__}", "init_args": arguments}, seed, precision, LocalWork(**work)
    )


def node_config(folder, *client_ids, **changes):
    values = {"data": {"class_path": f"{HOSPITAL}.Records"}, "classes": ["fedlightning", HOSPITAL]}
    return NodeConfig("a", "localhost:1", {each: each for each in client_ids}, folder=folder, accelerator="cpu",
                      **{**values, **changes})  # fmt: skip


class Revived(Wires):
    """Nodes that are killed and started anew before each message but the first of each."""

    def exchange(self, packets, group, seconds):
        for node in packets:
            before = self.services[node]
            before.close()
            self.services[node] = NodeHost(before.config)
            self.services[node].config = before.config
        return super().exchange(packets, group, seconds)


def hosts(folder, *holdings, **changes):
    found = {}
    for number, client_ids in enumerate(holdings):
        config = node_config(folder / f"node-{number}", *client_ids, **changes)
        found[100 + number] = NodeHost(config)
        found[100 + number].config = config
    return found


def federated(carrier, task, algorithm, run, precision="32-true", rounds=4):
    seed_everything(run.seed, verbose=False)
    there = task(algorithm, oracle=Sequential(), self_check="off")
    there.run.connect = lambda simulation: Remote(carrier, simulation, 4, Deadlines(enrol=5.0), run=run.to_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(max_steps=rounds, precision=precision).fit(there, RemoteClients(4, seed=run.seed))
    return there


def simulated(task, algorithm, run, precision="32-true", rounds=4, **options):
    seed_everything(run.seed, verbose=False)
    here = task(algorithm, oracle=Sequential(), self_check="off")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(max_steps=rounds, precision=precision).fit(here, Records(seed=run.seed, **options))
    return here


def assert_equal(one: FederatedLightningModule, other: FederatedLightningModule):
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize("carrier", [Wires, Revived])
@pytest.mark.parametrize(
    ("task", "algorithm", "precision", "work"),
    [
        (Tumour, SCAFFOLD(0.05), "32-true", {"local_steps": 2}),
        (Offset, FedAPM(0.05), "32-true", {}),
        (Tumour, SCAFFOLD(0.05), "64-true", {}),
        (Tumour, SCAFFOLD(0.05), "bf16-mixed", {}),
    ],
    ids=["control variates", "personal", "double", "autocast"],
)
def test_a_run_over_nodes_is_the_run_of_the_simulation(carrier, task, algorithm, precision, work, tmp_path):
    run = described(task, algorithm, precision=precision, **work)
    nodes = carrier(hosts(tmp_path, [3, 1], [0, 2]))
    there = federated(nodes, task, algorithm, run, precision)
    assert_equal(there, simulated(task, algorithm, run, precision, **work))
    for service in nodes.services.values():
        service.close()


def test_another_run_takes_the_place_of_the_first(tmp_path):
    nodes = Wires(hosts(tmp_path, [3, 1], [0, 2]))
    for task, algorithm in ((Tumour, SCAFFOLD(0.05)), (Offset, FedAPM(0.05)), (Tumour, SCAFFOLD(0.1))):
        run = described(task, algorithm)
        assert_equal(federated(nodes, task, algorithm, run, rounds=2), simulated(task, algorithm, run, rounds=2))


def test_a_resume_with_other_hyper_parameters_is_answered_with_them(tmp_path, monkeypatch):
    """A server killed after nodes have answered repeats the round; what they kept was computed as the run was then."""
    monkeypatch.setattr("fedlightning.federation.remote.ledger.uuid4", lambda: UUID(int=1))  # the federation goes on
    nodes = Wires(hosts(tmp_path, [3, 1], [0, 2]))
    for lr in (0.05, 0.1):
        run = described(Tumour, SCAFFOLD(lr))
        there = federated(nodes, Tumour, SCAFFOLD(lr), run, rounds=1)
        assert_equal(there, simulated(Tumour, SCAFFOLD(lr), run, rounds=1))
    assert len(list((tmp_path / "node-0" / "states" / UUID(int=1).hex / "client-1").iterdir())) == 2


class Interrupted(Wires):
    """Nodes that another server enrols for its run before the first message of a kind."""

    def __init__(self, services, other, kind):
        super().__init__(services)
        self.other, self.kind = other, kind

    def exchange(self, packets, group, seconds):
        if self.other is not None and next(iter(packets.values())).kind == self.kind:
            other, self.other = self.other, None
            for service in self.services.values():
                service.handle(Packet("enrol", {"run": other.to_text()}).to_bytes())
        return super().exchange(packets, group, seconds)


def test_two_servers_at_once_do_not_get_each_others_answers(tmp_path):
    other = described(Tumour, SCAFFOLD(0.1))
    nodes = Interrupted(hosts(tmp_path, [0, 1, 2, 3]), other, "ask")
    with pytest.raises(NodeError, match=r"of another run than the one .* one server at a time"):
        federated(nodes, Tumour, SCAFFOLD(0.05), described(Tumour, SCAFFOLD(0.05)))


def test_a_run_that_names_other_classes_is_refused_and_the_last_one_stays(tmp_path):
    nodes = Wires(hosts(tmp_path, [0, 1, 2, 3], classes=["fedlightning", f"{HOSPITAL}.Tumour"]))
    run = described(Tumour, SCAFFOLD(0.05))
    federated(nodes, Tumour, SCAFFOLD(0.05), run, rounds=1)
    with pytest.raises(
        EnrolmentError, match=rf"cannot enrol: RefusedClassError: model names {HOSPITAL}\.Offset: it is"
    ):
        federated(nodes, Offset, SCAFFOLD(0.05), described(Offset, SCAFFOLD(0.05)))
    assert (tmp_path / "node-0" / "states" / "run.yaml").read_text() == run.to_text()
    federated(nodes, Tumour, SCAFFOLD(0.05), run, rounds=1)


def test_a_node_may_choose_its_precision(tmp_path):
    run = described(Tumour, SCAFFOLD(0.05))
    nodes = Wires(hosts(tmp_path, [0, 1, 2, 3], precision="bf16-mixed"))
    there = federated(nodes, Tumour, SCAFFOLD(0.05), run)
    rounded, exact = (simulated(Tumour, SCAFFOLD(0.05), run, precision) for precision in ("bf16-mixed", "32-true"))
    assert_equal(there, rounded)
    assert not torch.equal(there.head.weight, exact.head.weight)
    enrolment = decode_enrolment(Packet.from_bytes(nodes.services[100].handle(Packet("enrol").to_bytes())))
    assert enrolment.precision == Precision(torch.bfloat16)  # the server says so


def test_before_a_run_a_node_says_that_it_knows_of_none(tmp_path):
    with contextlib.closing(NodeHost(node_config(tmp_path, 0))) as host:
        failure = decode_failure(Packet.from_bytes(host.handle(Packet("join").to_bytes())))
        assert failure.error == "UsageError"
        assert "knows of no run" in failure.text
        text = "model: {class_path: 1}"
        failure = decode_failure(Packet.from_bytes(host.handle(Packet("enrol", {"run": text}).to_bytes())))
        assert "description of the run cannot be used" in failure.text


def test_a_kept_run_that_is_no_longer_allowed_waits_for_another(tmp_path, caplog):
    config = node_config(tmp_path, 0)
    host = NodeHost(config)
    host.handle(Packet("enrol", {"run": described(Tumour, SCAFFOLD(0.05)).to_text()}).to_bytes())
    host.close()
    with contextlib.closing(NodeHost(replace(config, classes=["fedlightning"]))) as host:
        assert "is given up" in caplog.text
        assert decode_failure(Packet.from_bytes(host.handle(Packet("join").to_bytes()))).error == "UsageError"


def test_one_process_at_a_time_keeps_the_states(tmp_path):
    with contextlib.closing(NodeHost(node_config(tmp_path, 0))), pytest.raises(StoreError, match="Another process"):
        NodeHost(node_config(tmp_path, 0))


def test_a_kept_run_whose_class_fails_waits_for_another(tmp_path, monkeypatch, caplog):
    keep_run(described(Tumour, SCAFFOLD(0.05)).to_text(), tmp_path)

    def fail(run, allowed):
        raise ZeroDivisionError("in a class of the run")

    monkeypatch.setattr("fedlightning.flower.node_task.built_task", fail)
    with contextlib.closing(NodeHost(node_config(tmp_path, 0, states="."))):
        assert "is given up, until a server enrols this node again: ZeroDivisionError" in caplog.text


def test_a_run_that_ends_the_worker_at_every_build_is_given_up(tmp_path, caplog):
    """It is kept, and the fourth worker answers: other runs begin, and this one is refused with the remedy."""
    deadly, states = described(Offset, SCAFFOLD(0.05)).to_text(), tmp_path / "states"
    states.mkdir()
    keep_run(deadly, states)
    (states / "building.json").write_text(json.dumps({"run": name_of_run(deadly), "deaths": 3}))  # as deaths leave it
    with contextlib.closing(NodeHost(node_config(tmp_path, 0))) as host:
        assert "is given up, until a server enrols this node again: DeadlyRunError" in caplog.text
        failure = decode_failure(Packet.from_bytes(host.handle(Packet("enrol", {"run": deadly}).to_bytes())))
        assert failure.error == "DeadlyRunError"
        assert "has ended the node's worker 3 times while it was built" in failure.text
        other = Packet("enrol", {"run": described(Tumour, SCAFFOLD(0.05)).to_text()})
        assert Packet.from_bytes(host.handle(other.to_bytes())).kind == "enrolment"
