"""FedAPM: the Schur-complement solution under partial participation, weights, its stopping rule."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.federation.sampling.cohort import RoundBatch
from tests.support.federations import loop_for, personal_quadratic, quadratic, rounds_of, run
from tests.support.personal import assert_blocks_follow, distance_at_the_start, over_cohorts
from tests.support.references.personal import fed_apm

N = 10
APM = {"lr": 0.15, "rho": 2.0, "sigma": 0.1}


def solve(algorithm, rounds, seed=0):
    """Distances to the Schur-complement solution under 30 % participation, and the largest sum of duals met."""
    task = personal_quadratic(algorithm, num_clients=N, dim_shared=3, dim_personal=2)
    loop = loop_for(task)
    duals = []
    for batch in rounds_of(algorithm, rounds, num_clients=N, size=3, local_steps=4, seed=seed):
        run(loop, [batch])
        state, z = loop.client_state(loop.clients.of(range(N))), loop.point
        duals.append((state.pi + algorithm.rho * (state.u - z)).sum(0).abs().max())
    u, v = task.solution
    distances = (loop.point - u).norm(), (loop.clients.all("personal") - v).norm()
    return distances, torch.stack(duals), state


@pytest.mark.slow
@pytest.mark.parametrize("start", ["local", "shared"])
def test_fed_apm_reaches_the_schur_solution_under_partial_participation(start):
    (shared, personal), duals, state = solve(fl.FedAPM(**APM, start=start), rounds=280)
    assert shared < 1e-8
    assert personal < 1e-8
    assert duals.max() < 1e-12
    assert state.pi.sum(0).abs().max() < 1e-8
    assert state.pi.abs().max() > 0.1


@dataclass(frozen=True)
class CohortUpload:
    dz: torch.Tensor


@dataclass(frozen=True, eq=False)
class CohortMean(fl.FedAPM):
    """FedAPM as it must not be: the mean over the cohort in place of all N clients."""

    def client_update(self, message, state, oracle):
        reply = super().client_update(message, state, oracle)
        new = reply.state
        return fl.Reply(CohortUpload(new.u + new.pi / self.rho), new, reply.personal, point=new.u)

    def server_update(self, server, update):
        return fl.Point(update.dz)


def test_the_mean_over_the_cohort_misses_the_solution():
    (shared, _), duals, _ = solve(CohortMean(**APM), rounds=150)
    task = personal_quadratic(CohortMean(**APM), num_clients=N, dim_shared=3, dim_personal=2)
    assert 1e-2 < shared < 0.5 * distance_at_the_start(task)
    assert duals[100:].min() > 1e-2


@pytest.mark.slow
def test_fed_apm_weighs_clients_by_their_samples():
    algorithm, sizes = fl.FedAPM(**APM), [1, 5, 2, 8, 3, 1]
    task = personal_quadratic(algorithm, dim_shared=3, dim_personal=2)
    loop = loop_for(task, weighting="samples")
    for batch in rounds_of(algorithm, 250, size=3, local_steps=4):
        (cohort,) = batch.cohorts
        members = tuple(replace(member, size=sizes[member.id]) for member in cohort.members)
        run(loop, [RoundBatch(batch.index, (replace(cohort, members=members),), torch.tensor(sizes))])
    n, weights = len(task.u), torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    matrix, offset = task.matrix.double(), task.offset.double()
    coupling = matrix[:, :n, n:] @ torch.linalg.inv(matrix[:, n:, n:])
    schur = torch.einsum("i,ijk->jk", weights, matrix[:, :n, :n] - coupling @ matrix[:, n:, :n])
    rest = weights @ (offset[:, :n] - (coupling @ offset[:, n:, None]).squeeze(2))
    torch.testing.assert_close(loop.point, torch.linalg.solve(schur, -rest), rtol=1e-7, atol=1e-7)
    assert (loop.point - task.solution[0]).norm() > 1e-2


def test_fed_apm_stops_where_the_gradient_is_small():
    evaluations = []
    for tolerance in (0.0, 1e3):
        algorithm = fl.FedAPM(0.05, tolerance=tolerance, decay=1.0)
        task = personal_quadratic(algorithm)
        start = task.u.detach().clone()
        loop = loop_for(task)
        run(loop, rounds_of(algorithm, 1))
        evaluations.append((loop.point - start).norm())
    assert evaluations[0] > 1e-2
    assert evaluations[1] == 0


@over_cohorts
@pytest.mark.parametrize(
    "hyper",
    [{"sigma": 0.5, "tolerance": 2.0, "decay": 0.9}, {"personal_passes": 2, "start": "shared"}],
    ids=["local", "shared"],
)
def test_both_blocks_follow_the_numpy_reference(hyper, size):
    assert_blocks_follow(fed_apm, fl.FedAPM, {"lr": 0.05, "rho": 0.7, **hyper}, size)


def test_a_server_optimizer_cannot_move_what_is_computed():
    with pytest.raises(ValueError, match="FedAPM computes the point from its server state"):
        quadratic(fl.FedAPM(lr=0.1), server_clip=1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.FedAPM(0.1, rho=0.0), r"FedAPM\(rho=0.0\): expected > 0"),
        (lambda: fl.FedAPM(0.1, sigma=-1.0), r"FedAPM\(sigma=-1.0\): expected >= 0"),
        (lambda: fl.FedAPM(0.1, decay=1.5), r"FedAPM\(decay=1.5\): expected > 0 and <= 1"),
        (lambda: fl.FedAPM(0.1, start="zero"), "'local' or 'shared'"),
    ],
)
def test_wrong_hyper_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
