"""Every algorithm through Flower's own serialisation ends where the simulation does."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import torch

from fedlightning.federation.remote.packet import Packet
from fedlightning.flower.carrier import FlowerCarrier
from fedlightning.oracle import Autocast, Sequential, Vectorized
from tests.support.cases import CASES
from tests.support.federations import CLIENTS, loop_for, quadratic, rounds_of
from tests.support.lies import LIES, NAN, run_quietly, telling, without
from tests.support.local_grid import LocalGrid, app_of
from tests.support.nodes import (
    NODES,
    NUMBERS,
    FederationOfNodes,
    assert_algorithm_runs_alike,
    assert_algorithm_runs_alike_with_personal_blocks,
    assert_same_states,
    assert_situation_is_alike,
    nodes_of,
)
from tests.support.situations import SITUATIONS, batches_of, seeded
from tests.support.small import regression_data


def by_flower(services):
    """A carrier to nodes behind Flower's grid."""
    return FlowerCarrier(LocalGrid({node: app_of(each.handle) for node, each in services.items()}), poll=0.01)


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_runs_alike_over_flower(name, tmp_path):
    assert_algorithm_runs_alike(name, tmp_path, by_flower)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(chunk_size=2)], ids=["one by one", "batched"])
def test_every_algorithm_runs_alike_over_flower_with_personal_blocks(name, oracle, tmp_path):
    assert_algorithm_runs_alike_with_personal_blocks(name, oracle, tmp_path, by_flower)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(chunk_size=2)], ids=["one by one", "batched"])
def test_situations_are_alike_over_flower(situation, oracle, tmp_path):
    assert_situation_is_alike(situation, oracle, tmp_path, by_flower)


def test_other_minibatches_at_one_node_do_not_pass_for_the_same(tmp_path):
    """The comparison can fail."""
    task, data = seeded(SITUATIONS["dropout"][0]), regression_data()
    services = nodes_of(task(), Sequential(), data, [[0, 1], [2, 3]], tmp_path / "same")
    services[101] = nodes_of(task(), Sequential(), regression_data(seed=2), [[2, 3]], tmp_path / "other")[100]
    here, there = (
        loop_for(task(), Sequential()),
        FederationOfNodes(task(), 4, Sequential(), by_flower(services), services),
    )
    for batch in batches_of(data, task(), 1):
        for loop in (here, there):
            loop.run(batch, Autocast("cpu"))
    moved = (here.point - loop_for(task()).point).norm()
    assert (here.point - there.point).norm() > 0.01 * moved > 0


@pytest.mark.parametrize("lie", [*LIES, "NaN"])
def test_a_node_that_lies_is_left_out_named_and_disturbs_nothing_else(lie, tmp_path):
    change, why = {**LIES, "NaN": NAN}[lie]
    algorithm = CASES["SCAFFOLD"].algorithm()
    services = nodes_of(quadratic(algorithm), Sequential(), NUMBERS, NODES, tmp_path)
    liar, lies = services[100].handle, []
    apps = {node: app_of(each.handle) for node, each in services.items()}

    def tell(data):
        packet = Packet.from_bytes(liar(data))
        return telling(change)(packet).to_bytes() if lies else packet.to_bytes()

    apps[100] = app_of(tell)
    there = FederationOfNodes(
        quadratic(algorithm), CLIENTS, Sequential(), FlowerCarrier(LocalGrid(apps), poll=0.01), services
    )
    here = loop_for(quadratic(algorithm), Sequential())
    first, *rest = rounds_of(algorithm, 3)
    for loop in (here, there):
        loop.run(first, Autocast("cpu"))
    lies.append(lie)
    said = []
    for batch in rest:
        here.run(without(batch, 0), Autocast("cpu"))
        said += run_quietly(there, batch)
    assert len(said) == (1 if lie == "NaN" else 2)
    assert all("client 0" in each for each in said)
    assert all(re.search(why, each) for each in said)
    assert torch.equal(here.point, there.point)
    assert_same_states(here, there, tmp_path, NODES)


def test_answers_of_a_round_that_is_over_cannot_get_in(tmp_path):
    """A node that comes back delivers its late answer to nobody."""
    algorithm = CASES["SCAFFOLD"].algorithm()
    services = nodes_of(quadratic(algorithm), Sequential(), NUMBERS, NODES, tmp_path)
    grid = LocalGrid({node: app_of(each.handle) for node, each in services.items()})
    there = FederationOfNodes(
        quadratic(algorithm), CLIENTS, Sequential(), FlowerCarrier(grid, poll=0.01), services, deadline=1.0
    )
    here = loop_for(quadratic(algorithm), Sequential())
    first, second, third = rounds_of(algorithm, 3)
    for loop in (here, there):
        loop.run(first, Autocast("cpu"))
    grid.late.add(100)
    here.run(without(second, 0), Autocast("cpu"))
    (said,) = run_quietly(there, second)
    assert said.startswith("Round 2, phase 1: node node-100 (client 0) did not answer: nothing came within 1 seconds")
    grid.late.clear()
    for loop in (here, there):
        loop.run(third, Autocast("cpu"))
    assert len(grid.sent) > 3 * len(NODES)
    assert torch.equal(here.point, there.point)
    assert_same_states(here, there, tmp_path, NODES)


@pytest.mark.parametrize("make", [lambda: SITUATIONS["personal block"][0](), lambda: SITUATIONS["local buffers"][0]()])
def test_what_stays_at_a_node_is_not_on_the_wire(make, tmp_path):
    task, data = seeded(make), regression_data()
    services = nodes_of(task(), Sequential(), data, [[0, 1], [2, 3]], tmp_path, buffers="local")
    grid = LocalGrid({node: app_of(each.handle) for node, each in services.items()})
    carrier = FlowerCarrier(grid, poll=0.01)
    there = FederationOfNodes(task(), 4, Sequential(), carrier, services, buffers="local")
    kept = []
    for batch in batches_of(data, task(), 3):
        there.run(batch, Autocast("cpu"))
        for path in tmp_path.glob("*/*/client-*/*.pt"):
            kept += torch.load(path, weights_only=True)["states"].values()
    wire = b"".join(grid.bytes)
    secrets = [value for value in kept if value.numel() and value.abs().sum() > 0]
    secrets += [leaf for sample in data.federation.train for leaf in (sample[0], sample[0].double(), sample[1])]
    assert len(secrets) > 100
    assert [value for value in secrets if value.numpy().tobytes() in wire] == []
    assert there.point.numpy().tobytes() not in wire  # nor does the model come from anywhere but the server
