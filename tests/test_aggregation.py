from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier

import pytest
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


class Thread:
    """One of two processes, which are threads here."""

    def __init__(self, rank, slots, barrier):
        self.rank, self.slots, self.barrier = rank, slots, barrier

    def each(self, value):
        self.slots[self.rank] = value
        self.barrier.wait(timeout=10)
        values = list(self.slots)
        self.barrier.wait(timeout=10)
        return values

    def sum(self, tensor):
        one, other = self.each(tensor)
        assert one.shape == other.shape
        return one + other


def gathered(*parts):
    """What the means of two processes come to."""
    slots, barrier = [None, None], Barrier(2)

    def gather(rank):
        mean = WeightedMean()
        for part in parts[rank]:
            mean.add({name: torch.tensor([value]) for name, value in part.items()}, torch.ones(1))
        mean.gather(Thread(rank, slots, barrier), torch.device("cpu"))
        return mean.means()

    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(gather, rank) for rank in (0, 1)]]


def test_two_processes_add_up():
    one, other = gathered([{"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 2.0}], [{"a": 6.0, "b": 5.0}])
    assert one == other == {"a": 3.0, "b": 3.0}


def test_a_process_that_has_nothing_to_add_knows_the_sums_too():
    one, other = gathered([], [{"a": 6.0, "b": 5.0}])
    assert one == other == {"a": 6.0, "b": 5.0}
    assert gathered([], []) == [{}, {}]


ONLY = "'extra' came from some clients of a cohort only. The dict of an objective must have the same keys in every"


def test_a_name_that_some_clients_lack_is_refused_instead_of_a_wrong_mean():
    mean = WeightedMean()
    mean.add({"train_loss": torch.ones(2)}, torch.ones(2))
    with pytest.raises(ValueError, match=ONLY):
        mean.add({"train_loss": torch.ones(2), "train_extra": torch.ones(2)}, torch.ones(2))
    mean.add({"train_loss": torch.ones(2)}, torch.ones(2))
    assert mean.means() == {"train_loss": 1.0}


@pytest.mark.parametrize("order", [1, -1])
def test_a_name_that_another_process_lacks_is_refused_too(order):
    """Else a sum would run over the values of another name, or wait for ever."""
    parts = [[{"a": 1.0, "train_extra": 2.0}], [{"a": 1.0}]][::order]
    with pytest.raises(ValueError, match=ONLY):
        gathered(*parts)
