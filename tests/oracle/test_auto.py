"""The faster way is taken, by measurement."""

from __future__ import annotations

import random
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from fedlightning.algorithms import FedAvg
from fedlightning.oracle import Auto, Autocast, Sequential, Vectorized
from fedlightning.oracle.base import StepsInPlace
from fedlightning.oracle.timing import Arguments
from tests.support.federations import loop_for, quadratic, rounds_of, run
from tests.support.objectives_in_python import (
    ALONE,
    TOGETHER,
    Everywhere,
    caches,
    counts,
    counts_elsewhere,
    draws_again_and_again_the_same,
    draws_from_its_own,
    draws_in_python,
    reads_a_value,
    trained,
)

MEASURED = Auto.seconds


@pytest.mark.measures
def test_auto_takes_the_faster_one_and_says_so():
    algorithm = FedAvg(0.05)
    said = []
    loop = loop_for(quadratic(algorithm), Auto(), report=said.append)
    run(loop, rounds_of(algorithm, 1, local_steps=30))
    assert isinstance(loop.oracle, Vectorized | Sequential)
    assert said[0].startswith(f"oracle: took {type(loop.oracle).__name__}")  # on so many threads, if there are more
    assert "ms" in said[0]


def test_auto_decides_by_time(monkeypatch):
    algorithm = FedAvg(0.05)
    for times, expected in (
        ({"Sequential": 1.0, "Vectorized": 5.0}, "Vectorized"),
        ({"Sequential": 0.5, "Vectorized": 5.0}, "Sequential"),
    ):
        monkeypatch.setattr(Auto, "seconds", lambda self, oracle, *_, times=times: times[type(oracle).__name__])
        loop = loop_for(quadratic(algorithm), Auto())
        run(loop, rounds_of(algorithm, 1))  # 6 clients at once: 5/6 s against 1 s or 0.5 s each
        assert type(loop.oracle).__name__ == expected


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("disturbed", "threads"), [(1, 2), (2, 1)])
def test_a_trial_that_is_disturbed_once_does_not_decide(disturbed, threads, monkeypatch):
    trials = []

    def seconds(self, oracle, *_):
        if isinstance(oracle, Sequential) or oracle.chunk_size < 6:
            return 9.0
        trials.append(oracle.threads)
        return 3.0 if oracle.threads == 1 else 8.0 if trials.count(2) <= disturbed else 2.0

    monkeypatch.setattr(Auto, "seconds", seconds)
    algorithm = FedAvg(0.05)
    loop = loop_for(quadratic(algorithm), Auto())
    run(loop, rounds_of(algorithm, 1))
    assert loop.oracle.threads == threads
    assert trials.count(1) == 1


@pytest.mark.parametrize(("a_chunk_of_six", "tried"), [(8.0, True), (5.0, False)])
def test_one_client_at_a_time_is_tried_from_a_recording_where_chunks_gain_little(a_chunk_of_six, tried, monkeypatch):
    def seconds(self, oracle, *_):
        if isinstance(oracle, Sequential):
            return 1.0
        return 0.7 if oracle.chunk_size == 1 else a_chunk_of_six * oracle.chunk_size / 6

    monkeypatch.setattr(Auto, "seconds", seconds)
    algorithm, said = FedAvg(0.05), []
    loop = loop_for(quadratic(algorithm), Auto(), report=said.append)
    run(loop, rounds_of(algorithm, 1))
    assert (loop.oracle.chunk_size == 1) == tried
    assert ("700 ms in chunks of 1" in said[0]) == tried


@pytest.mark.parametrize(
    ("graphs", "plain", "each", "expected"),
    [
        (1.0, 3.0, 9.0, {"replay": True, "backward": "autograd"}),
        (3.0, 2.0, 9.0, {"replay": False, "backward": "autograd"}),
        (2.1, 2.2, 9.0, {"replay": True, "backward": "autograd"}),
        (4.0, 6.0, 1.0, {"backward": "each", "threads": 1}),
        (4.0, 3.0, None, {"replay": False, "backward": "autograd"}),
    ],
)
def test_on_a_gpu_graphs_of_all_and_of_one_client_are_tried(graphs, plain, each, expected, monkeypatch):
    def seconds(self, oracle, objective, calls, arguments):
        if isinstance(oracle, Sequential):
            return 8.0
        if oracle.backward == "each" and each is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return len(arguments.w) * (each if oracle.backward == "each" else graphs if oracle.replay else plain)

    monkeypatch.setattr(Auto, "seconds", seconds)
    objective = SimpleNamespace(autocast=Autocast("cuda"), point_bytes=0)
    chosen = Auto().choose(
        objective,
        lambda together: 20,
        lambda size, at_a_time=1: Arguments(*(torch.zeros(size, 0),) * 3, (), 1.0),
        Vectorized(chunk_size=6, replay=True, backward="autograd"),
        lambda: Vectorized(chunk_size=6, backward="each", threads=1),
    )
    assert {name: getattr(chosen.oracle, name) for name in expected} == expected
    assert "without a recording" in chosen.report


