"""Clients measure their models where these lie, in one process and at the other end of a wire."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms import Ditto, FedAvg
from fedlightning.data import ClientLoader, Partition, TensorData
from fedlightning.data.module import RoundLoader
from fedlightning.federation.evaluation import join_answers
from fedlightning.federation.protocol import ClientValues, EvaluationAnswer
from fedlightning.oracle import Autocast, Sequential
from fedlightning.tasks.batched_evaluation import BatchedEvaluationTask
from fedlightning.tasks.fit.run import FederationRun
from tests.support.federations import loop_for
from tests.support.over_the_wire import FederationOverTheWire
from tests.support.small import Personal, clients, regression_data

CLIENTS = 4


class OwnLine(Personal, BatchedEvaluationTask):
    """Regression with an offset of each client's own."""

    higher_is_better = {"mse": False}  # noqa: RUF012

    def predictions(self, batch):
        return self.line(batch[0]).squeeze(1) + self.offset

    def evaluate(self, stage, batch, predictions):
        self.log(f"{stage}_mse", (predictions - batch[1]).square().mean(), batch_size=len(predictions))


class OwnData:
    """Measures models on evaluation data that lie where the task lies, with an evaluation loop of its own."""

    def __init__(self, batch_size, client_ids, at_once):
        samples = [part.tensors for part in clients(seed=7)]
        pooled = TensorData(tuple(torch.cat(leaves).double() for leaves in zip(*samples, strict=True)))
        sizes = [len(part[1]) for part in samples]
        partition = Partition.of(torch.arange(sum(sizes)).split(sizes))
        self.loader = ClientLoader(pooled, partition, batch_size, ("own", "global"), client_ids, at_once=at_once)
        self.simulation = None

    def answers(self, request, clients):
        task = self.simulation.runner.clients.table.task
        task.run = FederationRun(task, lambda task: self.simulation)
        assert task.run.simulation is self.simulation
        evaluation = task.evaluation_session.begin(request)
        with torch.no_grad():
            for place, batch in enumerate(self.loader):
                evaluation.start_batch(self.loader, place, 0)
                task.validation_step(batch, place)
                evaluation.finish_batch()
        return evaluation.answers(clients)


def trained(make, batch_size, at_once):
    """The same rounds in one process and over the wire, with evaluation data in both."""
    torch.manual_seed(0)
    task, oracle = make().double(), Sequential()
    data = regression_data()
    data.rounds_per_epoch = 3
    evaluator = OwnData(batch_size, range(CLIENTS), at_once)
    evaluators = {client: OwnData(batch_size, [client], 1) for client in range(CLIENTS)}
    there = FederationOverTheWire(task, CLIENTS, oracle, evaluators)
    here = evaluator.simulation = loop_for(task, oracle, evaluator=evaluator)
    for client, own in evaluators.items():
        own.simulation = there.clients[client]
    for batch in RoundLoader(data, task.algorithm.phases):
        for loop in (here, there):
            loop.run(batch.place(torch.device("cpu"), torch.float64), Autocast("cpu"))
    return here, there


@pytest.mark.parametrize("make", [lambda: OwnLine(FedAvg(0.05)), lambda: OwnLine(Ditto(0.05))], ids=["block", "Ditto"])
@pytest.mark.parametrize("at_once", [1, 3], ids=["one by one", "side by side"])
@pytest.mark.parametrize("batch_size", [5, 100])
def test_clients_measure_the_same_over_the_wire(make, at_once, batch_size):
    here, there = trained(make, batch_size, at_once)
    found = []
    for loop in (here, there):
        sent = loop.wire.bytes if loop is there else 0
        found.append(loop.loop.evaluate(loop.server.evaluation_request("val"), range(CLIENTS)))
        if loop is there:
            assert loop.wire.bytes > sent
    assert found[0].keys() == found[1].keys() == {"val_mse", "val_global_mse"}
    for name, mine in found[0].items():
        theirs = found[1][name]
        assert mine.client_ids == theirs.client_ids == list(range(CLIENTS))
        assert mine.values.std() > 1e-3
        torch.testing.assert_close(mine.values, theirs.values)
        assert mine.samples.tolist() == theirs.samples.tolist() == [len(part) for part in clients(seed=7)]
        assert mine.higher_is_better is theirs.higher_is_better is False
    expected = []
    for client, part in enumerate(clients(seed=7)):
        (w,), (v,), _ = here.models([client])
        x, y = (leaf.double() for leaf in part.tensors)
        expected.append((x @ w + v - y).square().mean())
    torch.testing.assert_close(found[0]["val_mse"].values, torch.stack(expected).float())


def test_clients_that_are_not_asked_do_not_answer():
    here, there = trained(lambda: OwnLine(FedAvg(0.05)), 100, 1)
    for loop in (here, there):
        found = loop.loop.evaluate(loop.server.evaluation_request("val"), [1, 3])
        assert found["val_mse"].client_ids == [1, 3]
        assert loop.loop.evaluate(loop.server.evaluation_request("val"), []) == {}


def test_clients_without_an_evaluator_say_so():
    loop = loop_for(OwnLine(FedAvg(0.05)))
    with pytest.raises(RuntimeError, match="made without an evaluator"):
        loop.loop.evaluate(loop.server.evaluation_request("val"), [0])


def test_an_evaluation_answers_the_request_it_began_with():
    task = OwnLine(FedAvg(0.05))
    request = task.run.evaluation_request("val")
    with pytest.raises(RuntimeError, match="it was for another one"):
        task.run.loop.evaluate(request, [0])
    task.evaluation_session.begin(request)
    assert task.run.loop.evaluate(request, [0]) == {}
    with pytest.raises(RuntimeError, match="it was for another one"):
        task.run.loop.evaluate(task.run.evaluation_request("test"), [0])


def answer(name, *client_ids):
    values = torch.tensor(client_ids, dtype=torch.float32)
    return EvaluationAnswer({name: ClientValues(list(client_ids), values, 10 * values, prog_bar=True)})


def test_answers_come_together_in_the_order_of_clients():
    joined = join_answers([answer("a", 4, 1), answer("b", 2), answer("a", 0)])
    assert joined["a"].client_ids == [0, 1, 4]
    assert joined["a"].values.tolist() == [0.0, 1.0, 4.0]
    assert joined["a"].samples.tolist() == [0.0, 10.0, 40.0]
    assert joined["a"].prog_bar
    assert joined["b"].spread(4).isnan().tolist() == [True, True, False, True]


def test_nan_is_a_result_of_a_number_and_no_result_of_a_metric():
    values = torch.tensor([1.0, torch.nan])
    assert len(ClientValues([0, 1], values, values).defined) == 2
    assert len(ClientValues([0, 1], values, values, nan_is_undefined=True).defined) == 1
