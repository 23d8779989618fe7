"""Evaluation of many clients side by side against one client after the other."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlightning import BatchedEvaluationTask, FederatedDataModule
from fedlightning.algorithms import Ditto, FedALA, FedAPM, FedAvg, pFedMe
from fedlightning.data import Dirichlet, PersonalDigits, TensorData
from fedlightning.models import HARNet, TwoLayerCNN
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import FedRoD, PersonalizedClassification
from tests.support.evaluated import OneByOne
from tests.support.small import Personal, clients, trainer
from tests.support.with_gaps import Listed

CLIENTS = 6


class Normed(nn.Module):
    """BatchNorm and dropout."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.body(x))


def digits(**options):
    defaults = {"participation": Uniform(size=4), "batch_size": 10, "local_steps": 3, "eval_batch_size": 90}
    return PersonalDigits(Dirichlet(CLIENTS, 0.5, min_size=30), **{**defaults, **options})


def test_training_data_of_a_global_model_are_evaluated_as_one():
    class Plain(PersonalizedClassification):
        per_client_evaluation = False

        def evaluate(self, stage, batch, predictions):
            self.log(f"{stage}_loss", F.cross_entropy(predictions, batch[1]), batch_size=len(predictions))

    task, data = Plain(FedAvg(0.1)), digits(validate_train=True)
    fit = trainer(max_steps=2, val_check_interval=2, check_val_every_n_epoch=None)
    fit.fit(task, data)
    x, y = data.federation.train[data.federation.partition.order]
    wanted = F.cross_entropy(task(x), y).item()
    assert float(fit.callback_metrics["global_train_loss"]) == pytest.approx(wanted, rel=0.02)
    assert "val_loss" in fit.callback_metrics


def test_both_models_of_a_task_with_two_heads_are_evaluated_on_training_data():
    task, data = FedRoD(FedAvg(0.1)), digits(validate_train=True, class_counts=True)
    fit = trainer(max_steps=1, val_check_interval=1, check_val_every_n_epoch=None)
    fit.fit(task, data)
    assert {"local_train_accuracy", "global_train_accuracy", "val_global_accuracy"} <= set(fit.callback_metrics)
    assert not [name for name in fit.callback_metrics if "dataloader_idx" in name]


def both(make, *arguments, data=None, max_steps=3, **options):
    """Logged metrics and metrics of every client: side by side, and one by one."""
    results = []
    for cls in (make, type("One", (OneByOne, make), {})):
        torch.manual_seed(0)
        task = cls(*deepcopy(arguments), **{"oracle": Vectorized(), **options})
        fit = trainer(max_steps=max_steps, limit_val_batches=0)
        own = digits() if data is None else data()
        fit.fit(task, own)
        again = trainer()
        logged = again.validate(task, own, verbose=False)[0]
        results.append((task, logged | again.test(task, own, verbose=False)[0]))
        loader = again.test_dataloaders
        assert loader.grouped == (cls is make)
    return results


def check(results):
    (ours, logged), (theirs, expected) = results
    assert logged.keys() == expected.keys()
    for name, value in expected.items():
        assert logged[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    for name, values in theirs.client_metrics.items():
        torch.testing.assert_close(ours.client_metrics[name], values, equal_nan=True, rtol=1e-5, atol=1e-6)
        if "accuracy" in name or "f1" in name:
            assert torch.equal(ours.client_metrics[name], values)
    for (name, ours_now), theirs_now in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(ours_now, theirs_now), name


@pytest.mark.parametrize(
    ("algorithm", "personal"),
    [
        (FedAvg(0.1), ["head"]),
        (FedAPM(0.1), ["body"]),
        (FedAvg(0.1), []),
        (Ditto(0.1), []),
        (pFedMe(0.1, lam=5.0), ["head"]),
        (FedALA(0.1), []),
    ],
    ids=["FedSim", "FedAPM", "FedAvg", "Ditto", "pFedMe", "FedALA"],
)
def test_side_by_side_is_one_by_one(algorithm, personal):
    results = both(PersonalizedClassification, algorithm, personal=personal)
    check(results)
    assert results[0][0].client_metrics["test_loss"].std() > 1e-4
    assert ("test_global_loss" in results[0][1]) == isinstance(algorithm, Ditto | pFedMe | FedALA)


@pytest.mark.parametrize("buffers", ["local", "average"])
def test_batch_statistics_are_the_clients_own_and_dropout_is_off(buffers):
    results = both(PersonalizedClassification, FedAvg(0.1), Normed(), personal=["body.2"], buffers=buffers)
    check(results)


@pytest.mark.slow
def test_convolutions_and_two_heads():
    check(both(PersonalizedClassification, FedAvg(0.05), TwoLayerCNN(1, 8, hidden=16), personal=["head"]))
    data = lambda: digits(class_counts=True)  # noqa: E731
    check(both(FedRoD, FedAvg(0.05), data=data))


def test_before_the_first_round_all_stand_at_the_present_parameters():
    task = PersonalizedClassification(FedAvg(0.1), personal=["head"], oracle=Vectorized())
    data = digits()
    first = trainer().validate(task, data, verbose=False)[0]
    data.setup()
    federation = data.federation
    losses = [F.cross_entropy(task(x), y).detach() for x, y in (federation.val[i] for i in federation.val_partition)]
    assert first["val_loss"] == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)


