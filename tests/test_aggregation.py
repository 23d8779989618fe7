from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.aggregation import WeightedMean, finite_clients
from fedlightning.algorithms import over_all_clients


@dataclass(frozen=True)
class Up:
    w: Tensor
    c: Tensor = over_all_clients()


def test_means_over_the_cohort_and_over_all_clients():
    mean = WeightedMean()
    w, c = torch.randn(5, 3), torch.randn(5, 2)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    for part in (slice(0, 2), slice(2, 5)):
        mean.add({"w": w[part], "c": c[part]}, weights[part])
    message = mean.message(Up(w, c), total_weight=30.0)
    torch.testing.assert_close(message.w, (weights[:, None] * w).sum(0) / 15)
    torch.testing.assert_close(message.c, (weights[:, None] * c).sum(0) / 30)


def test_a_client_of_weight_zero_adds_nothing_even_if_not_finite():
    mean = WeightedMean()
    values = torch.tensor([[1.0, 2.0], [float("nan"), float("inf")], [3.0, 4.0]])
    mean.add({"w": values}, torch.tensor([1.0, 0.0, 1.0]))
    assert mean.mean("w").tolist() == [2.0, 3.0]
    assert mean.weight == 2.0


def test_finite_clients():
    good, bad = torch.ones(3, 2), torch.ones(3, 2)
    bad[1, 0] = float("inf")
    assert finite_clients({"a": good}) is None
    assert finite_clients({"a": good, "b": bad}).tolist() == [True, False, True]
    assert finite_clients({}) is None
