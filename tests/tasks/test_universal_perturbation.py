"""Universal adversarial training: the objective, what is logged, and the sparsity of attacks."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedlightning.algorithms import FedAvg, FeDualEx, ProjectedGDA
from fedlightning.core.parameter_space import read
from fedlightning.data import Digits, ScalePixels
from fedlightning.models import ThreeLayerCNN
from fedlightning.oracle import Vectorized
from fedlightning.proximal import L2Ball
from fedlightning.tasks import UniversalPerturbation
from tests.support.small import trainer


def digits(**options):
    return Digits(scaling=ScalePixels(mean=0.0, std=1.0), batch_size=30, local_steps=5, **options)


def fit(algorithm, tmp_path, rounds=30, **options):
    torch.manual_seed(0)
    task = UniversalPerturbation(algorithm, radius=0.2, weight=0.01, oracle=Vectorized(), **options)
    run = trainer(tmp_path, max_steps=rounds)
    run.fit(task, digits())
    return task, run.callback_metrics


def test_pixels_lie_between_zero_and_one():
    data = digits()
    image, _ = data.federation.train[0:50]
    assert image.min() == 0
    assert image.max() == 1


def test_objective_is_cross_entropy_under_attack():
    task = UniversalPerturbation(FeDualEx(0.1))
    torch.nn.init.normal_(task.attack)
    image, label = torch.rand(4, 1, 8, 8), torch.tensor([1, 2, 3, 4])
    torch.testing.assert_close(task.objective((image, label)), F.cross_entropy(task(image + task.attack), label))


def test_dual_extrapolation_attacks_sparsely_where_projected_gradients_do_not(tmp_path):
    sparse, found = fit(FeDualEx(0.5), tmp_path)
    _, other = fit(ProjectedGDA(0.5), tmp_path)
    assert found["val_attack_nonzeros"] < 0.8 * other["val_attack_nonzeros"]
    assert found["val_clean_accuracy"] > other["val_clean_accuracy"] - 0.03
    assert found["val_attacked_accuracy"] <= found["val_clean_accuracy"]
    assert sparse.attack.abs().max() <= 0.2
    assert set(sparse.pictures()) == {"attack"}


def test_attacks_have_their_price():
    task = UniversalPerturbation(FeDualEx(0.1), weight=0.3, radius=0.2)
    torch.nn.init.uniform_(task.attack, -0.2, 0.2)
    simulation = task.run.simulation
    space, psi = simulation.space, simulation.server.algorithm.regularizer
    z = read(space.shared, task)
    torch.testing.assert_close(psi.value(z), 0.3 * task.attack.detach().abs().sum())
    far = psi.project(z + 10)
    assert far[space.shared.min_dim :].max() == pytest.approx(0.2)
    torch.testing.assert_close(far[: space.shared.min_dim], (z + 10)[: space.shared.min_dim])


def test_other_networks_and_other_prices(tmp_path):
    network = ThreeLayerCNN(channels=1, size=8)
    task, _ = fit(FeDualEx(0.1), tmp_path, rounds=2, network=network, max_regularizer=L2Ball(0.5))
    assert task.attack.norm() <= 0.5 + 1e-6


def test_colour_attacks_are_drawn():
    task = UniversalPerturbation(FeDualEx(0.1), shape=(3, 8, 8))
    torch.nn.init.normal_(task.attack)
    assert len(task.pictures()["attack"].axes) == 2


def test_an_attack_needs_a_method_that_takes_its_price():
    with pytest.raises(ValueError, match="FedAvg takes no regularizer or max_regularizer"):
        UniversalPerturbation(FedAvg(0.1))
