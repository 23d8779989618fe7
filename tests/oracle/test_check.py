"""A way to compute that is wrong is found out, named, and given up for the next slower one."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import functional as F

from fedlightning.algorithms import FedAvg, FedSGDA
from fedlightning.core.parameter_space import ParameterSpace, read
from fedlightning.federation.cohort import RoundBatch
from fedlightning.oracle import Auto, Autocast, Evaluation, Objective, ObjectiveError, Sequential, Vectorized
from fedlightning.oracle.check import SelfCheck, fastest_that_agrees
from fedlightning.oracle.comparison import Sample
from fedlightning.oracle.look import Look
from tests.oracle.test_oracle import S, classify, setting
from tests.support.federations import loop_for, quadratic, rounds_of, run

STEPS = 25  # enough to be replayed


def checked(net, shape=(6,), loss=classify, dtype=torch.float64):
    """The check of an objective, and the objective."""
    objective, w, v, b, data = setting(net, shape, dtype, loss)
    batches = [tuple(leaf[:2] for leaf in data) for _ in range(3)]
    return SelfCheck(objective, Sample(w[:2], v[:2], b[:2], batches)), objective


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


@dataclass(frozen=True)
class Wrong(Vectorized):
    """Right but for one quantity of the second client at one step, by a number and by some last digits."""

    what: str = "g"
    step: int = 0
    by: float = 1e-3
    digits: int = 0

    def ways(self, on_cpu):
        yield self

    def evaluator(self, objective, calls):
        right = Sequential().evaluator(objective, calls)
        calls_so_far = []

        def evaluate(*arguments):
            result = right(*arguments)
            parts = {name: getattr(result, name) for name in ("g", "g_personal", "buffers", "loss", "scalars")}
            by = self.by + self.digits * torch.finfo(result.g.dtype).eps
            if len(calls_so_far) == self.step:
                if self.what == "scalars":
                    parts["scalars"] = {name: value + by for name, value in result.scalars.items()}
                else:
                    parts[self.what] = parts[self.what].clone()
                    parts[self.what][1:] += by
            calls_so_far.append(1)
            return Evaluation(**parts)

        return evaluate


def with_scalars(net, batch):
    loss = classify(net, batch)
    return {"loss": loss, "twice": 2 * loss}


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("g", "the gradient of 'net"),
        ("buffers", "buffer 'net"),
        ("loss", "the loss"),
        ("scalars", "the logged 'twice'"),
    ],
)
def test_every_quantity_is_compared_at_every_step(what, named, step):
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    check, _ = checked(net, loss=with_scalars)
    assert check(Wrong(by=0.0)) is None
    said = check(Wrong(what=what, step=step))
    assert said.startswith(named)
    assert said.endswith(f"at step {step + 1}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rounding_is_no_difference_and_little_more_is(dtype):
    check, _ = checked(mlp(), dtype=dtype)
    assert check(Wrong(by=0.0, digits=10)) is None
    assert check(Wrong(by=10 * torch.finfo(dtype).eps ** 0.5)) is not None
    for way in (Vectorized(replay=True), Vectorized(replay=False, backward="vmap")):
        assert check(way) is None


@dataclass(frozen=True)
class Turned(Vectorized):
    """Gradients times a factor."""

    factor: float = -1.0

    def ways(self, on_cpu):
        yield self

    def evaluator(self, objective, calls):
        right = Sequential().evaluator(objective, calls)

        def evaluate(*arguments):
            result = right(*arguments)
            return replace(result, g=self.factor * result.g)

        return evaluate


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16, "tf32"])
@pytest.mark.parametrize("factor", [-1.0, 0.0, 0.5, 1.2])
def test_coarse_numbers_are_no_excuse(precision, factor, monkeypatch):
    objective, w, v, b, data = setting(mlp(), (6,), torch.float32)
    if precision == "tf32":
        monkeypatch.setattr(SelfCheck, "_eps", 2.0**-10)
    else:
        objective.autocast = Autocast("cpu", precision)
    check = SelfCheck(objective, Sample(w[:2], v[:2], b[:2], [tuple(leaf[:2] for leaf in data)]))
    assert check(Turned(factor=1.0)) is None
    assert check(Turned(factor=factor)) is not None
    for way in (Vectorized(replay=True, backward="autograd"), Vectorized(replay=False, backward="vmap")):
        assert check(way) is None


def test_gradients_that_are_nan_in_both_agree():
    def loss(net, batch):
        return classify(net, batch) + 0 * (net[0].weight - net[0].weight).sum().sqrt()

    check, objective = checked(mlp(), loss=loss)
    _, w, v, b, data = setting(mlp(), (6,), loss=loss)
    assert Sequential().evaluator(objective, 1)(w, v, b, data).g.isnan().any()
    assert check(Vectorized()) is None


def test_an_objective_at_the_edge_of_rounding_is_not_accused():
    """A gradient of rounding errors: two ways to sum agree in no digit, and neither is wrong."""

    def loss(net, batch):
        y = net(batch[0])
        return ((y - y.detach()) * 1e9).sum() + 1e-9 * ((y + 1e8) - 1e8 - y).square().sum()

    check, _ = checked(mlp(), loss=loss)
    assert check(Vectorized()) is None


def test_the_check_leaves_no_trace():
    net = mlp()
    net.calls = 0
    net.seen = []
    net.memory = torch.zeros(2)

    def loss(net, batch):
        net.calls += 1
        net.seen.append(net.calls)
        net.memory += 1
        net.extra = net.calls
        random.random()
        np.random.rand()
        return classify(net, (F.dropout(batch[0]), batch[1]))

    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    check, _ = checked(net, loss=loss)
    torch.set_rng_state(before[0])
    assert check(Sequential()) is None
    check(Vectorized())
    assert (net.calls, net.seen, net.memory.tolist()) == (0, [], [0, 0])
    assert not hasattr(net, "extra")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()


def test_the_ladder_goes_down_as_far_as_it_must():
    tried = []

    def check_with(first_right):
        def check(oracle):
            tried.append(oracle)
            return None if len(tried) > first_right else f"wrong {len(tried)}"

        return check

    expected = [
        Vectorized(backward="autograd", replay=None),
        Vectorized(backward="autograd", replay=False),
        Vectorized(backward="vmap", replay=None),
        Vectorized(backward="vmap", replay=False),
        Sequential(),
    ]
    for right, way in enumerate(expected):
        tried.clear()
        found, why = fastest_that_agrees(Vectorized(), True, check_with(right))
        assert found == way
        assert (why is None) == (right == 0)
        assert right == 0 or why == "with Vectorized(backward='autograd', replay=True) wrong 1"
    assert next(Vectorized(compile=True).ways(True)) == Vectorized(compile=True)


# ---- in the loop: objectives that are wrong, or fail, at some step of the ladder ----


def trained(oracle, change=None, rounds=2, **options):
    """Points of a quadratic problem whose objective ``change`` replaces, the loop and what it said."""
    said = []
    options = {"self_check": "first", **options}
    algorithm = FedAvg(0.05)
    task = quadratic(algorithm)
    original = task.objective
    if change is not None:
        task.objective = lambda batch: change(task, original, batch)
    loop = loop_for(task, oracle, report=said.append, **options)
    return run(loop, rounds_of(algorithm, rounds, local_steps=STEPS)), loop, said


def counts(task, original, batch):
    task.calls = getattr(task, "calls", 0) + 1
    return original(batch) * (1 + 0.1 * task.calls)


class Everywhere:
    """State that no attribute of the task shows."""

    calls = 0


def counts_elsewhere(task, original, batch):
    Everywhere.calls += 1
    return original(batch) * (1 + 0.1 * (Everywhere.calls % 7))


def draws_in_python(task, original, batch):
    return original(batch) * (1 + random.random() + np.random.rand())


def draws_from_its_own(task, original, batch):
    noise = torch.rand((), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return original(batch) * (1 + noise)


def draws_again_and_again_the_same(task, original, batch):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return original(batch) * (1 + torch.rand((), dtype=torch.float64))


def reads_a_value(task, original, batch):
    loss = original(batch)
    return loss * 2 if loss.item() > 0 else loss


def writes_into_a_constant(task, original, batch):
    penalty = torch.tensor(0.0, dtype=torch.float64)
    penalty += task.x.square().sum()
    return original(batch) + penalty


def adds_to_a_constant(task, original, batch):
    penalty = torch.tensor(0.0, dtype=torch.float64)
    for k in range(3):
        penalty += 0.1 * k
    return original(batch) * (1 + penalty)


def caches(task, original, batch):
    loss = original(batch)
    before, task.before = getattr(task, "before", None), loss.detach()
    return loss if before is None else loss * (1 + 0.01 * before)


def is_differentiated_inside(task, original, batch):
    slope = torch.func.grad(lambda x: (x * task.x).square().sum())(task.x)
    return original(batch) + slope.square().sum()


def is_complex(task, original, batch):
    z = torch.fft.fft(task.x) * torch.complex(task.x, task.x)
    return original(batch) + 0.1 * torch.fft.ifft(z * z.conj()).abs().square().sum().tanh()


ALONE = [
    counts,
    counts_elsewhere,
    draws_in_python,
    draws_from_its_own,
    draws_again_and_again_the_same,
    reads_a_value,
    writes_into_a_constant,
    caches,
]
TOGETHER = [adds_to_a_constant, is_differentiated_inside, is_complex]


# state that has no effect yet in the rounds that are compared


def in_a_list(task, original, batch):
    task.seen = [*getattr(task, "seen", []), 1]
    return original(batch) * (2 if len(task.seen) > 400 else 1)


SEEN = deque()


def in_a_deque(task, original, batch):
    SEEN.append(1)
    return original(batch) * (2 if len(SEEN) > 400 else 1)


def in_a_default(task, original, batch, seen=[]):  # noqa: B006
    seen.append(1)
    return original(batch) * (2 if len(seen) > 400 else 1)


def in_an_object(task, original, batch):
    task.schedule = getattr(task, "schedule", None) or SimpleNamespace(n=0)
    task.schedule.n += 1
    return original(batch) * (2 if task.schedule.n > 400 else 1)


def in_a_counter(task, original, batch):
    task.numbers = getattr(task, "numbers", None) or count()
    return original(batch) * (2 if next(task.numbers) > 400 else 1)


def in_a_tensor(task, original, batch):
    task.t = getattr(task, "t", torch.zeros(())) + 1
    return original(batch) * torch.where(task.t > 400, 2.0, 1.0)


def in_a_class(task, original, batch):
    Everywhere.calls += 1
    return original(batch) * (2 if Everywhere.calls > 400 else 1)


def in_a_generator(task, original, batch):
    task.draws = getattr(task, "draws", None) or random.Random(0)
    return original(batch) * (2 if task.draws.random() > 0.99 else 1)


@pytest.mark.parametrize(
    "change", [in_a_list, in_a_deque, in_a_default, in_an_object, in_a_counter, in_a_tensor, in_a_class, in_a_generator]
)
def test_state_in_python_is_seen_before_it_acts(change):
    Everywhere.calls = 0
    _, loop, (line,) = trained(Vectorized(), lambda *arguments: change(*arguments), rounds=1)
    assert isinstance(loop.oracle, Sequential)
    assert "in Python, once for every client it is evaluated for" in line


def keeps_its_mode(task, original, batch):
    task.teacher = getattr(task, "teacher", None) or nn.Linear(1, 1)
    task.teacher.eval()
    task.size, task.last = len(batch), original(batch).detach()
    return original(batch)


def test_what_is_the_same_after_every_call_is_no_state():
    _, loop, said = trained(Vectorized(), keeps_its_mode)
    assert isinstance(loop.oracle, Vectorized)
    assert said == []


def test_a_buffer_that_is_written_late_is_refused_by_name():
    def thaws(task, original, batch):
        if task.thawed:
            task.offset.mul_(0.9)
        return original(batch)

    for oracle in (Sequential(), Vectorized()):
        algorithm = FedAvg(0.05)
        task = quadratic(algorithm)
        original, task.thawed = task.objective, False
        task.objective = lambda batch, task=task, original=original: thaws(task, original, batch)
        loop = loop_for(task, oracle, self_check="first")
        first, second = rounds_of(algorithm, 2, local_steps=STEPS)
        point = run(loop, [first])[0]
        task.thawed = True
        with pytest.raises(ObjectiveError, match="has begun to write into the buffer 'offset'"):
            run(loop, [second])
        assert torch.equal(loop.point, point)


def scaled(task):
    with torch.no_grad():
        task.x.mul_(0.9)


def initialised(task):
    nn.init.zeros_(task.x)


def replaced(task):
    task.x.data = task.x.data * 0.9


def clamped(task):
    task.x.data.clamp_(-0.01, 0.01)


def clamped_in_vain(task):
    task.x.data.clamp_(-1e6, 1e6)


def clamped_behind_the_back(task):
    for parameter in task.in_a_list:
        parameter.data.clamp_(-0.01, 0.01)


def written(oracle, write, algorithm=None, from_round=0):
    """A loop whose objective writes into the parameter x from its next round on; that round, point and parameter."""
    algorithm = algorithm or FedAvg(0.05)
    task = quadratic(algorithm)
    original, task.writes, task.in_a_list = task.objective, False, [task.x]

    def objective(batch):
        if task.writes:
            write(task)
        return original(batch)

    task.objective = objective
    loop = loop_for(task, oracle, self_check="first")
    *before, batch = rounds_of(algorithm, from_round + 1, local_steps=STEPS)
    for each in before:
        loop.run(each, Autocast("cpu"))
    task.writes = True
    return loop, batch, loop.point.clone(), task.x.clone()


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized()], ids=str)
@pytest.mark.parametrize("write", [scaled, initialised, replaced, clamped, clamped_in_vain, clamped_behind_the_back])
def test_an_objective_that_moves_what_is_trained_is_refused(write, oracle):
    loop, batch, point, _ = written(oracle, write)
    with pytest.raises(
        ObjectiveError,
        match=r"objective writes into its trainable parameter 'x': the algorithm alone moves .*"
        r"proximal\.Box\(low, high\).*freeze the parameter with requires_grad_\(False\).*register_buffer",
    ):
        loop.run(batch, Autocast("cpu"))
    assert torch.equal(loop.point, point)


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(replay=False)], ids=str)
@pytest.mark.parametrize("algorithm", [FedAvg(0.05), FedSGDA(0.05)], ids=["from a copy", "from the server's point"])
def test_one_that_begins_to_later_is_refused_too(algorithm, oracle):
    loop, batch, point, own = written(oracle, scaled, algorithm, from_round=1)
    with pytest.raises(ObjectiveError, match="has begun to write into a trainable parameter: the algorithm alone"):
        loop.run(batch, Autocast("cpu"))
    assert torch.equal(loop.point, point)
    assert torch.equal(own, loop._task.x)


def test_an_embedding_that_renormalises_its_rows_is_refused():
    """Plain for FedAvg, but where clients stand at the server's point it would change that."""
    net = nn.Sequential(nn.Embedding(3, 4, max_norm=0.1), nn.Linear(4, 3))
    objective, w, v, _, data = setting(net, (6,), loss=lambda net, batch: F.cross_entropy(net(batch[1]), batch[1]))
    data = tuple(leaf[0] for leaf in data)
    with pytest.raises(
        ObjectiveError, match=r"'net\.0\.weight' by nn\.Embedding\(max_norm=\.\.\.\): .* Leave max_norm out and scale"
    ):
        Look.at(objective, w[0], v[0], data)
    net[0].weight.requires_grad_(False)
    frozen = Objective(objective.task, ParameterSpace(objective.task), Autocast("cpu"))
    z = read(frozen.space.shared, frozen.task)
    assert "frozen parameter 'net.0.weight'" in Look.at(frozen, z, v[0], data).alone


