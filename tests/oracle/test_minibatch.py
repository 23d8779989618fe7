"""Minibatches of clients of which some have no more, and for whom they are computed."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FIAELT, SCAFFOLD, FedADMM, FedAvg
from fedlightning.local import SGD, SVRG, GradientDescent, GradientTolerance, LocalSteps
from fedlightning.local.descent import descend
from fedlightning.oracle import Auto, GradientOracle, Sequential, Vectorized
from fedlightning.oracle.base import PrefersFixedSize, StepsInPlace
from fedlightning.oracle.errors import ObjectiveError
from fedlightning.oracle.minibatch import (
    Minibatch,
    Rows,
    computed_together,
    computing_fewer,
    few_places,
    restricted_to,
)
from tests.support.finite_sums import Samples, evaluate, finite_sum
from tests.support.small import Line, Normed, Personal, trainer

CPU = torch.device("cpu")


@pytest.mark.parametrize("places", [[0, 1, 2], [1, 2], [3], [0, 2], [1, 3]])
def test_rows_are_those_at_the_places(places):
    rows, values = Rows.at(places, CPU), torch.arange(8.0).view(4, 2)
    found = rows.of({"x": values, "y": [values[:, 0]]})
    assert torch.equal(found["x"], values[places])
    assert torch.equal(found["y"][0], values[places, 0])
    assert len(rows) == len(places)
    follow = places == list(range(places[0], places[-1] + 1))
    assert (found["x"].untyped_storage().data_ptr() == values.untyped_storage().data_ptr()) == follow


def test_samples_are_gathered_once_and_for_those_who_are_computed():
    calls, x = [], torch.arange(6.0).view(3, 2)

    def gather(rows=None):
        calls.append(rows)
        return x if rows is None else rows.of(x)

    one = Minibatch(gather, torch.tensor([True, False, True]), Rows.at([0, 2], CPU))
    assert one.computed_data.tolist() == one.computed_data.tolist() == [[0, 1], [4, 5]]
    assert one.data is one.data is x
    assert calls == [one.computed, None]
    every = Minibatch.of(x)
    assert every.computed_data is every.data is x
    assert Minibatch(every.gather, one.active, one.computed).computed_data.tolist() == [[0, 1], [4, 5]]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([3, 3], [2] * 3),
        ([40, 1, 1, 1], [4] + [1] * 39),
        ([31, 1, 1, 1], [4] * 31),  # ends too soon to pay
        ([60, 30, 20, 2, 2, 2], [6] * 2 + [3] * 18 + [2] * 40),
        ([50, 44, 2, 2], [4] * 2 + [2] * 48),
        ([1], [1]),
    ],
)
def test_as_few_clients_are_computed_as_pays(counts, expected):
    found = computed_together(counts, 32)
    assert found == expected
    assert all(size >= sum(count > k for count in counts) for k, size in enumerate(found))


@pytest.mark.parametrize("counts", [[3, 3], [4, 1, 2, 2], [1], [5, 0, 7]])
def test_only_the_active_are_computed_where_another_number_costs_nothing(counts):
    assert computed_together(counts, 1) == [sum(count > k for count in counts) for k in range(max(counts))]


@pytest.mark.parametrize("steps_to_pay_off", [1, 2])
def test_the_computed_clients_are_those_with_the_most_steps(steps_to_pay_off):
    steps = torch.tensor([2.0, 5.0, 1.0, 4.0])
    batches = [Minibatch.of(None) if k == 0 else Minibatch(Minibatch.of(None).gather, steps > k) for k in range(5)]
    found = [*computing_fewer(batches, steps, steps_to_pay_off)]
    places = {1: [None, [0, 1, 3], [1, 3], [1, 3], [1]], 2: [None, None, [1, 3], [1, 3], [1, 3]]}
    assert [batch.computed and list(batch.computed.places) for batch in found] == places[steps_to_pay_off]
    assert [batch.includes_finished for batch in found] == [
        False,
        steps_to_pay_off == 2,
        False,
        False,
        steps_to_pay_off == 2,
    ]
    assert found[2].computed is found[3].computed  # by which those that go on are told


@pytest.mark.parametrize(
    ("needed", "places", "expected"),
    [
        ([1, 1, 1, 0, 1, 1, 1, 1], range(8), [0, 1, 2, 3, 4, 5, 6, 7]),  # 8, 6, 4, 3, 2 or 1
        ([1, 1, 1, 0, 0, 1, 1, 1], range(8), [0, 1, 2, 5, 6, 7]),
        ([0, 0, 1, 0, 1, 1, 1, 1], range(8), [0, 2, 4, 5, 6, 7]),
        ([0, 0, 0, 0, 0, 0, 1, 1], range(8), [6, 7]),
        ([0, 1, 0, 1, 0, 1, 1, 1], [1, 3, 5, 6, 7], [1, 3, 5, 6, 7]),
        ([0, 0, 0, 1, 0, 0, 0, 1], [1, 3, 5, 6, 7], [3, 7]),
        ([1], range(1), [0]),
    ],
)
def test_few_numbers_of_clients_are_computed(needed, places, expected):
    assert few_places([bool(each) for each in needed], places) == expected


def test_clients_that_are_done_are_left_out():
    every = Minibatch.of(torch.zeros(8, 1))

    def at(batch, *going, leaves_out=True):
        found = restricted_to(torch.tensor([place in going for place in range(8)]), batch, leaves_out)
        assert found is batch or found.active.nonzero().flatten().tolist() == list(going)
        return found

    assert at(every, *range(8)) is every
    seven, six, five = at(every, *range(7)), at(every, 0, 1, 2, 3, 5, 7), at(every, 1, 2, 3, 5, 7)
    assert (seven.computed, seven.includes_finished) == (None, True)
    assert (six.computed.places, six.includes_finished) == ([0, 1, 2, 3, 5, 7], False)
    assert (five.computed.places, five.includes_finished) == ([0, 1, 2, 3, 5, 7], True)
    assert at(every).computed is None  # nobody: there is nothing to compute
    kept = at(every, 0, leaves_out=False)
    assert (kept.computed, kept.includes_finished) == (None, True)

    few = Minibatch(every.gather, torch.arange(8) < 4, Rows.at([0, 1, 2, 3], CPU))
    assert at(few, 0, 1, 2, 3).computed is at(few, 0, 1, leaves_out=False).computed is few.computed
    assert at(few, 1, 3).computed.places == [1, 3]
    assert restricted_to(torch.arange(8) > 2, few, True).active.tolist() == [False] * 3 + [True] + [False] * 4


SIZES = [4, 60, 8, 3, 60, 21]
WAYS = [
    Vectorized(chunk_size=6),
    Vectorized(chunk_size=6, parts=2),
    Vectorized(chunk_size=6, replay=False),
    Vectorized(chunk_size=6, backward="vmap"),
    Vectorized(chunk_size=6, backward="each", threads=2),
    Vectorized(chunk_size=4),
    Auto(),
]
TASKS = {
    "steps in place": partial(Line, FedAvg(0.05), 0.0),
    "random numbers": partial(Line, FedAvg(0.05), 0.3),
    "directions": partial(Line, SCAFFOLD(0.05), 0.0),
    "random directions": partial(Line, SCAFFOLD(0.05), 0.3),
    "buffers": partial(Normed, FedAvg(0.05)),
    "buffers and directions": partial(Normed, SCAFFOLD(0.05)),
    "personal blocks": partial(Personal, FedAvg(0.05)),
}


def unequal(sizes):
    draw = torch.Generator().manual_seed(0)
    sets = [TensorDataset(torch.randn(n, 6, generator=draw), torch.randn(n, generator=draw)) for n in sizes]
    return FederatedDataModule.from_datasets(sets, batch_size=4, local_epochs=1, rounds_per_epoch=3)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("oracle", WAYS, ids=str)
def test_unequal_clients_end_where_they_end_one_by_one(oracle, task):
    """Whoever has no more minibatches stays where it is, with its losses, buffers and random numbers."""
    ends = []
    for way in (Sequential(), oracle):
        torch.manual_seed(0)
        module = TASKS[task](oracle=way).double()
        trained = trainer(max_steps=3, precision="64-true")
        trained.fit(module, unequal(SIZES))
        ends.append((module.state_dict(), trained.callback_metrics["train_loss"]))
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)


def solved_by(algorithm, oracle):
    torch.manual_seed(0)
    module = Line(algorithm, 0.3, oracle=oracle).double()
    trained = trainer(max_steps=3, precision="64-true")
    trained.fit(module, unequal(SIZES))
    names = "train_loss", "inner_steps", "solved"
    return module.state_dict(), {name: trained.callback_metrics[name] for name in names}


EARLY_ENDS = {
    "drawn points": FIAELT(beta=1.0, solver=SVRG(lr=0.05, inner_steps=8, epochs=3)),
    "steps on all data": FedADMM(2.0, solver=GradientDescent(lr=0.05, max_steps=20), stop=GradientTolerance(0.5)),
    "steps on minibatches": FedADMM(2.0, solver=LocalSteps(lr=0.05), stop=GradientTolerance(2.0)),
    "an optimizer": FedADMM(2.0, solver=LocalSteps(lr=0.05, optimizer=SGD(momentum=0.5)), stop=GradientTolerance(2.0)),
}


@pytest.mark.parametrize("algorithm", EARLY_ENDS.values(), ids=EARLY_ENDS)
@pytest.mark.parametrize("oracle", WAYS[:6], ids=str)
def test_clients_that_are_done_end_where_they_end_one_by_one(oracle, algorithm, monkeypatch):
    """They are left out from a size on, here from none."""
    monkeypatch.setattr("fedlightning.oracle.vectorized.LARGE_POINT_BYTES", 0)
    torch.testing.assert_close(solved_by(algorithm, oracle), solved_by(algorithm, Sequential()), rtol=1e-9, atol=1e-9)


class Uneven(Samples):
    """One sample a minibatch, which clients have different numbers of."""

    def __init__(self, counts):
        super().__init__(finite_sum(), max(counts))
        self.steps = torch.tensor(counts, dtype=torch.float64)

    def minibatches(self):
        for k, batch in enumerate(super().minibatches()):
            yield Minibatch(batch.gather, self.steps > k if (self.steps <= k).any() else None)


class InPlace(StepsInPlace, PrefersFixedSize):
    """Least squares, stepped along without a word of where the operator was."""

    leaves_out_done = True

    def __init__(self, steps_to_pay_off=1):
        self.evaluated, self.stepped, self.steps_to_pay_off = [], [], steps_to_pay_off

    def __call__(self, w, *arguments):
        self.evaluated.append(len(w))
        return evaluate(w, *arguments)

    @contextmanager
    def steps_in_place(self, w, v, blocks, lr):
        def step(b, data, randomness):
            if len(w) not in self.evaluated:  # as a recording, which begins with an evaluation
                return None
            self.stepped.append(len(w))
            found = evaluate(w, v, b, data)
            w.sub_(found.g, alpha=lr)
            return replace(found, g=w)

        yield step


def descended(counts, way):
    """Take the steps in a way, and check the ends and losses against plain steps."""
    none, start = torch.empty(3, 0, dtype=torch.float64), torch.ones(3, 4, dtype=torch.float64)
    found, plain = (GradientOracle(Uneven(counts), each, none) for each in (way, evaluate))
    ends = [descend(start, oracle, 0.1)[0] for oracle in (found, plain)]
    torch.testing.assert_close(*ends, rtol=0, atol=0)
    torch.testing.assert_close(found.tally.means(), plain.tally.means())
    return way


@pytest.mark.parametrize("counts", [[2, 7, 4], [7, 4, 2], [5, 5, 5], [1, 6, 1], [3, 3, 9]])
def test_steps_in_place_are_taken_by_those_who_have_minibatches(counts):
    way = descended(counts, InPlace())
    assert sum(way.evaluated) + sum(way.stepped) == sum(counts)
    assert len(way.evaluated) == len({sum(count > k for count in counts) for k in range(max(counts))})


def test_dear_numbers_of_clients_are_few():
    way = descended([2, 40, 38], InPlace(32))
    assert set(way.evaluated + way.stepped) == {2, 3}
    assert way.stepped == [3] * 1 + [2] * 35


def test_an_error_during_a_step_names_the_client_and_leaves_the_others_points():
    class Fails(InPlace):
        @contextmanager
        def steps_in_place(self, w, v, blocks, lr):
            def step(b, data, randomness):
                w.add_(1)
                if len(w) == 2:
                    raise ObjectiveError("no", place=1)
                return evaluate(w, v, b, data)

            yield step

    w = torch.zeros(3, 4, dtype=torch.float64)
    oracle = GradientOracle(Uneven([3, 1, 2]), Fails(), torch.empty(3, 0, dtype=torch.float64))
    with pytest.raises(ObjectiveError) as caught:
        oracle.steps_in_place(w, None, oracle.batches(), 0.1)
    assert caught.value.place == 2
    assert w[:, 0].tolist() == [2, 1, 2]
