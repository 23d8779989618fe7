"""Means over cohorts, over all clients and over processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier

import pytest
import torch
from torch import Tensor

from fedlightning.algorithms import FedAvg, over_all_clients
from fedlightning.federation.aggregation import CohortMean, WeightedMean, finite_clients
from fedlightning.federation.protocol import Answer, Roster, Stamp
from tests.support.small import Line, clients, fitted, regression_data


@dataclass(frozen=True)
class Up:
    w: Tensor
    c: Tensor = over_all_clients()


def answer(clients, w, c, sound=None):
    buffers = torch.empty(len(clients), 0)
    return Answer(Stamp(0, 0), clients, Up(w, c), buffers, {"norm": w.norm(dim=1)}, per_client=("norm",), sound=sound)


@pytest.mark.parametrize("by_samples", [False, True])
def test_means_over_the_cohort_and_over_all_clients(by_samples):
    samples = torch.tensor([9, 1, 2, 3, 4, 5, 6])
    cohort = CohortMean(Roster(samples), by_samples)
    w, c = torch.randn(5, 3), torch.randn(5, 2)
    for part in (slice(0, 2), slice(2, 5)):
        cohort.add(answer(list(range(1, 6))[part], w[part], c[part]))
    weights = samples[1:6].float() if by_samples else torch.ones(5)
    update = cohort.update()
    torch.testing.assert_close(update.w, (weights[:, None] * w).sum(0) / weights.sum())
    torch.testing.assert_close(update.c, (weights[:, None] * c).sum(0) / (30 if by_samples else 7))
    assert (cohort.accepted, cohort.left_out, cohort.floats) == ([1, 2, 3, 4, 5], [], 25)
    torch.testing.assert_close(cohort.columns()["norm"].values, w.norm(dim=1))


def test_who_sends_or_keeps_what_is_not_finite_is_left_out():
    cohort = CohortMean(Roster(torch.ones(4)), by_samples=False)
    w = torch.randn(4, 3)
    sent = w.clone()
    sent[1, 0] = torch.nan
    cohort.add(answer([0, 1, 2, 3], sent, torch.ones(4, 2), torch.tensor([True, True, True, False])))
    torch.testing.assert_close(cohort.update().w, w[[0, 2]].mean(0))
    assert (cohort.accepted, cohort.left_out) == ([0, 2], [1, 3])
    assert not cohort.is_whole
    assert cohort.metrics()["left_out"] == 2
    assert cohort.columns()["norm"].counted.tolist() == [True, False, True, False]


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

    count = 2

    def collect(self, value):
        self.slots[self.rank] = value
        self.barrier.wait(timeout=10)
        values = list(self.slots)
        self.barrier.wait(timeout=10)
        return values

    def sum(self, tensor):
        one, other = self.collect(tensor)
        assert one.shape == other.shape
        return one + other


def gathered(*parts):
    """What the means of two processes come to."""
    slots, barrier = [None, None], Barrier(2)

    def gather(rank):
        mean = WeightedMean()
        for part in parts[rank]:
            mean.add({name: torch.as_tensor(value)[None] for name, value in part.items()}, torch.ones(1))
        mean.gather(Thread(rank, slots, barrier), torch.device("cpu"))
        return mean.means()

    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(gather, rank) for rank in (0, 1)]]


def test_two_processes_add_up():
    one, other = gathered([{"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 2.0}], [{"a": 6.0, "b": 5.0}])
    assert one == other == {"a": 3.0, "b": 3.0}


def test_names_in_another_order_are_not_taken_for_each_other():
    one, other = gathered([{"a": 1.0, "b": 20.0}], [{"b": 40.0, "a": 3.0}])
    assert one == other == {"a": 2.0, "b": 30.0}


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


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("other", "message"),
    [
        ([1.0, 2.0, 3.0], r"sent 'b' in different shapes, \[2?3?\] and \[2?3?\]\. If it holds something of every"),
        (torch.ones(2, dtype=torch.float64), r"sent 'b' as torch\.float\d\d and torch\.float\d\d\."),
    ],
)
def test_a_value_that_has_another_form_in_another_process_is_refused_too(order, other, message):
    """Else both would wait for ever."""
    parts = [[{"a": 1.0, "b": [1.0, 2.0]}], [{"a": 1.0, "b": other}]][::order]
    with pytest.raises(ValueError, match=message):
        gathered(*parts)


def test_weighting_by_samples_is_the_gradient_of_the_pooled_data():
    torch.manual_seed(0)
    task = Line(FedAvg(0.1), dropout=0.0, weighting="samples").double()
    before = torch.cat([p.detach().flatten() for p in task.parameters()])
    x = torch.cat([c.tensors[0] for c in clients()]).double()
    y = torch.cat([c.tensors[1] for c in clients()]).double()
    grads = torch.autograd.grad(task.objective((x, y))["loss"], list(task.parameters()))
    fitted(task, regression_data(batch_size=None, local_steps=1), max_steps=1, precision="64-true")
    expected = before - 0.1 * torch.cat([g.flatten() for g in grads])
    torch.testing.assert_close(task.server_state.z, expected, rtol=1e-12, atol=1e-12)
