"""Nearest-neighbour mixing gives rules the means of neighbours."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel import Krum, Mean, Median, NearestNeighbourMixing, TrimmedMean
from fedlightning.channel.robust.mixing import MixedRows
from fedlightning.channel.robust.rows import ClientRows
from tests.support.references import robust as references
from tests.support.rules import RULES, aggregated, drawn


@pytest.mark.parametrize("name", ["median", "trimmed mean", "Multi-Krum", "geometric median", "centred clipping"])
@pytest.mark.parametrize("columns", [None, 5])
def test_rules_see_the_means_of_neighbours(name, columns):
    rows, inner = drawn(), RULES[name]
    expected = aggregated(inner, torch.from_numpy(references.mixed(rows.numpy(), 3)))
    found = aggregated(NearestNeighbourMixing(inner, 3), rows, columns=columns)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_mixed_rows_are_the_product():
    values, mixing = drawn(5), torch.softmax(drawn(5, 5, seed=1), dim=1)
    rows, whole = MixedRows(ClientRows([values], range(5), columns=8), mixing), mixing @ values
    torch.testing.assert_close(torch.cat(list(rows.blocks()), dim=1), whole)
    about, weights = drawn(1, seed=2)[0], drawn(1, 5, seed=3)[0]
    torch.testing.assert_close(rows.gram(about), (whole - about) @ (whole - about).T)
    torch.testing.assert_close(rows.combine(weights), weights @ whole)
    assert rows.count == 5


def test_points_on_a_line_by_hand():
    rows = torch.tensor([[0.0], [1.0], [3.0], [100.0]])  # means of three: 4/3, 4/3, 4/3, 104/3
    assert aggregated(NearestNeighbourMixing(Median(), 1), rows).tolist() == [pytest.approx(4 / 3)]
    assert aggregated(NearestNeighbourMixing(Mean(), 1), rows).tolist() == [pytest.approx((4 + 104 / 3) / 4)]


def test_of_equal_distances_the_smaller_id_is_nearer():
    rows = torch.tensor([[-1.0], [0.0], [1.0]])  # means of two: -1/2, -1/2, 1/2
    assert aggregated(NearestNeighbourMixing(Mean(), 1), rows).tolist() == [pytest.approx(-1 / 6)]


def test_sixteen_bit_updates_stay_so():
    assert aggregated(NearestNeighbourMixing(Median(), 1), drawn(5, dtype=torch.float16)).dtype == torch.float16


def test_mixing_and_inner_rule_need_enough_clients():
    assert NearestNeighbourMixing(Median(), 3).fewest == 7
    assert NearestNeighbourMixing(Krum(3), 3).fewest == 9
    with pytest.raises(ValueError, match=r"^NearestNeighbourMixing\(inner=Krum.*needs the updates of 9 clients"):
        aggregated(NearestNeighbourMixing(Krum(3), 3), drawn(8))


def test_arguments_are_checked():
    with pytest.raises(TypeError, match=r"NearestNeighbourMixing\(inner=Median\)"):
        NearestNeighbourMixing(Median, 1)
    with pytest.raises(ValueError, match=r"NearestNeighbourMixing\(adversaries=-1\)"):
        NearestNeighbourMixing(TrimmedMean(0.2), -1)


def test_before_the_mean_it_withstands_nobody():
    """An adversary is its own nearest neighbour."""
    rows = torch.cat([drawn(), torch.full((1, 37), 1e9, dtype=torch.float64)])
    assert (aggregated(NearestNeighbourMixing(Mean(), 1), rows) > 1e6).all()
