"""Mistakes are explained before a round is computed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import FedAvg
from tests.support.evaluated import two_rounds
from tests.support.small import Line, Personal, clients, fitted, trainer


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Line(weighting="sample"), ValueError, "weighting='sample': expected one of 'uniform', 'samples'"),
        (lambda: Line(buffers="avg"), ValueError, "buffers='avg': expected one of 'average', 'local'"),
        (lambda: Line(torch.optim.SGD), TypeError, "expected an object of a dataclass derived from"),
        (lambda: FedAvg("0.1"), TypeError, r"FedAvg\(lr='0.1'\): expected a number"),
        (lambda: FederatedDataModule.from_datasets(train=[]), ValueError, "give one data set a client"),
        (
            lambda: fitted(Line(FedAvg(0.1, local_optimizer=torch.optim.LBFGS))),
            ValueError,
            "local_optimizer=LBFGS is not elementwise",
        ),
        (
            lambda: fitted(Line(server_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)),
            ValueError,
            "server_scheduler=ReduceLROnPlateau",
        ),
        (
            lambda: trainer().fit(Personal(), torch.utils.data.DataLoader(clients()[0], batch_size=4)),
            TypeError,
            "instead of a round of cohorts",
        ),
    ],
)
def test_mistakes_are_explained(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_missing_objective_says_so():
    class Nothing(FederatedLightningModule):
        def __init__(self):
            super().__init__(FedAvg(0.1))
            self.line = nn.Linear(6, 1)

    with pytest.raises(TypeError, match=r"Nothing has no objective\. Write objective\(self, batch\): the loss of one"):
        two_rounds(Nothing())


def test_automatic_optimization_is_refused():
    task = Line()
    task.automatic_optimization = True
    with pytest.raises(TypeError, match=r"Line\.automatic_optimization is True"):
        two_rounds(task)