def test_python_numbers_that_are_drawn_late_are_noticed():
    def late(task, original, batch):
        return original(batch) * (1 + (np.random.rand() if task.noisy else 0))

    algorithm = FedAvg(0.05)
    task = quadratic(algorithm)
    original, task.noisy = task.objective, False
    task.objective = lambda batch: late(task, original, batch)
    said = []
    loop = loop_for(task, Vectorized(), report=said.append, self_check="first")
    first, second = rounds_of(algorithm, 2, local_steps=STEPS)
    run(loop, [first])
    assert said == []
    task.noisy = True
    run(loop, [second])
    assert isinstance(loop.oracle, Sequential)
    assert "from the next round on: the objective has begun to draw random numbers from Python or NumPy" in said[0]


def test_hooks_behind_a_guard_are_put_on_tensors():
    """Below the forward pass' vmap no tensor says that it needs a gradient."""

    def guarded(task, original, batch):
        x = task.x * 1.0
        if x.requires_grad:
            x.register_hook(lambda g: g.clamp(max=1e6) * torch.where(g.norm() > 1e3, 0.5, 1.0))
        return original(batch) + x.square().sum()

    _, loop, _ = trained(Vectorized(), guarded)
    assert loop.oracle.backward == "vmap"


@pytest.mark.parametrize("change", ALONE + TOGETHER)
@pytest.mark.parametrize("oracle", [Auto(), Vectorized(), Vectorized(replay=False)], ids=str)
def test_every_oracle_gives_what_plain_evaluation_gives(change, oracle, monkeypatch):
    monkeypatch.setattr(Auto, "_time", lambda self, oracle, *_: float(isinstance(oracle, Sequential)))
    Everywhere.calls = 0
    expected, _, _ = trained(Sequential(), change)
    Everywhere.calls = 0
    found, loop, said = trained(oracle, change)
    if change is not counts_elsewhere:  # nothing can put back what no attribute shows
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert isinstance(loop.oracle, Sequential if change in ALONE else Vectorized)
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