def chosen_on_a_cpu(side_by_side=None, larger=()):
    """What Auto takes by the seconds that a test has it measure, beginning with chunks of eight."""
    return Auto().choose(
        SimpleNamespace(autocast=Autocast("cpu"), point_bytes=0, draws=False),
        lambda together: 20,
        lambda size, at_a_time=1: Arguments(*(torch.zeros(size, 0),) * 3, (), 1.0),
        Vectorized(chunk_size=8, replay=True, backward="autograd"),
        lambda: side_by_side,
        larger=larger,
    )


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("divided", "parts", "size"), [(0.6, 2, 10), (0.97, 1, 8)])
def test_each_part_of_a_divided_chunk_may_be_as_large_as_a_chunk_of_one_thread(divided, parts, size, monkeypatch):
    tried = []

    def seconds(self, oracle, objective, calls, arguments):
        if isinstance(oracle, Sequential):
            return 8.0
        tried.append((oracle.parts, oracle.chunk_size))
        return len(arguments.w) * (divided if oracle.parts == 2 else 1.0)

    monkeypatch.setattr(Auto, "seconds", seconds)
    chosen = chosen_on_a_cpu(larger=[10, 20])
    assert (chosen.oracle.parts, chosen.oracle.chunk_size) == (parts, size)
    assert {each for each in tried if each[0] == 2} == ({(2, 10), (2, 20), (2, 5)} if parts == 2 else {(2, 10)})


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("recorded", "backward"), [(0.96, "each"), (0.94, "autograd")])
def test_one_by_one_from_a_recording_must_save_a_twentieth_over_side_by_side(recorded, backward, monkeypatch):
    def seconds(self, oracle, objective, calls, arguments):
        if isinstance(oracle, Sequential):
            return 1.2
        one = recorded if oracle.chunk_size == 1 else 1.3
        return len(arguments.w) * (1.0 if oracle.backward == "each" else one)

    monkeypatch.setattr(Auto, "seconds", seconds)
    chosen = chosen_on_a_cpu(Vectorized(chunk_size=8, backward="each", threads=2))
    assert chosen.oracle.backward == backward
    reason = "; going in chunks of 1 must save 5%"
    assert chosen.report.endswith(reason) == (backward == "each")


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("divided", "parts"), [(0.75, 2), (0.82, 1)])
def test_divided_chunks_are_compared_with_the_best_ones_that_are_not(divided, parts, monkeypatch):
    """They are larger: chunks as large that are not divided may be faster as well."""

    def seconds(self, oracle, objective, calls, arguments):
        if isinstance(oracle, Sequential):
            return 8.0
        return len(arguments.w) * (divided if oracle.parts == 2 else 1.0 if oracle.chunk_size == 8 else 0.85)

    monkeypatch.setattr(Auto, "seconds", seconds)
    chosen = chosen_on_a_cpu(larger=[10])
    assert (chosen.oracle.parts, chosen.oracle.chunk_size) == (parts, 10)


class Timed(StepsInPlace):
    """Takes one millisecond for an operator, and half of that for a step in place."""

    def __init__(self, clock):
        self.clock = clock

    def __call__(self, w, *args):
        self.clock.now += 1e-3
        return SimpleNamespace(g=w)

    @contextmanager
    def steps_in_place(self, w, v, blocks, lr):
        assert lr != 0.0, "a product that is added zero times is not computed"

        def step(*args):
            self.clock.now += 0.5e-3
            return True

        yield step


