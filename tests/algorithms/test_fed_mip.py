"""FedMiP: extra steps, with and without regularizers."""

from __future__ import annotations

from fedlightning import algorithms as fl
from tests.support.federations import close, train
from tests.support.regularized import assert_l1_and_box_follow, fitted_over_unequal_epochs, with_and_without_maximum


@with_and_without_maximum
def test_trajectory_with_l1_and_box_equals_the_numpy_reference(dim_y):
    assert_l1_and_box_follow("FedMiP", dim_y)


def test_without_regularizer_it_is_extra_step_local_sgd():
    close(train(fl.FedMiP(lr=0.05), size=4)[2], train(fl.ExtraStepLocalSGD(lr=0.05), size=4)[2])


def test_extra_steps_take_whole_local_steps_with_local_epochs():
    fitted_over_unequal_epochs(fl.FedMiP(lr=0.01))
