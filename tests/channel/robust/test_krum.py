"""Krum and Multi-Krum choose by the sums of squared distances to neighbours."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel import Krum, MultiKrum
from tests.support.references import robust as references
from tests.support.rules import aggregated, drawn


@pytest.mark.parametrize(("count", "adversaries"), [(3, 0), (5, 1), (11, 3), (11, 4), (20, 2)])
def test_krum_takes_the_update_with_the_smallest_score(count, adversaries):
    for seed in range(5):
        rows = drawn(count, seed=seed)
        scores = references.krum_scores(rows.numpy(), adversaries)
        assert torch.equal(aggregated(Krum(adversaries), rows), rows[scores.argmin()])


@pytest.mark.parametrize("selected", [None, 1, 5, 8])
def test_multi_krum_averages_the_best(selected):
    for seed in range(5):
        rows = drawn(11, seed=seed)
        expected = references.multi_krum(rows.numpy(), 3, selected or 8)
        torch.testing.assert_close(aggregated(MultiKrum(3, selected), rows), torch.from_numpy(expected))
    assert torch.equal(aggregated(MultiKrum(3, 1), rows), aggregated(Krum(3), rows))


def test_points_on_a_line_by_hand():
    rows = torch.tensor([[0.0], [1.0], [3.0], [7.0], [20.0]])  # f = 1: two nearest others, 10, 5, 13, 52, 458
    assert aggregated(Krum(1), rows).tolist() == [1.0]
    assert aggregated(MultiKrum(1, 3), rows).tolist() == [pytest.approx(4 / 3)]


def test_of_equal_scores_the_smaller_id_wins():
    rows = torch.tensor([[5.0], [0.0], [1.0]])
    assert aggregated(Krum(0), rows).tolist() == [0.0]


@pytest.mark.parametrize("rule", [Krum(2), MultiKrum(2), MultiKrum(2, 5)])
def test_small_cohorts_are_refused(rule):
    assert rule.fewest == 7
    aggregated(rule, drawn(7))
    with pytest.raises(ValueError, match=r"Krum\(adversaries=2.*needs the updates of 7 clients.*Lower the number"):
        aggregated(rule, drawn(6))


def test_more_cannot_be_selected_than_adversaries_leave():
    assert MultiKrum(2, 9).fewest == 11
    with pytest.raises(ValueError, match="11 clients or more, and only 10 count"):
        aggregated(MultiKrum(2, 9), drawn(10))


@pytest.mark.parametrize("make", [lambda: Krum(-1), lambda: MultiKrum(-1), lambda: MultiKrum(1, 0)])
def test_numbers_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="Krum\\("):
        make()


def test_numbers_of_adversaries_are_whole():
    with pytest.raises(TypeError, match="whole number"):
        Krum(0.2)


def test_an_adversary_is_taken_where_it_is_closest_of_all():
    """Krum returns one client's update, honest or not: bounded, not free of adversaries."""
    honest = drawn(8)
    rows = torch.cat([honest, honest.mean(dim=0, keepdim=True).expand(3, -1)])
    assert torch.equal(aggregated(Krum(3), rows), rows[8])
