"""AUC maximisation, robust classification and GANs: closed forms, what is measured, small runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics.functional.classification import binary_auroc

from fedlightning import FederatedDataModule
from fedlightning.algorithms import CDMA_ADA, CDMA_ONE, FedAvg
from fedlightning.data import Digits, Shards
from fedlightning.models import DCGANDiscriminator, DCGANGenerator, LogisticRegression
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.tasks import GAN, AUCMaximization, Classification, RobustClassification
from tests.support.small import trainer

# ---- AUC -------------------------------------------------------------------------------------------------------------


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
    run = trainer(tmp_path, max_steps=40)
    run.validate(task, data, verbose=False)
    before = float(run.callback_metrics["val_auc"])
    run.fit(task, data)
    assert float(run.callback_metrics["val_auc"]) > max(0.9, before)
    labels = data.federation.train.tensors[1]
    assert float(task.prior) == pytest.approx(float((labels == 8).float().mean()))
    run.test(task, data, verbose=False)
    assert run.callback_metrics["test_auc"] > 0.9


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


# ---- robust classification -------------------------------------------------------------------------------------------


def test_the_worst_perturbation_of_a_linear_loss_is_known():
    """With logits (w'x, 0) far in the linear part of the loss, the ascent ends at gradient / penalty."""
    task = RobustClassification(FedAvg(0.1), nn.Linear(3, 2), shape=(3,), classes=2, penalty=0.5, ascent_steps=200)
    task.ascent_lr = 0.5
    with torch.no_grad():
        task.network.weight.copy_(torch.tensor([[3.0, -1.0, 2.0], [0.0, 0.0, 0.0]]))
        task.network.bias.copy_(torch.tensor([0.0, 60.0]))
    x = torch.zeros(5, 3)
    worst, loss = task.worst_perturbation([(x[:2], torch.zeros(2).long()), (x[2:], torch.zeros(3).long())])
    expected = -torch.tensor([3.0, -1.0, 2.0]) / 0.5
    torch.testing.assert_close(worst, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loss, torch.tensor(60 + 14 / 0.5 - 0.25 * 14 / 0.25), rtol=1e-4, atol=0)


def test_robust_training_lowers_the_robust_loss(tmp_path):
    torch.manual_seed(0)
    task = RobustClassification(CDMA_ADA(lr=[0.05, 0.5]), penalty=0.1, oracle=Vectorized())
    data = Digits(partitioner=Shards(40, shards_per_client=1), batch_size=10, local_steps=3)
    run = trainer(tmp_path, max_steps=30)
    run.validate(task, data, verbose=False)
    before = dict(run.callback_metrics)
    run.fit(task, data)
    after = run.callback_metrics
    assert after["val_robust_loss"] < before["val_robust_loss"]
    assert after["val_robust_accuracy"] <= after["val_accuracy"]
    assert after["val_worst_norm"] > 0
    assert set(task.pictures()) == {"perturbation"}
    run.test(task, data, verbose=False)
    assert "test_robust_loss" in run.callback_metrics


# ---- GAN -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "channels"), [(28, 1), (32, 3), (64, 3)])
def test_dcgan_shapes(size, channels):
    generator = DCGANGenerator(size, channels, width=4, latent=7)
    images = generator(torch.rand(2, 7))
    assert images.shape == (2, channels, size, size)
    assert images.abs().max() <= 1
    assert DCGANDiscriminator(size, channels, width=4)(images).shape == (2, 1)


def test_dcgan_of_another_size():
    with pytest.raises(ValueError, match=r"DCGAN\(size=30\): expected one of \[28, 32, 64\]"):
        DCGANGenerator(30)


class Scale(nn.Module):
    """A generator of one parameter."""

    latent = 2

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, noise):
        return self.scale * noise


