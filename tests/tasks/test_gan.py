"""GANs: gradients of both players, scores, pictures."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import CDMA_ONE, FedAvg
from fedlightning.data import Digits
from fedlightning.models import DCGANDiscriminator, DCGANGenerator, LogisticRegression
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.tasks import GAN, Classification
from tests.support.small import trainer


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


@pytest.mark.slow
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
    scores = [run.validate(task, Digits(size=28), verbose=False)[0]["val_inception_score"] for _ in range(2)]
    assert scores[0] == scores[1] == run.callback_metrics["val_inception_score"]
    torch.manual_seed(9)  # what else was drawn before does not matter
    assert run.validate(task, Digits(size=28), verbose=False)[0]["val_inception_score"] == scores[0]
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