@pytest.mark.parametrize(
    ("calls", "trials", "in_place", "expected"),
    [
        *((10, 4, 0.5, 0.5**0.5 * 1e-3), (10, 1, 0.5, 0.5**0.5 * 1e-3), (1, 4, 0.5, 0.5e-3)),
        *((10, 4, 1.0, 0.5e-3), (10, 1, 1.0, 0.5e-3), (10, 4, 0.0, 1e-3), (10, 4, 0.75, 0.5**0.75 * 1e-3)),
    ],
)
def test_operators_and_steps_in_place_count_as_often_as_they_are_used(calls, trials, in_place, expected, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("fedlightning.oracle.timing.time.perf_counter", lambda: clock.now)
    oracle = SimpleNamespace(evaluator=lambda objective, calls: Timed(clock))
    objective = SimpleNamespace(autocast=SimpleNamespace(on_cpu=True))
    arguments = Arguments(torch.zeros(2, 3), None, None, None, in_place)
    found = MEASURED(Auto(trials), oracle, objective, calls, arguments)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("seconds", "waiting", "together"),
    [
        (1e-3, 0, 32), (0.02, 0, 5), (0.04, 0, 4), (0.1, 0, 4), (0.3, 0, 1), (2.0, 0, 1),
        (1e-3, 16, 32), (0.02, 16, 16), (0.04, 16, 12), (0.09, 16, 5), (2.0, 16, 1),
    ],
)  # fmt: skip
def test_steps_are_begun_together_as_many_as_their_time_allows(seconds, waiting, together, monkeypatch):
    clock, begun = SimpleNamespace(now=0.0), []

    class Stepping(Timed):
        most_waiting = waiting

        @contextmanager
        def steps_in_place(self, w, v, blocks, lr):
            begun.append(0)

            def step(*args):
                clock.now += seconds
                begun[-1] += 1
                return True

            yield step

    monkeypatch.setattr("fedlightning.oracle.timing.time.perf_counter", lambda: clock.now)
    oracle = SimpleNamespace(evaluator=lambda objective, calls: Stepping(clock))
    objective = SimpleNamespace(autocast=SimpleNamespace(on_cpu=True))
    MEASURED(Auto(), oracle, objective, 100, Arguments(torch.zeros(2, 3), None, None, None, 1.0))
    assert begun[-1] == together


def seconds_of(evaluators, clock, calls, monkeypatch):
    """What Auto measures of a way whose evaluators are given, in the order in which they are made."""
    monkeypatch.setattr("fedlightning.oracle.timing.time.perf_counter", lambda: clock.now)
    made = iter(evaluators)
    oracle = SimpleNamespace(evaluator=lambda objective, calls: next(made))
    objective = SimpleNamespace(autocast=SimpleNamespace(on_cpu=True))
    return MEASURED(Auto(), oracle, objective, calls, Arguments(torch.zeros(2, 3), None, None, None, 0.5))


def taking(clock, seconds):
    """An evaluator without steps in place, whose calls take so long, the last number over and over."""
    left = list(seconds)

    def evaluate(w, *args):
        clock.now += left.pop(0) if len(left) > 1 else left[0]
        return SimpleNamespace(g=w)

    return evaluate


