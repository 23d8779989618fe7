"""FedADMM: partial participation on the lasso, and its stopping rule."""

from __future__ import annotations

import pytest

from fedlightning import algorithms as fl
from fedlightning.local import GradientDescent
from tests.support.lasso import (
    assert_a_fifth_of_the_clients_at_a_time_solves_it,
    assert_a_given_rule_replaces_the_methods_own,
)
from tests.support.regularized import assert_l1_and_box_follow, with_and_without_maximum


def test_a_fifth_of_the_clients_at_a_time_reaches_the_same_point():
    algorithm = fl.FedADMM(sigma=2.0, nu=0.6, solver=GradientDescent(lr=0.2, max_steps=20))
    assert_a_fifth_of_the_clients_at_a_time_solves_it(algorithm, 400)


def test_a_rule_of_the_users_replaces_the_methods_own():
    assert_a_given_rule_replaces_the_methods_own(fl.FedADMM, sigma=50.0)


def test_a_factor_of_one_is_refused():
    with pytest.raises(ValueError, match=r"FedADMM\(nu=1.0\): expected > 0 and < 1"):
        fl.FedADMM(sigma=1.0, nu=1.0)


@with_and_without_maximum
def test_trajectory_with_l1_and_box_equals_the_numpy_reference(dim_y):
    assert_l1_and_box_follow("FedADMM", dim_y)
