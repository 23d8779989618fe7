"""Nodes that get bytes and keep files run every algorithm as the simulation does."""

from __future__ import annotations

import pytest
import torch

from fedlightning.federation.protocol import ClientValues, EvaluationAnswer
from fedlightning.federation.remote.evaluation_codec import encode_evaluation
from fedlightning.oracle import Autocast, Sequential, Vectorized
from fedlightning.participation import Uniform
from tests.support.cases import CASES
from tests.support.federations import loop_for
from tests.support.nodes import (
    FederationOfNodes,
    Wires,
    assert_algorithm_runs_alike,
    assert_algorithm_runs_alike_with_personal_blocks,
    assert_same_states,
    assert_situation_is_alike,
    node,
    nodes_of,
)
from tests.support.situations import SITUATIONS, batches_of, seeded
from tests.support.small import regression_data


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_runs_alike_by_nodes(name, tmp_path):
    assert_algorithm_runs_alike(name, tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_runs_alike_by_nodes_with_personal_blocks(name, tmp_path):
    assert_algorithm_runs_alike_with_personal_blocks(name, Vectorized(chunk_size=2), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(chunk_size=2)], ids=["one by one", "batched"])
def test_situations_are_alike_by_nodes(situation, oracle, tmp_path):
    assert_situation_is_alike(situation, oracle, tmp_path)


class Norms:
    """Measures the norm of each client's model, where its state lies."""

    def __init__(self):
        self.simulation = None

    def answers(self, request, client_ids):
        for client in client_ids:
            parts = self.simulation.models([client], request=request)
            values = torch.stack([part.norm() for part in parts if part is not None]).sum()[None].float()
            yield EvaluationAnswer({f"{request.stage}_norm": ClientValues([client], values, torch.ones(1), True)})


@pytest.mark.parametrize("situation", ["personal block", "personal models", "local buffers"])
def test_clients_measure_their_models_at_their_nodes(situation, tmp_path):
    make, data_options, options = SITUATIONS[situation]
    task, data = seeded(make), regression_data(participation=Uniform(2), **data_options)
    holdings, evaluators = [[3, 1], [0, 2]], [Norms(), Norms()]
    services = {}
    for number, (client_ids, evaluator) in enumerate(zip(holdings, evaluators, strict=True)):
        folder = tmp_path / f"node-{number}"
        services[100 + number] = node(task(), Sequential(), data, client_ids, folder, evaluator, **options)
        evaluator.simulation = services[100 + number].simulation
    here = Norms()
    here.simulation = loop = loop_for(task(), Sequential(), evaluator=here, **options)
    carrier = Wires(services)
    there = FederationOfNodes(task(), 4, Sequential(), carrier, services, **options)
    for batch in batches_of(data, task(), 3):
        for each in (loop, there):
            each.run(batch, Autocast("cpu"))
    there.close()
    for number, (client_ids, evaluator) in enumerate(zip(holdings, evaluators, strict=True)):  # after a restart
        folder = tmp_path / f"node-{number}"
        services[100 + number] = node(task(), Sequential(), data, client_ids, folder, evaluator, **options)
        evaluator.simulation = services[100 + number].simulation
    found = [each.loop.evaluate(each.server.evaluation_request("val"), range(4)) for each in (loop, there)]
    assert found[0]["val_norm"].client_ids == found[1]["val_norm"].client_ids == [0, 1, 2, 3]
    assert torch.equal(found[0]["val_norm"].values, found[1]["val_norm"].values)
    assert found[0]["val_norm"].values.std() > 0
    carrier.tamper[101] = lambda packet: [encode_evaluation([EvaluationAnswer({"val_norm": found[0]["val_norm"]})])]
    with pytest.warns(RuntimeWarning) as said:
        left = there.loop.evaluate(there.server.evaluation_request("val"), range(4))
    assert [str(each.message).partition(": ")[2] for each in said] == [
        "an answer of node node-101 (clients 0, 2) was left out: it is of clients of other nodes.",
        "the metrics are without 2 of 4 clients, of whose nodes there is no answer: 0, 2.",
    ]
    assert left["val_norm"].client_ids == [1, 3]
    assert_same_states(loop, there, tmp_path, holdings)  # to measure changes nothing


def test_a_restarted_node_goes_on_with_its_files(tmp_path):
    for situation in ("architectures, dual", "local buffers", "averaged buffers"):
        make, data_options, options = SITUATIONS[situation]
        task, data = seeded(make), regression_data(**data_options)
        folder, holdings = tmp_path / situation, [[3, 1], [0, 2]]
        services = nodes_of(task(), Sequential(), data, holdings, folder, **options)
        here = loop_for(task(), Sequential(), **options)
        there = FederationOfNodes(task(), 4, Sequential(), Wires(services), services, **options)
        for batch in batches_of(data, task()):
            here.run(batch, Autocast("cpu"))
            there.run(batch, Autocast("cpu"))
            there.close()
            services |= nodes_of(task(), Sequential(), data, holdings, folder, **options)
        assert torch.equal(here.point, there.point)
        assert_same_states(here, there, folder, holdings)