@pytest.mark.parametrize("non_saturating", [False, True])
def test_gradients_of_both_players(non_saturating):
    """The discriminator's is that of the value; the generator's that of log(1 - D), or of -log D."""
    torch.manual_seed(0)
    task = GAN(FedAvg(0.1), Scale(), nn.Linear(2, 1), non_saturating=non_saturating)
    real = torch.randn(6, 2)
    torch.manual_seed(5)
    task.objective((real,))["loss"].backward()
    torch.manual_seed(5)
    noise = task.noise(6)
    d, w, b, s = (
        task.discriminator,
        *(
            p.detach().clone().requires_grad_()
            for p in (task.discriminator.weight, task.discriminator.bias, task.generator.scale)
        ),
    )
    judge = lambda x: torch.sigmoid(x @ w.T + b)  # noqa: E731
    value = judge(real).log().mean() + (1 - judge(s * noise)).log().mean()
    own = -judge(s * noise).log().mean() if non_saturating else value
    expected_w, expected_b = torch.autograd.grad(value, (w, b), retain_graph=True)
    (expected_s,) = torch.autograd.grad(own, s)
    torch.testing.assert_close(d.weight.grad, expected_w)
    torch.testing.assert_close(d.bias.grad, expected_b)
    torch.testing.assert_close(task.generator.scale.grad, expected_s)


@pytest.mark.parametrize("non_saturating", [False, True])
def test_vectorised_and_sequential_players_agree(non_saturating):
    from fedlightning.data import RoundLoader
    from fedlightning.oracle import Autocast
    from tests.support.federations import loop_for

    clients = [TensorDataset(torch.rand(12, 1, 28, 28) * 2 - 1) for _ in range(3)]
    data = FederatedDataModule.from_datasets(clients, batch_size=6, local_steps=2)
    points = []
    for oracle in (Vectorized(chunk_size=1), Sequential()):
        torch.manual_seed(0)
        task = GAN(FedAvg(0.01), DCGANGenerator(width=4), DCGANDiscriminator(width=4), non_saturating=non_saturating)
        task.double()
        batch = next(iter(RoundLoader(data, task.algorithm.phases))).place(torch.device("cpu"), torch.float64)
        loop = loop_for(task, oracle)
        loop.run(batch, Autocast("cpu"))
        points.append(loop.point)
    torch.testing.assert_close(points[0], points[1], rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("ignore:Hyper-parameter 'network'")
def test_scores_and_sample_grids(tmp_path):
    torch.manual_seed(0)
    judge = Classification(FedAvg(0.2), LogisticRegression(784, 10))
    run = trainer(tmp_path, max_steps=5)
    run.fit(judge, Digits(size=28))
    run.save_checkpoint(tmp_path / "judge.ckpt")
    task = GAN(
        CDMA_ONE(lr=0.01),
        DCGANGenerator(width=4),
        DCGANDiscriminator(width=4),
        classifier=LogisticRegression(784, 10),
        classifier_weights=str(tmp_path / "judge.ckpt"),
        features=nn.Sequential(nn.Flatten(), nn.Linear(784, 8)),
        samples=60,
    )
    torch.testing.assert_close(task.inception.inception[1].weight, judge.network[1].weight)
    run = trainer(tmp_path, max_steps=2)
    run.fit(task, Digits(size=28, batch_size=6, local_steps=2, rounds_per_epoch=2))
    assert 1 <= run.callback_metrics["val_inception_score"] <= 10
    assert run.callback_metrics["val_fid"] > 0
    assert torch.equal(task.sample(3), task.sample(3))
    assert task.pictures()["samples"].axes
    (predicted,) = run.predict(task, Digits(size=28, eval_batch_size=300))
    assert predicted.shape == (300, 1, 28, 28)


def test_gans_without_what_they_need():
    with pytest.raises(ValueError, match="Linear has no attribute latent: give latent"):
        GAN(FedAvg(0.1), nn.Linear(3, 4))
    with pytest.raises(ValueError, match="give the classifier they are for"):
        GAN(FedAvg(0.1), classifier_weights="judge.ckpt")


def test_samples_without_labels_are_enough():
    task = GAN(FedAvg(0.1), DCGANGenerator(width=2), DCGANDiscriminator(width=2))
    data = FederatedDataModule.from_datasets([TensorDataset(torch.rand(8, 1, 28, 28))], batch_size=4)
    trainer(max_steps=1).fit(task, data)
