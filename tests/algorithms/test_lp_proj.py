"""LpProj: the mean of the infimal convolutions is minimised, and a sketch travels alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.federation.sampling.cohort import RoundBatch
from tests.support.federations import loop_for, quadratic, rounds_of, run
from tests.support.personal import assert_models_follow
from tests.support.references.personal import lp_proj, sketch


@pytest.mark.slow
def test_lp_proj_minimises_the_mean_of_the_infimal_convolutions():
    lam, k = 4.0, 2
    algorithm = fl.LpProj(0.1, dim=k, lam=lam, lr_reference=0.2, inner_steps=30)
    task = quadratic(algorithm, dim_y=0)
    loop = loop_for(task)
    run(loop, rounds_of(algorithm, 80, local_steps=1))
    P = torch.from_numpy(sketch((5,), k, algorithm.seed))
    inverse = torch.linalg.inv(task.matrix + lam * P.T @ P)  # theta_i(w) = inverse_i (lam P' w - offset_i)
    pull = torch.eye(k, dtype=torch.float64) - lam * P @ inverse @ P.T  # gradient of h_i(w) / lam
    rest = P @ (inverse @ task.offset.unsqueeze(2))
    w = torch.linalg.solve(pull.sum(0), -rest.sum(0)).squeeze(1)
    torch.testing.assert_close(loop.state.w, w, rtol=1e-6, atol=1e-6)
    theta = (inverse @ (lam * P.T @ w - task.offset).unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(loop.clients.all("state.theta"), theta, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(P @ loop.point, w, rtol=1e-6, atol=1e-6)
    off = loop.point - loop.state.start
    torch.testing.assert_close(P.T @ (P @ off), off)  # nothing moved but what w can tell


@pytest.mark.parametrize("p", [1, 2])
def test_lp_proj_sends_the_reference_alone(p):
    algorithm = fl.LpProj(0.05, dim=3, p=p)
    loop = loop_for(quadratic(algorithm))
    run(loop, rounds_of(algorithm, 4, size=2))
    assert (loop.upload, loop.download) == (4 * 2 * 3, 4 * 2 * 3)


def test_lp_proj_of_full_length_starts_as_p_fed_me():
    hyper = {"lam": 2.0, "inner_steps": 3, "beta": 0.9}
    whole, envelopes = fl.LpProj(0.1, dim=5, lr_reference=0.05, **hyper), fl.pFedMe(0.05, lr_own=0.1, **hyper)
    loops = [loop_for(quadratic(algorithm, dim_y=0)) for algorithm in (whole, envelopes)]
    points = [run(loop, rounds_of(whole, 1)) for loop in loops]  # from the second on pFedMe starts theta anew
    torch.testing.assert_close(points[0], points[1], rtol=1e-10, atol=1e-10)


def test_a_client_without_minibatches_rests():
    algorithm = fl.LpProj(0.05, dim=2)
    task = quadratic(algorithm, dim_y=0)
    ends = []
    for steps in ([3, 3], [3, 1]):
        loop = loop_for(task)
        (batch,) = rounds_of(algorithm, 1, size=2)
        (cohort,) = batch.cohorts
        members = tuple(replace(d, index=d.index[:n]) for d, n in zip(cohort.members, steps, strict=True))
        run(loop, [RoundBatch(0, (replace(cohort, members=members),), batch.samples)])
        ends.append(loop.clients.all("state.theta")[[d.id for d in members]])
    torch.testing.assert_close(ends[0][0], ends[1][0], rtol=1e-13, atol=0.0)  # products of one client round otherwise
    assert (ends[0][1] - ends[1][1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    "hyper",
    [
        {"dim": 3, "lam": 0.5, "lr_reference": 0.3, "inner_steps": 2},
        {"dim": 2, "lam": 0.3, "p": 1, "beta": 0.7, "seed": 4},
    ],
    ids=["2", "1"],
)
def test_personal_models_follow_the_numpy_reference(hyper):
    assert_models_follow(lp_proj, fl.LpProj, {"lr": 0.05, **hyper})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.LpProj(0.1, dim=0), r"LpProj\(dim=0\): expected >= 1"),
        (lambda: fl.LpProj(0.1, dim=3, p=3), r"LpProj\(p=3\): expected 1 or 2"),
        (lambda: loop_for(quadratic(fl.LpProj(0.1, dim=1))), r"LpProj\(dim=1\): expected 2 to 8"),
        (lambda: loop_for(quadratic(fl.LpProj(0.1, dim=9))), r"LpProj\(dim=9\): expected 2 to 8"),
    ],
)
def test_wrong_hyper_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
