"""Loops on quadratic problems with regularizers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedlightning import FederatedDataModule
from fedlightning.proximal import L1, compose
from tests.support.cases import CASES
from tests.support.federations import (
    K,
    cohorts_of,
    loop_for,
    numpy_operators,
    quadratic,
    rounds_of,
    run,
    space_of,
    start_of,
)
from tests.support.references.composite import L1Box
from tests.support.small import Line, clients, trainer

COMPOSITE = [name for name, case in CASES.items() if case.make.regularized]
PSI = {"regularizer": L1(0.3, radius=0.4), "max_regularizer": L1(0.3, radius=0.4)}


def loop_with(task, regularizer=None, max_regularizer=None, oracle=None):
    """A loop on a quadratic problem with regularizers of its two blocks."""
    return loop_for(task, oracle, regularizer=compose(space_of(task).shared, regularizer, max_regularizer))


with_and_without_maximum = pytest.mark.parametrize("dim_y", [3, 0], ids=["minimax", "minimisation"])
"""Marks tests of problems with a max block of three parameters, then with none."""


def assert_l1_and_box_follow(name, dim_y):
    """With an l1 norm and a box on every block the trajectory is that of the case's NumPy reference."""
    case = CASES[name]
    algorithm = case.algorithm()
    task = quadratic(algorithm, dim_y=dim_y)
    batches = rounds_of(algorithm, 6, size=4)
    psi = PSI if dim_y else {"regularizer": PSI["regularizer"]}
    trajectory = run(loop_with(task, **psi), batches)
    expected = case.reference(
        numpy_operators(task), start_of(task), cohorts_of(batches), K, psi=L1Box(0.3, 0.4), **case.hyper
    )
    torch.testing.assert_close(trajectory, torch.from_numpy(np.stack(expected)), rtol=1e-10, atol=1e-10)


def fitted_over_unequal_epochs(algorithm):
    """The task after two rounds of one local epoch of clients of unequal size, and the clients' local steps a round.

    Epochs end within a minibatch; an algorithm of two minibatches a step still gets two for each.
    """
    task, sizes = Line(algorithm), (5, 9, 10, 14)
    data = FederatedDataModule.from_datasets(clients(sizes=sizes), batch_size=4, local_epochs=1)
    trainer(max_steps=2).fit(task, data)
    return task, [math.ceil(n / 4) for n in sizes]
