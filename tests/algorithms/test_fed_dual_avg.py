"""FedDualAvg beside FedAvg, and over the simplex."""

from __future__ import annotations

import torch

from fedlightning import algorithms as fl
from tests.support.federations import loop_for, quadratic, rounds_of, run
from tests.support.regularized import assert_l1_and_box_follow, with_and_without_maximum


def test_dual_averaging_without_regulariser_is_fed_avg():
    dual, primal = fl.FedDualAvg(lr=0.05), fl.FedAvg(lr=0.05)
    batches = rounds_of(dual, 4, size=4)
    ours, theirs = run(loop_for(quadratic(dual)), batches), run(loop_for(quadratic(primal)), batches)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@with_and_without_maximum
def test_trajectory_with_l1_and_box_equals_the_numpy_reference(dim_y):
    assert_l1_and_box_follow("FedDualAvg", dim_y)
