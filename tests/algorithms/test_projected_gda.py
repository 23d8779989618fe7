"""Projected GDA: FedAvg without a regularizer, and no sparse points with one."""

from __future__ import annotations

from fedlightning import algorithms as fl
from fedlightning.proximal import L1
from tests.support.federations import close, quadratic, rounds_of, run, train
from tests.support.regularized import assert_l1_and_box_follow, loop_with, with_and_without_maximum


@with_and_without_maximum
def test_trajectory_with_l1_and_box_equals_the_numpy_reference(dim_y):
    assert_l1_and_box_follow("ProjectedGDA", dim_y)


def test_without_regularizer_it_is_fed_avg():
    close(train(fl.ProjectedGDA(lr=0.05), size=4)[2], train(fl.FedAvg(lr=0.05), size=4)[2])


def test_a_subgradient_step_lands_on_no_zero_where_a_proximal_step_does():
    zeros = []
    for algorithm in (fl.ProjectedGDA(lr=0.05), fl.FedSGDA(lr=0.05)):
        points = run(loop_with(quadratic(algorithm), L1(1.5), L1(1.5)), rounds_of(algorithm, 200))
        zeros.append(int((points[-1] == 0).sum()))
    assert zeros[0] == 0 < zeros[1]
