"""Quadratic problems with personal blocks and personal models beside the NumPy references."""

from __future__ import annotations

import pytest
import torch

from tests.support.federations import (
    K,
    cohorts_of,
    loop_for,
    numpy_operators,
    personal_quadratic,
    quadratic,
    rounds_of,
    run,
    start_of,
)

SQUARE = {"dim_shared": 4, "dim_personal": 4}


def block_operators(task):
    """One function (u, v) -> (g_u, g_v) a client."""
    n = len(task.u)
    matrices, offsets = task.matrix.double().numpy(), task.offset.double().numpy()

    def make(matrix, offset):
        def operator(u, v):
            g = matrix[:, :n] @ u + matrix[:, n:] @ v + offset
            return g[:n], g[n:]

        return operator

    return [make(*pair) for pair in zip(matrices, offsets, strict=True)]


def check_kept(loop, kept):
    for name in kept[0]:
        stored = loop.clients.all(name if name == "personal" else f"state.{name}")
        for i, states in enumerate(kept):
            torch.testing.assert_close(stored[i], torch.as_tensor(states[name], dtype=torch.float64))


def distance_at_the_start(task):
    return (task.u.detach().double() - task.solution[0]).norm()


over_cohorts = pytest.mark.parametrize("size", [None, 3], ids=["all", "cohort"])
"""Marks tests that take all clients, then three of them a round."""


def assert_blocks_follow(reference, make, hyper, size):
    """Shared and personal blocks, and all that clients keep, follow a NumPy loop over six rounds."""
    algorithm = make(**hyper)
    task = personal_quadratic(algorithm, **SQUARE)
    loop, batches, kept = loop_for(task), rounds_of(algorithm, 6, size=size), []
    trajectory = run(loop, batches)
    u, v = (p.detach().numpy().copy() for p in (task.u, task.v))
    expected = reference(block_operators(task), u, cohorts_of(batches), K, **hyper, v=v, kept=kept)
    for ours, theirs in zip(trajectory, expected, strict=True):
        torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=1e-10, atol=1e-10)
    check_kept(loop, kept)


def assert_models_follow(reference, make, hyper):
    """All that clients keep beside their models follows a NumPy loop over six rounds of three clients."""
    algorithm = make(**hyper)
    task = quadratic(algorithm, dim_y=0)
    loop, batches, kept = loop_for(task), rounds_of(algorithm, 6, size=3), []
    run(loop, batches)
    reference(numpy_operators(task), start_of(task), cohorts_of(batches), K, **hyper, kept=kept)
    check_kept(loop, kept)
