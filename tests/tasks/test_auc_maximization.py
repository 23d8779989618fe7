"""AUC maximisation: the saddle in closed form, and small runs."""

from __future__ import annotations

import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from fedlightning import FederatedDataModule
from fedlightning.algorithms import CDMA_ONE, FedAvg
from fedlightning.data import Digits, Federation, Partition, Shards, TensorData
from fedlightning.models import LogisticRegression
from fedlightning.oracle import Vectorized
from fedlightning.tasks import AUCMaximization, RobustClassification
from tests.support.small import trainer


def scored(n=200, seed=0):
    draw = torch.Generator().manual_seed(seed)
    score = torch.rand(n, generator=draw, dtype=torch.float64)
    return score, torch.rand(n, generator=draw) < 0.2 + 0.4 * score


def test_best_scalars_are_the_saddle_at_fixed_scores():
    score, is_positive = scored()
    task = AUCMaximization(FedAvg(0.1), prior=float(is_positive.double().mean())).double()
    task.prior = is_positive.double().mean()
    for parameter, value in zip((task.a, task.b, task.alpha), task.best_scalars(score, is_positive), strict=True):
        parameter.data = value
    task.saddle_value(score, is_positive).backward()
    for parameter in (task.a, task.b, task.alpha):
        assert abs(float(parameter.grad)) < 1e-12


def test_the_saddle_value_is_the_square_surrogate_of_all_pairs():
    """At the best a, b and alpha it is p (1 - p) (mean over pairs of (1 - s+ + s-)^2 - 1)."""
    score, is_positive = scored()
    task = AUCMaximization(FedAvg(0.1), prior=0.5).double()
    task.prior = p = is_positive.double().mean()
    for parameter, value in zip((task.a, task.b, task.alpha), task.best_scalars(score, is_positive), strict=True):
        parameter.data = value
    pairs = (1 - score[is_positive][:, None] + score[~is_positive][None]).square().mean()
    torch.testing.assert_close(task.saddle_value(score, is_positive).detach(), p * (1 - p) * (pairs - 1))


@pytest.mark.parametrize("outputs", [1, 2])
def test_auc_grows_over_clients_that_see_one_class_each(outputs, tmp_path):
    torch.manual_seed(0)
    task = AUCMaximization(CDMA_ONE(lr=[0.1, 0.1]), LogisticRegression(64, outputs), positive=8, oracle=Vectorized())
    data = Digits(partitioner=Shards(40, shards_per_client=1), batch_size=10, local_steps=3)
    run = trainer(tmp_path, max_steps=60)
    run.validate(task, data, verbose=False)
    before = float(run.callback_metrics["val_auc"])
    run.fit(task, data)
    assert float(run.callback_metrics["val_auc"]) > max(0.9, before)
    labels, partition = data.federation.train.tensors[1], data.federation.partition
    shares = [float((labels[own] == 8).float().mean()) for own in partition]
    assert float(task.prior) == pytest.approx(sum(shares) / len(shares))
    run.test(task, data, verbose=False)
    assert run.callback_metrics["test_auc"] > 0.9


def of_shares(*shares, spare=0):
    """Clients with 20, 40, ... samples of which these shares are positive, and samples of nobody that all are."""
    sizes = [20 * (i + 1) for i in range(len(shares))]
    labels = torch.cat([(torch.arange(n) < share * n).long() for n, share in zip(sizes, shares, strict=True)])
    labels = torch.cat([labels, torch.ones(spare, dtype=torch.long)])
    offsets = torch.tensor([0, *sizes]).cumsum(0)

    class Data(FederatedDataModule):
        def build(self):
            return Federation(
                TensorData((torch.randn(len(labels), 64), labels)), Partition(torch.arange(sum(sizes)), offsets)
            )

    return Data(batch_size=10, local_steps=1)


def test_the_prior_is_that_of_the_clients_samples_as_the_objective_weighs_them(tmp_path):
    for weighting, expected in (("uniform", (0.5 + 0.2) / 2), ("samples", (10 + 8) / 60)):
        task = AUCMaximization(FedAvg(0.1), positive=1, weighting=weighting)
        trainer(tmp_path, max_steps=1).fit(task, of_shares(0.5, 0.2, spare=100))
        assert float(task.prior) == pytest.approx(expected)
        trainer(tmp_path, max_steps=1).fit(task, of_shares(0.1, 0.1))  # each fit counts
        assert float(task.prior) == pytest.approx(0.1)
    given = AUCMaximization(FedAvg(0.1), positive=1, prior=0.3)
    trainer(tmp_path, max_steps=1).fit(given, of_shares(0.5, 0.2))
    assert float(given.prior) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("task", "metrics"),
    [
        (lambda: AUCMaximization(CDMA_ONE(0.01), positive=8), ("auc", "loss")),
        (lambda: RobustClassification(CDMA_ONE(0.01), penalty=0.1), ("accuracy", "robust_loss", "robust_accuracy")),
    ],
    ids=["AUC", "robust"],
)
def test_training_data_are_judged_too(task, metrics, tmp_path):
    """The upper rows of the paper's Figures 1 and 2."""
    run = trainer(tmp_path, max_steps=2)
    data = Digits(partitioner=Shards(40, shards_per_client=1), batch_size=10, local_steps=3, validate_train=True)
    model = task()
    run.fit(model, data)
    run.validate(model, data, verbose=False)
    for metric in metrics:
        assert run.callback_metrics[f"global_train_{metric}"] != run.callback_metrics[f"val_{metric}"]
    x, y = (torch.cat(parts) for parts in zip(*data.val_dataloader()[1], strict=True))
    assert len(x) == len(data.federation.train)
    with torch.no_grad():
        if isinstance(model, AUCMaximization):
            expected, name = binary_auroc(model(x), (y == 8).long()), "global_train_auc"
        else:
            expected, name = (model(x).argmax(1) == y).float().mean(), "global_train_accuracy"
    assert float(run.callback_metrics[name]) == pytest.approx(float(expected), abs=1e-6)


def test_prior_is_asked_for_where_it_cannot_be_counted(tmp_path):
    with pytest.raises(ValueError, match=r"AUCMaximization\(prior=1\.0\): expected > 0 and < 1, or null"):
        AUCMaximization(FedAvg(0.1), prior=1.0)
    with pytest.raises(ValueError, match="a share 0 of the samples is positive"):
        trainer(tmp_path).fit(AUCMaximization(FedAvg(0.1), positive=77), Digits())

    class Listed(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return torch.zeros(64), 0

    data = FederatedDataModule.from_datasets([Listed()], batch_size=2)
    with pytest.raises(ValueError, match="give prior for other data"):
        trainer(tmp_path).fit(AUCMaximization(FedAvg(0.1)), data)