def test_what_fails_one_by_one_is_shown_with_the_client():
    def fails(task, original, batch):
        if batch[0] == 3:  # a client's batch is its number
            raise TypeError("three is too many")
        return original(batch)

    for oracle in (Sequential(), Vectorized(), Auto()):
        with pytest.raises(
            ObjectiveError, match="objective failed for client 3: TypeError: three is too many"
        ) as error:
            trained(oracle, fails)
        assert isinstance(error.value.__cause__, TypeError)


def test_what_begins_to_fail_later_falls_back_in_that_round():
    def from_round_two(task, original, batch):
        loss = original(batch)
        return loss * (2 if task.branch and loss.item() != 0 else 1)

    results = []
    for oracle in (Sequential(), Vectorized()):
        algorithm = FedAvg(0.05)
        task = quadratic(algorithm)
        original, task.branch = task.objective, False
        task.objective = lambda batch, task=task, original=original: from_round_two(task, original, batch)
        said = []
        loop = loop_for(task, oracle, report=said.append, self_check="first")
        points = []
        for index, batch in enumerate(rounds_of(algorithm, 3, local_steps=STEPS)):
            task.branch = index == 1
            points.append(run(loop, [batch]))
        results.append(torch.cat(points))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    assert loop.oracle == Sequential()
    assert "Sequential" in said[-1]


