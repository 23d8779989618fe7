"""FedCP: a global head that follows the clients' own."""

from __future__ import annotations

import pytest

from fedlightning import algorithms as fl
from tests.support.federations import loop_for, personal_quadratic
from tests.support.personal import assert_blocks_follow, over_cohorts
from tests.support.references.personal import fed_cp


@over_cohorts
def test_both_blocks_follow_the_numpy_reference(size):
    assert_blocks_follow(fed_cp, fl.FedCP, {"lr": 0.05, "heads": ("u", "v"), "share": 0.4}, size)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.FedCP(0.1, share=0.0), r"FedCP\(share=0.0\): expected > 0 and <= 1"),
        (lambda: loop_for(personal_quadratic(fl.FedCP(0.1))), "heads: 'network.head' matches no trainable parameter"),
        (lambda: loop_for(personal_quadratic(fl.FedCP(0.1, heads=("u", "v")))), r"got '' \[3\] beside '' \[5\]"),
    ],
)
def test_wrong_hyper_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
