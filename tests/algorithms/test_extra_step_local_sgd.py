"""Extra Step Local SGD: extragradient of one client, and whole steps."""

from __future__ import annotations

import torch

from fedlightning import algorithms as fl
from tests.support.federations import close, start_of, train
from tests.support.regularized import assert_l1_and_box_follow, fitted_over_unequal_epochs, with_and_without_maximum


@with_and_without_maximum
def test_trajectory_with_l1_and_box_equals_the_numpy_reference(dim_y):
    assert_l1_and_box_follow("ExtraStepLocalSGD", dim_y)


def test_one_client_and_one_step_are_extragradient():
    """On a quadratic problem z becomes z - lr * (M (z - lr * (M z + q)) + q)."""
    task, _, trajectory = train(fl.ExtraStepLocalSGD(lr=0.1), rounds=1, num_clients=1, local_steps=1)
    z, matrix, offset = torch.from_numpy(start_of(task)), task.matrix[0], task.offset[0]
    half = z - 0.1 * (matrix @ z + offset)
    close(trajectory[-1], z - 0.1 * (matrix @ half + offset))


def test_extra_steps_take_whole_local_steps_with_local_epochs():
    fitted_over_unequal_epochs(fl.ExtraStepLocalSGD(lr=0.01))
