"""Means of losses and scalars over the evaluations that count."""

from __future__ import annotations

import pytest
import torch

from fedlightning.oracle.errors import ObjectiveError
from fedlightning.oracle.minibatch import Rows
from fedlightning.oracle.tally import Tally

STEPS = torch.zeros(3, dtype=torch.float64)


def values(*loss, **more):
    return {"loss": torch.tensor(loss, dtype=torch.float64), **more}


def test_each_client_averages_over_the_evaluations_it_took_part_in():
    tally = Tally(STEPS)
    tally.add(values(1.0, 2.0, 3.0))
    tally.add(values(3.0, torch.nan, 5.0), torch.tensor([True, False, True]))  # padding may hold anything
    assert tally.means()["loss"].tolist() == [2.0, 2.0, 4.0]
    assert tally.counted().all()


def test_a_client_that_never_took_part_has_no_mean():
    tally = Tally(STEPS)
    tally.add(values(1.0, 2.0, 3.0), torch.tensor([True, False, True]))
    assert tally.means()["loss"].isnan().tolist() == [False, True, False]
    assert tally.counted().tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_whole_numbers_have_means(dtype):
    tally = Tally(STEPS)
    numbers = torch.tensor([1, 0, 1], dtype=dtype)
    tally.add({"count": numbers})
    tally.add({"count": numbers[[0, 2]]}, torch.tensor([True, False]), Rows.at([0, 2], torch.device("cpu")))
    assert tally.means()["count"].tolist() == [1.0, 0.0, 1.0]


def test_nothing_counted_is_no_mean_at_all():
    tally = Tally(STEPS)
    assert tally.means() == {}
    assert tally.counted().tolist() == [False] * 3


def test_a_value_that_comes_and_goes_is_refused():
    tally = Tally(STEPS)
    tally.add(values(1.0, 2.0, 3.0, extra=torch.ones(3)))
    tally.add(values(1.0, 2.0, 3.0))
    with pytest.raises(ObjectiveError, match="returned 'extra' in 1 of 2 evaluations"):
        tally.means()
