"""Clients whose personal blocks differ in length, against NumPy loops, and the ways they are stored and computed."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedlightning import FederatedLightningModule
from fedlightning import algorithms as fl
from fedlightning.federation.client_states import MemoryMapped
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.federation.validation import tensors_of
from fedlightning.models import PerArchitecture
from fedlightning.oracle import Auto, Sequential, Vectorized
from tests.support.cases import CASES
from tests.support.federations import K, cohorts_of, loop_for, run
from tests.support.ragged import CHOICE, LENGTHS, SHARED, N, RaggedQuadratic, operators_of, personal_of, ragged, rounds
from tests.support.references.fed_avg import fed_avg
from tests.support.references.fed_mm import fed_mm
from tests.support.references.personal import fed_alt, fed_apm, fed_sim
from tests.support.references.scaffold import scaffold

REFERENCES = {
    "FedSim": (fl.FedSim, {"lr": 0.05}, fed_sim),
    "FedAlt": (fl.FedAlt, {"lr": 0.05, "personal_passes": 2}, fed_alt),
    "FedAPM": (fl.FedAPM, {"lr": 0.05, "rho": 0.7, "sigma": 0.5, "tolerance": 2.0, "decay": 0.9}, fed_apm),
}
STEPWISE = {
    "FedProx": (fl.FedProx, {"lr": 0.05, "mu": 0.3}, fed_avg),
    "SCAFFOLD": (fl.SCAFFOLD, {"lr": 0.05}, scaffold),
    "FedMM": (fl.FedMM, {"lr": 0.05, "mu": 1.0}, fed_mm),
}


@pytest.mark.parametrize("oracle", [Vectorized(), Vectorized(chunk_size=2), Sequential()], ids=["all", "2", "1"])
@pytest.mark.parametrize("size", [None, 4], ids=["everyone", "cohort"])
@pytest.mark.parametrize("name", REFERENCES)
def test_blocks_of_any_length_follow_the_numpy_reference(name, size, oracle):
    make, hyper, reference = REFERENCES[name]
    algorithm = make(**hyper)
    task = ragged(algorithm)
    loop, batches, kept = loop_for(task, oracle), rounds(algorithm, 5, size), []
    u = task.u.detach().numpy().copy()
    operators, starts = operators_of(task)
    trajectory = run(loop, batches)
    expected = reference(operators, u, cohorts_of(batches), K, **hyper, v=starts, kept=kept)
    torch.testing.assert_close(trajectory, torch.from_numpy(np.stack(expected)), rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(personal_of(loop), kept, strict=True):
        torch.testing.assert_close(ours, torch.from_numpy(theirs["personal"]), rtol=1e-10, atol=1e-10)
    assert [len(v) for v in personal_of(loop)] == [LENGTHS[name] for name in CHOICE]


@pytest.mark.parametrize("name", STEPWISE)
def test_a_plain_step_of_the_personal_block_beside_every_step(name):
    make, hyper, reference = STEPWISE[name]
    algorithm = make(**hyper)
    task = ragged(algorithm)
    loop, batches = loop_for(task), rounds(algorithm, 5, 4)
    operators, own = operators_of(task)

    def stepping(i):
        def operator(u):
            g, g_v = operators[i](u, own[i])
            own[i] = own[i] - 0.05 * g_v
            return g

        return operator

    start = task.u.detach().numpy().copy()
    trajectory = run(loop, batches)
    expected = reference([stepping(i) for i in range(N)], start, cohorts_of(batches), K, **hyper)
    torch.testing.assert_close(trajectory, torch.from_numpy(np.stack(expected)), rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(personal_of(loop), own, strict=True):
        torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "name", sorted(set(CASES) - {"FedCP", "MOON", "StatefulFedAvg"})
)  # whose personal parts are all shaped as the shared one
def test_every_algorithm_computes_alike_in_any_order_and_resumes(name):
    algorithm = CASES[name].personal_algorithm()
    batches = rounds(algorithm, 3, 5)
    whole = loop_for(ragged(algorithm))
    trajectory = run(whole, batches[:2])
    stored = deepcopy(whole.state_dict())
    trajectory = torch.cat([trajectory, run(whole, batches[2:])])
    turned = [
        RoundBatch(b.index, tuple(replace(cohort, members=cohort.members[::-1]) for cohort in b.cohorts), b.samples)
        for b in batches
    ]
    for oracle, order in ((Sequential(), batches), (Vectorized(chunk_size=2), turned)):
        loop = loop_for(ragged(algorithm), oracle)
        torch.testing.assert_close(run(loop, order), trajectory, rtol=1e-11, atol=1e-11)
        for ours, theirs in zip(personal_of(loop), personal_of(whole), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    second = loop_for(ragged(algorithm))
    second.load_state_dict(stored)
    assert torch.equal(run(second, batches[2:]), trajectory[2:])
    for ours, theirs in zip(personal_of(second), personal_of(whole), strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(*(tensors_of(loop.client_states()).values() for loop in (second, whole)), strict=True):
        assert torch.equal(ours, theirs)


def test_states_that_depend_on_personal_parameters_are_refused_by_name():
    algorithm = CASES["StatefulFedAvg"].personal_algorithm()
    with pytest.raises(
        ValueError, match=r"StatefulFedAvg keeps 'first' of every client, with shape \[\d+\] for arch.*"
    ):
        run(loop_for(ragged(algorithm)), rounds(algorithm, 3, 5))


def test_only_those_who_take_part_move_and_nothing_personal_travels():
    algorithm = fl.FedAPM(0.05)
    task = ragged(algorithm)
    loop = loop_for(task)
    start = [v.clone() for v in personal_of(loop)]
    (batch,) = rounds(algorithm, 1, 3)
    run(loop, [batch])
    present = set(cohorts_of([batch])[0])
    for i, (before, now) in enumerate(zip(start, personal_of(loop), strict=True)):
        assert torch.equal(before, now) == (i not in present or len(now) == 0)
    assert loop.upload == 3 * SHARED
    assert list(tensors_of(loop.client_states())) == ["u", "pi", "xi"]


def test_auto_measures_the_first_variant_for_all(tmp_path):
    algorithm = fl.FedSim(0.05)
    reports = []
    loop = loop_for(ragged(algorithm), Auto(), report=reports.append, storage=MemoryMapped(str(tmp_path)))
    plain = loop_for(ragged(algorithm))
    batches = rounds(algorithm, 3, 4)
    torch.testing.assert_close(run(loop, batches), run(plain, batches), rtol=1e-11, atol=1e-11)
    assert len(reports) == 1


def test_step_sizes_by_prefix_name_one_variant():
    ends = []
    for lr in (0.05, {"default": 0.05, "v.long": 1e-12}):
        algorithm = fl.FedSim(lr)
        task = ragged(algorithm)
        loop = loop_for(task)
        start = [v.clone() for v in personal_of(loop)]
        run(loop, rounds(algorithm, 1))
        ends.append([(now - before).norm() for now, before in zip(personal_of(loop), start, strict=True)])
    for i, name in enumerate(CHOICE):
        if name == "long":
            assert ends[1][i] < 1e-8 < ends[0][i]
        else:
            assert ends[1][i] == ends[0][i]


class Undeclared(RaggedQuadratic):
    personal_parameters = ()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: loop_for(Undeclared(fl.FedAvg(0.1))), ValueError, "Add 'v' to personal_parameters"),
        (lambda: PerArchitecture({}, []), ValueError, "give one module at least"),
        (
            lambda: PerArchitecture(dict.fromkeys("ab", nn.Linear(1, 1)), []),
            ValueError,
            "'a' and 'b' share a parameter",
        ),
        (
            lambda: run(loop_for(ragged(fl.FedAvg(0.1))), rounds(fl.FedAvg(0.1), 1, architecture=lambda client: "")),
            ValueError,
            "Architecture '' is unknown to this task",
        ),
        (lambda: PerArchitecture({"a": nn.Identity()}, "a"), ValueError, "expected a list of names, one a client"),
        (
            lambda: PerArchitecture({"a": nn.Identity()}, ["a", "b"]),
            ValueError,
            "client 1 has architecture 'b'; there are 'a'",
        ),
        (
            lambda: run(loop_for(ragged(fl.FedAvg(0.1), choice=CHOICE[:4])), rounds(fl.FedAvg(0.1), 1)),
            IndexError,
            "choice names the architectures of 4 clients",
        ),
    ],
)
def test_errors_name_the_remedy(make, error, message):
    with pytest.raises(error, match=message):
        make()


class NormedTwice(FederatedLightningModule):
    """A personal BatchNorm outside the part that varies."""

    personal_parameters = ("part", "norm")

    def __init__(self, algorithm, choice=CHOICE, **federation):
        super().__init__(algorithm, **federation)
        self.part = PerArchitecture(
            {"short": nn.Linear(2, 3), "none": nn.Linear(2, 3), "long": nn.Linear(2, 3)}, choice
        )
        self.norm = nn.BatchNorm1d(3)
        self.line = nn.Linear(3, 1)

    def objective(self, batch):
        angle = batch.flatten()[:1] + torch.arange(3)
        x = torch.stack([angle.cos(), angle.sin()], dim=1).to(self.line.weight.dtype)
        return (self.line(self.norm(self.part(x))) - 1).square().mean()


def test_statistics_of_a_personal_layer_beside_architectures_stay_on_the_client():
    algorithm = fl.FedAvg(0.05)
    batches = rounds(algorithm, 3)
    task = NormedTwice(algorithm).double()
    loop = loop_for(task)
    run(loop, batches[:2])
    means = [loop.models([client])[2][0, :3] for client in (0, 1)]
    assert not torch.equal(*means)
    again = loop_for(task)
    again.load_state_dict(loop.state_dict())
    run(loop, batches[2:])
    run(again, batches[2:])
    assert torch.equal(loop.models([1])[2], again.models([1])[2])