def test_the_slow_beginning_of_a_short_trial_does_not_count(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    evaluators = [taking(clock, [1e-3]), taking(clock, [1e-3] * 7 + [1e-4])]
    assert seconds_of(evaluators, clock, 1000, monkeypatch) == pytest.approx(1e-4 + 9e-4 / 1000)


def test_the_first_replay_does_not_count_alone_however_long_the_recording_took(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    evaluators = [taking(clock, [4e-2]), taking(clock, [4e-2, 2.5e-2, 1.4e-2])]
    assert seconds_of(evaluators, clock, 1000, monkeypatch) == pytest.approx(1.4e-2 + 2.6e-2 / 1000)


class Capturing(Timed):
    """Takes 0.02 s for the first operator, and 0.2 s for the next, and for a first step in place."""

    def __init__(self, clock, can_step):
        super().__init__(clock)
        self.operators, self.steps = [0.02, 0.2], [0.2] if can_step else None

    def __call__(self, w, *args):
        self.clock.now += self.operators.pop(0) if self.operators else 1e-3
        return SimpleNamespace(g=w)

    @contextmanager
    def steps_in_place(self, w, v, blocks, lr):
        def step(*args):
            if self.steps is None or len(self.operators) == 2:
                return None
            self.clock.now += self.steps.pop() if self.steps else 1e-3
            return True

        yield step


@pytest.mark.parametrize("can_step", [True, False])
@pytest.mark.parametrize("in_place", [0.0, 0.5, 1.0])
def test_on_a_gpu_every_capture_of_a_round_counts_once(can_step, in_place, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("fedlightning.oracle.timing.time.perf_counter", lambda: clock.now)
    oracle = SimpleNamespace(evaluator=lambda objective, calls: Capturing(clock, can_step))
    objective = SimpleNamespace(autocast=Autocast("cuda"))
    found = MEASURED(Auto(), oracle, objective, 10, Arguments(torch.zeros(2, 3), None, None, None, in_place))
    captures = 2 if can_step and in_place == 0.5 else 1
    assert found == pytest.approx(1e-3 + (0.019 + captures * 0.199) / 10)


def test_trials_that_take_long_are_few(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    seconds_of([taking(clock, [0.6])], clock, 1000, monkeypatch)
    assert clock.now == pytest.approx(1.2)


@pytest.mark.parametrize("recording", [9e-2, 0.4])
def test_the_first_call_of_later_rounds_counts_in_place_of_the_recording(recording, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    evaluators = [taking(clock, [recording, 1e-3]), taking(clock, [5e-3, 1e-3])]
    assert seconds_of(evaluators, clock, 10, monkeypatch) == pytest.approx(1e-3 + 4e-3 / 10)


@pytest.mark.parametrize("read", [lambda t: t.item(), lambda t: float(t.numpy())], ids=["item", "numpy"])
def test_one_client_alone_may_read_a_constant_as_several_may(read, monkeypatch):
    seconds = Auto.seconds

    def little_gain(self, oracle, objective, calls, arguments):
        seconds(self, oracle, objective, calls, arguments)
        return 1.0 if isinstance(oracle, Sequential) else 0.95 * len(arguments[0])

    def reads_a_constant(task, original, batch):
        return original(batch) * read(torch.tensor(2.0, dtype=torch.float64))

    monkeypatch.setattr(Auto, "seconds", little_gain)
    _, loop, said = trained(Auto(), reads_a_constant, rounds=1)
    assert isinstance(loop.oracle, Vectorized)
    assert "in chunks of 1" in said[0]


def test_auto_with_one_client_is_sequential():
    algorithm = FedAvg(0.05)
    loop = loop_for(quadratic(algorithm, num_clients=1), Auto())
    run(loop, rounds_of(algorithm, 1, num_clients=1))
    assert isinstance(loop.oracle, Sequential)  # with its number of threads, if there are several


@pytest.mark.parametrize("change", ALONE + TOGETHER)
@pytest.mark.parametrize("oracle", [Auto(), Vectorized(), Vectorized(replay=False)], ids=str)
def test_every_oracle_gives_what_plain_evaluation_gives(change, oracle, monkeypatch):
    monkeypatch.setattr(Auto, "seconds", lambda self, oracle, *_: float(isinstance(oracle, Sequential)))
    Everywhere.calls = 0
    expected, _, _ = trained(Sequential(), change)
    Everywhere.calls = 0
    found, loop, said = trained(oracle, change)
    if change is not counts_elsewhere:  # nothing can put back what no attribute shows
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    alone = isinstance(loop.oracle, Sequential) or loop.oracle.backward == "each"
    assert alone == (change in ALONE)
    if change in ALONE:
        assert sum("Sequential: " in line for line in said) >= 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (counts, "changes self.calls in Python"),
        (draws_in_python, "draws random numbers from Python or NumPy"),
        (draws_from_its_own, "draws from a torch.Generator of the objective's own"),
        (draws_again_and_again_the_same, "differs from evaluation one by one"),
        (reads_a_value, "cannot run for all clients at once"),
        (caches, "differs from evaluation one by one"),
    ],
)
@pytest.mark.parametrize("oracle", [Vectorized(), Auto(trials=1)], ids=["Vectorized", "Auto"])
def test_one_line_says_why(change, reason, oracle):
    _, loop, said = trained(oracle, change, rounds=1)
    assert isinstance(loop.oracle, Sequential)
    assert len(said) == 1
    assert reason in said[0]
    assert "\n" not in said[0]


def test_what_an_objective_remembers_is_the_same_for_auto_and_plain_evaluation():
    """State in an object of the user's own, which nothing puts back: no trial may change it."""

    def schedule(task, original, batch):
        task.schedule = getattr(task, "schedule", None) or SimpleNamespace(n=0)
        task.schedule.n += 1
        return original(batch) * (1 + task.schedule.n / 1000)

    points = [trained(oracle, schedule)[0] for oracle in (Sequential(), Auto(), Vectorized())]
    assert torch.equal(points[0], points[1])
    assert torch.equal(points[0], points[2])


def test_python_numbers_are_drawn_by_seed_round_and_client():
    first, _, _ = trained(Auto(), draws_in_python)
    random.seed(99)
    second, _, _ = trained(Sequential(), draws_in_python)
    assert torch.equal(first, second)
