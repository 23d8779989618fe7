"""Every algorithm on a task with a personal block: nothing personal travels, and ways to compute agree."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.federation.clients.client_update import for_clients
from fedlightning.federation.transport import InProcess
from fedlightning.local import SVRG, FixedSteps, GradientDescent, LocalSteps
from fedlightning.oracle import Sequential, Vectorized
from tests.support.cases import CASES
from tests.support.federations import (
    CLIENTS,
    loop_for,
    personal_quadratic,
    rounds_of,
    run,
)


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
    for messages in (received,) if CASES[name].keeps_sent else (sent, received):
        numbers = torch.cat([message.flatten() for message in messages])
        assert not torch.isin(torch.cat(personal), numbers).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_with_a_personal_block_ways_to_compute_agree_and_runs_resume(name):
    algorithm = CASES[name].personal_algorithm()
    batches = rounds_of(algorithm, 4, size=4)
    whole, one_by_one, second = (
        loop_for(personal_quadratic(algorithm, **CASES[name].problem), oracle)
        for oracle in (Vectorized(), Sequential(), Vectorized())
    )
    trajectory = run(whole, batches[:2])
    stored = deepcopy(whole.state_dict())
    trajectory = torch.cat([trajectory, run(whole, batches[2:])])
    torch.testing.assert_close(trajectory, run(one_by_one, batches), rtol=1e-12, atol=1e-12)
    second.load_state_dict(stored)
    assert torch.equal(run(second, batches[2:]), trajectory[2:])
    for key in second.clients.template:
        assert torch.equal(second.clients.all(key), whole.clients.all(key))


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


@pytest.mark.parametrize(
    "algorithm",
    [
        fl.FedADMM(sigma=3.0, solver=GradientDescent(lr=0.1, max_steps=10), stop=FixedSteps()),
        fl.FIAELT(beta=6.0, solver=SVRG(lr={"u": 0.05, "v": 0.1}, inner_steps=10, epochs=4), stop=FixedSteps()),
    ],
    ids=["gradient descent", "SVRG"],
)
def test_solvers_on_all_data_move_personal_blocks_to_the_joint_solution(algorithm):
    task = personal_quadratic(algorithm, num_clients=10)
    loop = loop_for(task)
    run(loop, rounds_of(algorithm, 115, num_clients=10))
    u, v = task.solution
    torch.testing.assert_close(loop.point, u, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(loop.clients.all("personal"), v, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("solver", [LocalSteps(), GradientDescent(), SVRG()], ids=lambda solver: type(solver).__name__)
def test_step_sizes_of_personal_blocks_are_not_estimated(solver):
    with pytest.raises(ValueError, match=rf"{type(solver).__name__}\(lr=null\): step sizes .* personal_parameters"):
        loop_for(personal_quadratic(fl.FIAELT(beta=20.0, solver=solver)))
