"""Ditto: personal models pulled to a global one that they leave alone."""

from __future__ import annotations

import pytest
import torch

from fedlightning import algorithms as fl
from tests.support.federations import loop_for, quadratic, rounds_of, run
from tests.support.personal import assert_models_follow
from tests.support.references.personal import ditto


def test_ditto_without_pull_trains_alone_and_never_moves_the_global_model():
    alone, pulled, plain = fl.Ditto(0.1, lam=0.0), fl.Ditto(0.1, lam=5.0), fl.FedAvg(0.1)
    task = quadratic(alone, dim_y=0)
    loops = [loop_for(task), *(loop_for(quadratic(algorithm, dim_y=0)) for algorithm in (pulled, plain))]
    points = [run(loop, rounds_of(alone, 60)) for loop in loops]
    assert torch.equal(points[0], points[2])
    assert torch.equal(points[1], points[2])
    own = -torch.linalg.solve(task.matrix, task.offset)
    torch.testing.assert_close(loops[0].clients.all("state.v"), own, rtol=1e-6, atol=1e-6)


def test_personal_models_follow_the_numpy_reference():
    assert_models_follow(ditto, fl.Ditto, {"lr": 0.05, "lam": 0.5, "lr_own": 0.04})


def test_a_negative_pull_is_refused():
    with pytest.raises(ValueError, match=r"Ditto\(lam=-1.0\)"):
        fl.Ditto(0.1, lam=-1.0)
