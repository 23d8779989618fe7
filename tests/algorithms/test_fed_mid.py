"""FedMiD beside FedAvg, and with regularizers of matrices."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning import algorithms as fl
from fedlightning.proximal import GroupLasso, Nuclear, SpectralBall
from tests.support.federations import close, train
from tests.support.regularized import assert_l1_and_box_follow, with_and_without_maximum
from tests.support.small import Line, clients, trainer


@pytest.mark.filterwarnings("ignore:NaN or infinite numbers came from client 1")
@pytest.mark.parametrize("psi", [Nuclear(0.1), SpectralBall(1.0), GroupLasso(0.1)], ids=lambda psi: type(psi).__name__)
def test_a_client_with_nan_is_left_out_by_functions_of_matrices(psi):
    task = Line(fl.FedMiD(lr=0.01), regularizer={"body.0.weight": psi}, dropout=0.0)
    sets = clients()
    sets[1] = TensorDataset(torch.full((9, 6), torch.nan), torch.zeros(9))
    run_ = trainer(max_steps=2)
    run_.fit(task, FederatedDataModule.from_datasets(sets, batch_size=4, local_steps=2))
    assert run_.callback_metrics["left_out"] == 1
    assert all(p.isfinite().all() for p in task.parameters())


@with_and_without_maximum
def test_trajectory_with_l1_and_box_equals_the_numpy_reference(dim_y):
    assert_l1_and_box_follow("FedMiD", dim_y)


def test_without_regularizer_it_is_fed_avg():
    close(train(fl.FedMiD(lr=0.05), size=4)[2], train(fl.FedAvg(lr=0.05), size=4)[2])
