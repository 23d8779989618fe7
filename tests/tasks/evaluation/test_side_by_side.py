"""Predictions of several clients' models at once."""

from __future__ import annotations

import torch

from fedlightning.algorithms import FedAvg
from fedlightning.data.evaluation import EvaluationPart
from fedlightning.tasks.evaluation.side_by_side import SideBySide
from tests.support.small import Personal, fitted

X = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(3))
PARTS = [EvaluationPart(client, "own", torch.arange(5), last=True) for client in (3, 1)]


class Predicting(Personal):
    def predictions(self, batch):
        return self.line(batch).squeeze(1) + self.offset


class Refusing(Predicting):
    def predictions(self, batch):
        return super().predictions(batch) + 0 * self.offset.item()


def trained(cls=Predicting):
    task = cls(FedAvg(0.05))
    fitted(task, max_steps=3)
    return task, task.run.evaluation_request("val")


def test_before_the_first_round_there_are_no_models_to_predict_with():
    task = Predicting()
    assert SideBySide().predict(task, task.run.evaluation_request("val"), PARTS, X) is None


def test_every_client_predicts_with_its_own_model():
    task, request = trained()
    found = SideBySide().predict(task, request, PARTS, X)
    for place, client in enumerate((3, 1)):
        own = X[place] @ task.line.weight[0] + task.run.simulation.models([client])[1][0]
        torch.testing.assert_close(found[place], own.detach())


def test_the_global_model_predicts_with_the_personal_block_of_the_client():
    task, request = trained()
    parts = [EvaluationPart(part.client, "global", part.index, last=True) for part in PARTS]
    torch.testing.assert_close(
        SideBySide().predict(task, request, parts, X), SideBySide().predict(task, request, PARTS, X)
    )  # FedAvg keeps no personal models beside the block


def test_models_that_were_prepared_are_used_until_they_are_forgotten():
    task, request = trained()
    side_by_side = SideBySide()
    before = side_by_side.predict(task, request, PARTS, X)
    side_by_side.forget_models()
    assert torch.equal(side_by_side.predict(task, request, PARTS, X), before)


def test_a_refusal_is_said_once(monkeypatch):
    said = []
    monkeypatch.setattr("fedlightning.tasks.evaluation.side_by_side.rank_zero_info", said.append)
    task, request = trained(Refusing)
    side_by_side = SideBySide()
    assert side_by_side.predict(task, request, PARTS, X) is None
    assert side_by_side.predict(task, request, PARTS, X) is None
    (message,) = said
    assert message.startswith("Refusing.predictions cannot run for many clients at once; they are evaluated one after")
