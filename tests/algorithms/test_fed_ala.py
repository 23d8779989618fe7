"""FedALA: personal models take over what lowers their losses."""

from __future__ import annotations

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.oracle import Autocast
from tests.support.federations import loop_for, quadratic, rounds_of, run
from tests.support.personal import assert_models_follow
from tests.support.references.personal import fed_ala


def test_fed_ala_takes_over_what_lowers_its_loss():
    algorithm = fl.FedALA(0.05, lr_weights=0.5, first_passes=20)
    task = quadratic(algorithm, dim_y=0)
    loop = loop_for(task)
    run(loop, rounds_of(algorithm, 1))
    v, z = loop.clients.all("state.v"), loop.point

    def losses(points):
        return torch.stack([p @ m @ p / 2 + q @ p for p, m, q in zip(points, task.matrix, task.offset, strict=True)])

    run(loop, rounds_of(algorithm, 1, start=1))
    a = loop.clients.all("state.a")
    assert a.min() >= 0
    assert a.max() <= 1
    assert 0.01 < a.mean() < 0.99
    best = losses(v + a * (z - v))
    assert (best < losses(z.expand_as(v))).all()
    assert (best <= losses(v) + 1e-9).all()


def test_fed_ala_that_takes_over_everything_is_fed_avg():
    algorithm = fl.FedALA(0.05, adaptive=0.0)
    batches = rounds_of(algorithm, 4, size=3)
    ours, plain = (run(loop_for(quadratic(a)), batches) for a in (algorithm, fl.FedAvg(0.05)))
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize(("adaptive", "choosing"), [(1.0, slice(None)), ([0.0, 1.0], slice(5, None))])
def test_fed_ala_logs_the_share_of_those_that_choose(adaptive, choosing):
    algorithm = fl.FedALA(0.05, lr_weights=0.5, first_passes=2, adaptive=adaptive)
    loop = loop_for(quadratic(algorithm))
    run(loop, rounds_of(algorithm, 1))
    (batch,) = rounds_of(algorithm, 1, start=1)
    logged = loop.run(batch, Autocast("cpu")).metrics["share"]
    share = loop.clients.all("state.a")[:, choosing].mean()
    assert 0 < share < 1
    torch.testing.assert_close(torch.as_tensor(logged).double(), share)


def test_personal_models_follow_the_numpy_reference():
    assert_models_follow(fed_ala, fl.FedALA, {"lr": 0.05, "lr_weights": 0.3, "first_passes": 2})


def test_a_share_above_one_is_refused():
    with pytest.raises(ValueError, match=r"FedALA\(adaptive=2.0\): expected >= 0 and <= 1"):
        fl.FedALA(0.1, adaptive=2.0)
