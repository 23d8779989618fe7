"""How far one client moves what the server receives: by brute force, for every algorithm, phase and round.

Two federations differ in one client alone, and everybody sees the same: whatever the second one would release is
replaced by what the first one released. That is what an account of privacy compares, round after round. So each sum may
differ by C if the client is absent, by 2 C if the client is another one, and the server's states may not differ at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import pytest
import torch

from fedlightning.channel import Channel, Clip
from fedlightning.channel.base import Release
from fedlightning.federation.sampling.cohort import RoundBatch
from tests.support.cases import CASES
from tests.support.federations import loop_for, personal_quadratic, quadratic, rounds_of, run

ONE = 2
C = 0.05
COVERED = [name for name, case in CASES.items() if not case.make.server_knows_clients and name != "FedExP"]
FAILING = [name for name in COVERED if name != "FIAELT"]  # whose solver stays where a gradient is not finite


@dataclass(frozen=True, eq=False)
class Tape(Release):
    """Keeps each sum over clients, and hands on what another federation has released in its place."""

    heard: list = field(default_factory=list)
    of_others: list | None = None

    def apply(self, values, aggregated):
        sums = torch.cat([value * aggregated.divisors[name] for name, value in values.items()])
        self.heard.append((sums.clone(), values, aggregated.bound))
        return values if self.of_others is None else self.of_others[len(self.heard) - 1][1]


def federation(make, algorithm, batches, tape, change=lambda task: None):
    """The server's state after some rounds of clients of whom one may be changed."""
    task = make(algorithm)
    with torch.no_grad():
        change(task)
    loop = loop_for(task, channels=Channel(client=[Clip(C)], server=[tape]))
    run(loop, batches)
    return loop.state


def without(batches):
    """The same rounds, in which one client never answers."""

    def absent(cohort):
        return replace(cohort, members=tuple(each for each in cohort.members if each.id != ONE))

    return [RoundBatch(each.index, tuple(map(absent, each.cohorts)), each.samples) for each in batches]


def changed(factor):
    """Another client in the place of one: other data, and as far away as one likes."""

    def change(task):
        generator = torch.Generator().manual_seed(1)
        task.offset[ONE] = factor * torch.randn(task.offset[ONE].shape, generator=generator, dtype=task.offset.dtype)
        task.matrix[ONE] = task.matrix[ONE].flip(-1) * min(factor, 3.0)

    return change


def assert_neighbours(make, algorithm, size, factor):
    """One client moves no sum too far, and the server's state only by the sums."""
    batches = rounds_of(algorithm, 3, size=size)
    first = Tape()
    state = federation(make, algorithm, batches, first)
    assert first.heard, "nothing was released"
    moved = []
    for limit, rounds, change in ((C, without(batches), lambda task: None), (2 * C, batches, changed(factor))):
        other = Tape(of_others=first.heard)
        seen = federation(make, algorithm, rounds, other, change)
        assert len(other.heard) == len(first.heard)
        for (mine, _, bound), (theirs, _, _) in zip(first.heard, other.heard, strict=True):
            assert bound == C
            moved.append(float((mine - theirs).norm()) / limit)
        for each in fields(state):
            assert_same(getattr(state, each.name), getattr(seen, each.name))
    assert max(moved) <= 1 + 1e-9
    return max(moved)


def assert_same(one, other):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize(("size", "factor"), [(None, 1.0), (4, 1e8)], ids=["all, near", "cohort, far away"])
@pytest.mark.parametrize("name", COVERED)
def test_one_client_moves_a_sum_by_its_clip(name, size, factor):
    moved = assert_neighbours(quadratic, CASES[name].algorithm(), size, factor)
    assert moved > 0.01  # the test sees the client at all


@pytest.mark.parametrize("name", COVERED)
def test_personal_blocks_change_nothing(name):
    case = CASES[name]

    def make(algorithm):
        return personal_quadratic(algorithm, **case.problem)

    assert assert_neighbours(make, case.personal_algorithm(), None, 1.0) > 0.01


@pytest.mark.filterwarnings("ignore:NaN or infinite numbers came from client 2")
@pytest.mark.parametrize("name", FAILING)
def test_a_client_without_finite_numbers_counts_as_absent(name):
    """Neither the sum nor its divisor tells whether a client failed or was not there."""
    algorithm = CASES[name].algorithm()
    batches = rounds_of(algorithm, 3, size=4)
    absent, failed = Tape(), Tape()

    def broken(task):
        task.offset[ONE] = torch.inf

    federation(quadratic, algorithm, without(batches), absent)
    federation(quadratic, algorithm, batches, failed, broken)
    for (mine, values, _), (theirs, others, _) in zip(absent.heard, failed.heard, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
        torch.testing.assert_close(dict(values), dict(others), rtol=0, atol=1e-12)
