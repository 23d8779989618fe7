"""Personal blocks and personal models: every algorithm with a personal block, and what the methods for them promise."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.federation.client_group import for_clients
from fedlightning.federation.cohort import RoundBatch
from fedlightning.federation.transport import InProcess
from fedlightning.local import SVRG, FixedSteps, GradientDescent, LocalSteps
from fedlightning.oracle import Autocast, Sequential, Vectorized
from tests.support.cases import CASES
from tests.support.federations import (
    CLIENTS,
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
from tests.support.references.personal import (
    ditto,
    fed_ala,
    fed_alt,
    fed_apm,
    fed_cp,
    fed_sim,
    lp_proj,
    p_fed_me,
    sketch,
)

BLOCKS = {
    "FedSim": (fl.FedSim, {"lr": 0.05}, fed_sim),
    "FedAlt": (fl.FedAlt, {"lr": 0.05, "personal_passes": 2}, fed_alt),
    "FedCP": (fl.FedCP, {"lr": 0.05, "heads": ("u", "v"), "share": 0.4}, fed_cp),
    "FedAPM": (fl.FedAPM, {"lr": 0.05, "rho": 0.7, "sigma": 0.5, "tolerance": 2.0, "decay": 0.9}, fed_apm),
    "FedAPM, shared": (fl.FedAPM, {"lr": 0.05, "rho": 0.7, "personal_passes": 2, "start": "shared"}, fed_apm),
}
SQUARE = {"dim_shared": 4, "dim_personal": 4}
MODELS = {
    "FedALA": (fl.FedALA, {"lr": 0.05, "lr_weights": 0.3, "first_passes": 2}, fed_ala),
    "Ditto": (fl.Ditto, {"lr": 0.05, "lam": 0.5, "lr_own": 0.04}, ditto),
    "LpProj, 2": (fl.LpProj, {"lr": 0.05, "dim": 3, "lam": 0.5, "lr_reference": 0.3, "inner_steps": 2}, lp_proj),
    "LpProj, 1": (fl.LpProj, {"lr": 0.05, "dim": 2, "lam": 0.3, "p": 1, "beta": 0.7, "seed": 4}, lp_proj),
    "pFedMe": (fl.pFedMe, {"lr": 0.05, "lam": 2.0, "lr_own": 0.1, "inner_steps": 3}, p_fed_me),
}


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


@pytest.mark.parametrize("size", [None, 3], ids=["all", "cohort"])
@pytest.mark.parametrize("name", BLOCKS)
def test_both_blocks_follow_the_numpy_reference(name, size):
    make, hyper, reference = BLOCKS[name]
    algorithm = make(**hyper)
    task = personal_quadratic(algorithm, **SQUARE)
    loop, batches, kept = loop_for(task), rounds_of(algorithm, 6, size=size), []
    trajectory = run(loop, batches)
    u, v = (p.detach().numpy().copy() for p in (task.u, task.v))
    expected = reference(block_operators(task), u, cohorts_of(batches), K, **hyper, v=v, kept=kept)
    for ours, theirs in zip(trajectory, expected, strict=True):
        torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=1e-10, atol=1e-10)
    check_kept(loop, kept)


@pytest.mark.parametrize("name", MODELS)
def test_personal_models_follow_the_numpy_reference(name):
    make, hyper, reference = MODELS[name]
    algorithm = make(**hyper)
    task = quadratic(algorithm, dim_y=0)
    loop, batches, kept = loop_for(task), rounds_of(algorithm, 6, size=3), []
    run(loop, batches)
    reference(numpy_operators(task), start_of(task), cohorts_of(batches), K, **hyper, kept=kept)
    check_kept(loop, kept)


@pytest.mark.parametrize("name", CASES)
def test_personal_rows_never_appear_in_a_message(name, monkeypatch):
    sent, received = [], []
    ask = InProcess.ask

    def overheard(self, request, invited):
        message = for_clients(request.message, invited)
        received.extend(value for value in vars(message).values() if isinstance(value, torch.Tensor))
        for answer in ask(self, request, invited):
            update = {} if answer.update is None else vars(answer.update)
            sent.extend(value for value in update.values() if isinstance(value, torch.Tensor))
            yield answer

    monkeypatch.setattr(InProcess, "ask", overheard)
    algorithm = CASES[name].personal_algorithm()
    task = personal_quadratic(algorithm, **CASES[name].problem)
    loop = loop_for(task)
    personal = [task.v.detach()]
    for batch in rounds_of(algorithm, 3, size=4):
        run(loop, [batch])
        personal.append(loop.clients.all("personal").flatten())
    assert not torch.equal(personal[-1], personal[-2])
    assert sent
    unit = CASES[name].sent or len(task.u)
    assert {value.shape[1:] for value in sent} <= {(unit,), ()}  # nothing wider, and numbers of a client
    for messages in (sent, received):
        numbers = torch.cat([message.flatten() for message in messages])
        assert not torch.isin(torch.cat(personal), numbers).any()


@pytest.mark.parametrize("name", CASES)
def test_with_a_personal_block_ways_to_compute_agree_and_runs_resume(name):
    algorithm = CASES[name].personal_algorithm()
    batches = rounds_of(algorithm, 4, size=4)
    loops = [
        loop_for(personal_quadratic(algorithm, **CASES[name].problem), oracle)
        for oracle in (Vectorized(), Sequential())
    ]
    whole, one_by_one = (run(loop, batches) for loop in loops)
    torch.testing.assert_close(whole, one_by_one, rtol=1e-12, atol=1e-12)
    first, second = (loop_for(personal_quadratic(algorithm, **CASES[name].problem)) for _ in range(2))
    run(first, batches[:2])
    second.load_state_dict(first.state_dict())
    assert torch.equal(run(second, batches[2:]), whole[2:])
    for key in second.clients.template:
        assert torch.equal(second.clients.all(key), loops[0].clients.all(key))


@pytest.mark.parametrize("name", CASES)
def test_personal_blocks_of_absent_clients_stay(name):
    algorithm = CASES[name].personal_algorithm()
    loop = loop_for(personal_quadratic(algorithm, **CASES[name].problem))
    batches = rounds_of(algorithm, 4, size=2)
    run(loop, batches[:1])
    for batch in batches[1:]:
        before = loop.clients.all("personal")
        run(loop, [batch])
        present = {member.id for cohort in batch.cohorts for member in cohort.members}
        absent = [i for i in range(CLIENTS) if i not in present]
        assert torch.equal(loop.clients.all("personal")[absent], before[absent])


@pytest.mark.parametrize("name", ["FedAvg", "FedAPM", "SCAFFOLD"])
def test_step_sizes_by_prefix_reach_both_blocks(name):
    ends = []
    for lr in (0.05, {"u": 0.05, "v": 0.05}, {"default": 0.05}, {"u": 0.05, "v": 1e-12}, {"u": 1e-12, "default": 0.05}):
        algorithm = CASES[name].algorithm(lr=lr)
        task = personal_quadratic(algorithm)
        loop = loop_for(task)
        run(loop, rounds_of(algorithm, 1))
        ends.append((loop.point - task.u, (loop.clients.all("personal") - task.v).abs().max()))
    for u, v in ends[1:3]:
        assert torch.equal(u, ends[0][0])
        assert v == ends[0][1]
    assert ends[3][1] < 1e-8 < ends[3][0].abs().max()
    assert ends[4][0].abs().max() < 1e-8 < ends[4][1]
    algorithm = CASES[name].algorithm(lr={"w": 0.1, "default": 0.05})
    with pytest.raises(ValueError, match="lr: 'w' matches no trainable parameter"):
        loop_for(personal_quadratic(algorithm))


# ---- FedAPM ----------------------------------------------------------------------------------------------------------

N = 10
APM = {"lr": 0.15, "rho": 2.0, "sigma": 0.1}


def solve(algorithm, rounds, seed=0):
    """Distances to the Schur-complement solution under 30 % participation, and the largest sum of duals met."""
    task = personal_quadratic(algorithm, num_clients=N, dim_shared=3, dim_personal=2)
    loop = loop_for(task)
    duals = []
    for batch in rounds_of(algorithm, rounds, num_clients=N, size=3, local_steps=4, seed=seed):
        run(loop, [batch])
        state, z = loop.client_state(loop.clients.rows(range(N))), loop.point
        duals.append((state.pi + algorithm.rho * (state.u - z)).sum(0).abs().max())
    u, v = task.solution
    distances = (loop.point - u).norm(), (loop.clients.all("personal") - v).norm()
    return distances, torch.stack(duals), state


def distance_at_the_start(task):
    return (task.u.detach().double() - task.solution[0]).norm()


def test_solution_solves_the_joint_problem():
    task = personal_quadratic(fl.FedSim(0.1), num_clients=3, dim_shared=2, dim_personal=2)
    u, v = task.solution
    matrix, offset = torch.zeros(8, 8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    for i in range(3):
        own = [0, 1, 2 + 2 * i, 3 + 2 * i]
        matrix[torch.tensor(own)[:, None], own] += task.matrix[i]
        offset[own] += task.offset[i]
    torch.testing.assert_close(torch.cat([u, v.flatten()]), torch.linalg.solve(matrix, -offset))


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
    (shared, _), duals, _ = solve(CohortMean(**APM), rounds=280)
    task = personal_quadratic(CohortMean(**APM), num_clients=N, dim_shared=3, dim_personal=2)
    assert 1e-2 < shared < 0.5 * distance_at_the_start(task)
    assert duals[100:].min() > 1e-2


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


@pytest.mark.parametrize(
    "algorithm",
    [
        fl.FedADMM(sigma=3.0, solver=GradientDescent(lr=0.1, max_steps=10), stop=FixedSteps()),
        fl.FIAELT(beta=6.0, solver=SVRG(lr={"u": 0.05, "v": 0.1}, inner_steps=10, epochs=4), stop=FixedSteps()),
    ],
    ids=["gradient descent", "SVRG"],
)
def test_solvers_on_all_data_move_personal_blocks_to_the_joint_solution(algorithm):
    task = personal_quadratic(algorithm, num_clients=N)
    loop = loop_for(task)
    run(loop, rounds_of(algorithm, 115, num_clients=N))
    u, v = task.solution
    torch.testing.assert_close(loop.point, u, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(loop.clients.all("personal"), v, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("solver", [LocalSteps(), GradientDescent(), SVRG()], ids=lambda solver: type(solver).__name__)
def test_step_sizes_of_personal_blocks_are_not_estimated(solver):
    with pytest.raises(ValueError, match=rf"{type(solver).__name__}\(lr=null\): step sizes .* personal_parameters"):
        loop_for(personal_quadratic(fl.FIAELT(beta=20.0, solver=solver)))


def test_fed_alt_and_fed_sim_miss_the_solution():
    for algorithm in (fl.FedAlt(0.15), fl.FedSim(0.15)):
        task = personal_quadratic(algorithm, num_clients=N)
        points = run(loop_for(task), rounds_of(algorithm, 60, num_clients=N, local_steps=6))
        torch.testing.assert_close(points[-1], points[-2], rtol=1e-9, atol=1e-9)
        assert 1e-2 < (points[-1] - task.solution[0]).norm() < 0.5 * distance_at_the_start(task)


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.FedAPM(0.1, rho=0.0), r"FedAPM\(rho=0.0\): expected > 0"),
        (lambda: fl.FedAPM(0.1, sigma=-1.0), r"FedAPM\(sigma=-1.0\): expected >= 0"),
        (lambda: fl.FedAPM(0.1, decay=1.5), r"FedAPM\(decay=1.5\): expected > 0 and <= 1"),
        (lambda: fl.FedAPM(0.1, start="zero"), "'local' or 'shared'"),
        (lambda: fl.FedAlt(0.1, personal_passes=0), r"FedAlt\(personal_passes=0\)"),
        (lambda: fl.Ditto(0.1, lam=-1.0), r"Ditto\(lam=-1.0\)"),
        (lambda: fl.FedALA(0.1, adaptive=2.0), r"FedALA\(adaptive=2.0\): expected >= 0 and <= 1"),
        (lambda: fl.FedCP(0.1, share=0.0), r"FedCP\(share=0.0\): expected > 0 and <= 1"),
        (lambda: loop_for(personal_quadratic(fl.FedCP(0.1))), "heads: 'network.head' matches no trainable parameter"),
        (lambda: loop_for(personal_quadratic(fl.FedCP(0.1, heads=("u", "v")))), r"got '' \[3\] beside '' \[5\]"),
        (lambda: fl.pFedMe(0.1, lam=0.0), r"pFedMe\(lam=0.0\)"),
        (lambda: fl.LpProj(0.1, dim=0), r"LpProj\(dim=0\): expected >= 1"),
        (lambda: fl.LpProj(0.1, dim=3, p=3), r"LpProj\(p=3\): expected 1 or 2"),
        (lambda: loop_for(quadratic(fl.LpProj(0.1, dim=1))), r"LpProj\(dim=1\): expected 2 to 8"),
        (lambda: loop_for(quadratic(fl.LpProj(0.1, dim=9))), r"LpProj\(dim=9\): expected 2 to 8"),
    ],
)
def test_wrong_hyper_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ---- personal models -------------------------------------------------------------------------------------------------


def test_ditto_without_pull_trains_alone_and_never_moves_the_global_model():
    alone, pulled, plain = fl.Ditto(0.1, lam=0.0), fl.Ditto(0.1, lam=5.0), fl.FedAvg(0.1)
    loops = [loop_for(quadratic(algorithm, dim_y=0)) for algorithm in (alone, pulled, plain)]
    points = [run(loop, rounds_of(alone, 60)) for loop in loops]
    assert torch.equal(points[0], points[2])
    assert torch.equal(points[1], points[2])
    task = loops[0]._task
    own = -torch.linalg.solve(task.matrix, task.offset)
    torch.testing.assert_close(loops[0].clients.all("state.v"), own, rtol=1e-6, atol=1e-6)


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
    assert torch.equal(ends[0][0], ends[1][0])
    assert not torch.equal(ends[0][1], ends[1][1])


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