class OwnLine(BatchedEvaluationTask, Personal):
    """A user's task."""

    def predictions(self, batch):
        return self.line(batch[0]).squeeze(1) + self.offset

    def evaluate(self, stage, batch, predictions):
        self.log(f"{stage}_loss", (predictions - batch[1]).square().mean(), batch_size=len(predictions))


def own_data(wrap=lambda part: part, **options):
    options = {"batch_size": 4, "local_steps": 3, "seed": 1, "eval_batch_size": 30, **options}
    return FederatedDataModule.from_datasets(
        clients(), val=[wrap(part) for part in clients(seed=7)], test=clients(seed=8), **options
    )


@pytest.mark.parametrize("wrap", [lambda part: part, Listed], ids=["tensors", "loaded"])
@pytest.mark.parametrize("eval_batch_size", [7, 30, 500])
def test_a_users_scores_of_ragged_clients(wrap, eval_batch_size):
    data = own_data(wrap, eval_batch_size=eval_batch_size)
    task = OwnLine(FedAvg(0.05))
    trainer(limit_val_batches=0).fit(task, data)
    trainer().validate(task, data, verbose=False)
    expected = [task.personalize(i).objective(part.tensors) for i, part in enumerate(clients(seed=7))]
    torch.testing.assert_close(task.client_metrics["val_loss"], torch.stack(expected).detach())
    assert task.offset.item() == 0.0
    assert task.evaluation_session.evaluation is None


class Refusing(OwnLine):
    def predictions(self, batch):
        shift = self.offset.item()
        return self.line(batch[0]).squeeze(1) + shift


class Drawing(OwnLine):
    def predictions(self, batch):
        return super().predictions(batch) + 0 * torch.rand(len(batch[0]))


class BatchNormed(OwnLine):
    def __init__(self, algorithm):
        super().__init__(algorithm, oracle=Sequential())
        self.norm = nn.BatchNorm1d(6, affine=False, track_running_stats=False)

    def predictions(self, batch):
        return self.line(self.norm(batch[0])).squeeze(1) + self.offset


@pytest.mark.parametrize("make", [Refusing, Drawing, BatchNormed])
def test_scores_that_cannot_run_side_by_side_run_one_by_one(make, monkeypatch):
    said = []
    monkeypatch.setattr("fedlightning.tasks.evaluation.side_by_side.rank_zero_info", said.append)
    task, data = make(FedAvg(0.05)), own_data()
    trainer(limit_val_batches=0).fit(task, data)
    trainer().validate(task, data, verbose=False)
    assert len(said) == 1
    assert said[0].startswith(f"{make.__name__}.predictions cannot run for many clients at once")
    expected = []
    for i, part in enumerate(clients(seed=7)):
        own = task.personalize(i).eval()
        expected.append((own.predictions(part.tensors) - part.tensors[1]).square().mean())
    torch.testing.assert_close(task.client_metrics["val_loss"], torch.stack(expected).detach())
    assert task.offset.item() == 0.0


def test_a_validation_step_of_its_own_is_taken_as_it_is():
    class Own(OwnLine):
        def validation_step(self, batch, batch_idx):
            assert batch[0].dim() == 2
            self.log("val_loss", self.objective(batch), batch_size=len(batch[1]))

    task, data = Own(FedAvg(0.05)), own_data()
    fit = trainer(limit_val_batches=0)
    fit.fit(task, data)
    again = trainer()
    again.validate(task, data, verbose=False)
    assert not again.val_dataloaders.grouped
    expected = [task.personalize(i).objective(part.tensors) for i, part in enumerate(clients(seed=7))]
    torch.testing.assert_close(task.client_metrics["val_loss"], torch.stack(expected).detach())
    again.test(task, data, verbose=False)
    assert again.test_dataloaders.grouped


class Failing(OwnLine):
    def evaluate(self, stage, batch, predictions):
        raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:.*KeyboardInterrupt")
def test_an_interrupted_evaluation_leaves_the_task_as_it_was():
    task, data = Failing(FedAvg(0.05)), own_data()
    trainer(limit_val_batches=0).fit(task, data)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        trainer().validate(task, data)
    assert task.evaluation_session.evaluation is None


def test_recurrent_layers_run_side_by_side(monkeypatch):
    monkeypatch.setattr("fedlightning.tasks.evaluation.side_by_side.rank_zero_info", pytest.fail)
    network = HARNet(classes=3, widths=(4, 4, 4), heads=2)
    draw = torch.Generator().manual_seed(0)
    parts = [
        TensorData((torch.randn(n, 6, 16, generator=draw), torch.randint(3, (n,), generator=draw))) for n in (5, 7, 4)
    ]
    data = lambda: FederatedDataModule.from_datasets(parts, val=parts, test=parts, batch_size=4)  # noqa: E731
    check(both(PersonalizedClassification, FedAvg(0.05), network, ["head"], 3, data=data, max_steps=1))