def test_every_n_rounds_finds_what_the_first_round_does_not_show():
    """Python state that acts from the third round on only."""

    def later(task, original, batch):
        Everywhere.calls += task.started
        return original(batch) * (1 + (0.1 * Everywhere.calls if task.started else 0))

    for when, sequential in (("first", False), (2, True), ("off", False)):
        algorithm = FedAvg(0.05)
        task = quadratic(algorithm)
        original, task.started = task.objective, False
        task.objective = lambda batch, task=task, original=original: later(task, original, batch)
        loop = loop_for(task, Vectorized(), self_check=when)
        for index, batch in enumerate(rounds_of(algorithm, 4, local_steps=STEPS)):
            task.started = index >= 2
            loop.run(batch, Autocast("cpu"))
        assert isinstance(loop.oracle, Sequential) == sequential


def wrong_side_by_side(client):
    """An objective that is another one for a client, but only beside others."""

    def change(task, original, batch):
        wrong = (batch == client).any() & is_functorch_wrapped_tensor(batch)
        return original(batch) * torch.where(wrong, 1.1, 1.0)

    return change


def test_the_last_client_of_a_cohort_is_compared_too():
    expected, _, _ = trained(Sequential(), wrong_side_by_side(5))
    found, loop, (line,) = trained(Vectorized(), wrong_side_by_side(5))
    assert loop.oracle == Sequential()
    assert " in client 5, at step 1" in line
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("client", "rounds"), [(1, 2), (3, 3), (4, 3)])
def test_every_look_compares_other_clients(client, rounds):
    """0 and 5 in the first round, then 1 and 2, then 3 and 4."""
    for length in (rounds - 1, rounds):
        _, loop, _ = trained(Vectorized(), wrong_side_by_side(client), rounds=length, self_check=1)
        assert isinstance(loop.oracle, Sequential) == (length == rounds)


