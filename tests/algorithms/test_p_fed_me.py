"""pFedMe: the mean of the Moreau envelopes is minimised."""

from __future__ import annotations

import pytest
import torch

from fedlightning import algorithms as fl
from tests.support.federations import loop_for, quadratic, rounds_of, run
from tests.support.personal import assert_models_follow
from tests.support.references.personal import p_fed_me


@pytest.mark.slow
def test_p_fed_me_minimises_the_mean_of_the_envelopes():
    algorithm = fl.pFedMe(0.25, lam=4.0, lr_own=0.1, inner_steps=30)
    task = quadratic(algorithm, dim_y=0)
    loop = loop_for(task)
    run(loop, rounds_of(algorithm, 80, local_steps=1))
    identity = torch.eye(5, dtype=torch.float64)
    pull = identity - 4.0 * torch.linalg.inv(task.matrix + 4.0 * identity)  # gradient of the envelope / lambda
    rest = torch.linalg.solve(task.matrix + 4.0 * identity, task.offset)
    z = torch.linalg.solve(pull.sum(0), -rest.sum(0))
    torch.testing.assert_close(loop.point, z, rtol=1e-6, atol=1e-6)
    theta = torch.linalg.solve(task.matrix + 4.0 * identity, 4.0 * z - task.offset)
    torch.testing.assert_close(loop.clients.all("state.theta"), theta, rtol=1e-6, atol=1e-6)


def test_personal_models_follow_the_numpy_reference():
    assert_models_follow(p_fed_me, fl.pFedMe, {"lr": 0.05, "lam": 2.0, "lr_own": 0.1, "inner_steps": 3})


def test_a_penalty_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"pFedMe\(lam=0.0\)"):
        fl.pFedMe(0.1, lam=0.0)