def test_off_checks_nothing(monkeypatch):
    def never(*_):
        raise AssertionError("checked")

    monkeypatch.setattr(SelfCheck, "__init__", never)
    trained(Vectorized(), self_check="off")
    with pytest.raises(AssertionError, match="checked"):
        trained(Vectorized())


def test_a_batch_that_is_written_into_is_a_copy():
    """One client's data, met by the look, the check, the trial and every step, are those it holds."""

    def scales(task, original, batch):
        batch.mul_(2)
        return original(batch.remainder(6)) + (task.x * batch).square().sum()

    algorithm = FedAvg(0.05)
    points = []
    for oracle in (Sequential(), Vectorized(), Vectorized(replay=False), Auto()):
        task = quadratic(algorithm)
        original = task.objective
        task.objective = lambda batch, task=task, original=original: scales(task, original, batch)
        loop = loop_for(task, oracle, self_check="first")
        points.append(run(loop, rounds_of(algorithm, 2, local_steps=STEPS)))
    for other in points[1:]:
        torch.testing.assert_close(other, points[0], rtol=1e-12, atol=1e-12)


def test_the_same_round_twice_is_the_same_round():
    algorithm = FedAvg(0.05)
    (batch,) = rounds_of(algorithm, 1, local_steps=STEPS)
    again = RoundBatch(batch.index, batch.cohorts, batch.samples)
    points = [run(loop_for(quadratic(algorithm, noise=1.0), Vectorized()), [each]) for each in (batch, again)]
    assert torch.equal(*points)
    assert S == 3
