"""Programs run what was written down, and nothing else."""

from __future__ import annotations

import gc
import weakref

import torch

from fedlightning.oracle.recording.program import Program

aten = torch.ops.aten


def names(tensors):
    """A function that names tensors as ``tensors`` says."""
    known = {id(tensor): name for name, tensor in tensors.items()}
    return lambda tensor: known[id(tensor)]


def test_results_that_nobody_reads_are_left_out():
    """Of x + 1, x * 2 and (x * 2)[0] the first has no reader; a write has an effect and stays."""
    x, calls = torch.tensor([1.0, 2.0]), []
    program = Program(1)

    def noted(name, function):
        return lambda *args: calls.append(name) or function(*args)

    program.add(noted("unread", torch.add), (x, 1), {}, names({program.input(0): x}), x + 1, acts=False)
    (double,) = program.add(noted("read", torch.mul), (x, 2), {}, names({program.input(0): x}), x * 2, acts=False)
    twice = x * 2
    program.add(noted("write", torch.Tensor.add_), (twice, 5), {}, names({double: twice}), twice, acts=True)
    replay = program.function([double])
    assert replay(torch.tensor([10.0, 20.0]))[0].tolist() == [25.0, 45.0]
    assert calls == ["read", "write"]


def test_arguments_of_every_kind_arrive():
    """Numbers and None stand in the source; infinities, dtypes and tensors of before are kept."""
    x, kept = torch.zeros(2), torch.tensor([7.0, 8.0])
    program = Program(1)
    inner = {program.input(0): x, program.hold(kept): kept}
    (filled,) = program.add(aten.add.Tensor, (x, kept), {"alpha": 2}, names(inner), x + 2 * kept, acts=False)
    y = x + 2 * kept
    (high,) = program.add(aten.clamp.default, (y, None, float("inf")), {}, names({filled: y}), y, acts=False)
    (wide,) = program.add(aten.to.dtype, (y, torch.float64), {}, names({high: y}), y.double(), acts=False)
    (result,) = program.function([wide])(torch.ones(2))
    assert result.dtype == torch.float64
    assert result.tolist() == [15.0, 17.0]


def test_several_results_of_one_operation():
    x = torch.arange(6.0)
    program = Program(1)
    parts = x.split(2)
    first, second, third = program.add(aten.split.Tensor, (x, 2), {}, names({program.input(0): x}), parts, acts=False)
    replay = program.function([third, first])
    assert second is not None
    assert [part.tolist() for part in replay(torch.arange(6.0) * 10)] == [[40.0, 50.0], [0.0, 10.0]]


def test_tensors_are_let_go_after_their_last_use():
    """As the last operation runs, the first one's result is gone."""
    x, seen = torch.ones(3), []
    program = Program(1)

    def first(value):
        made = value + 1
        seen.append(weakref.ref(made))
        return made

    def last(value):
        gc.collect()
        seen.append(seen[0]() is None)
        return value + 1

    (one,) = program.add(first, (x,), {}, names({program.input(0): x}), x + 1, acts=False)
    y = x + 1
    (two,) = program.add(torch.neg, (y,), {}, names({one: y}), -y, acts=False)
    (three,) = program.add(last, (y,), {}, names({two: y}), -y, acts=False)
    assert program.function([three])(x)[0].tolist() == [-1.0, -1.0, -1.0]
    assert seen[1]


def test_equal_programs_are_compiled_once():
    def made(factor):
        x = torch.ones(2)
        program = Program(1)
        known = names({program.input(0): x, program.hold(factor): factor})
        (y,) = program.add(aten.mul.Tensor, (x, factor), {}, known, x * factor, acts=False)
        return program.function([y])

    two, three = made(torch.tensor(2.0)), made(torch.tensor(3.0))
    assert two.__code__ is three.__code__
    assert (two(torch.ones(1))[0].item(), three(torch.ones(1))[0].item()) == (2.0, 3.0)


def test_constants_are_made_once():
    """x + y / 2 with y = 1."""
    x, y, calls = torch.tensor([3.0, 4.0]), torch.ones(2), []
    program = Program(1)

    def noted(name, function):
        return lambda *args: calls.append(name) or function(*args)

    (ones,) = program.add(noted("ones", torch.ones), (2,), {}, names({}), y, acts=False)
    (half,) = program.add(noted("half", torch.div), (y, 2), {}, names({ones: y}), y / 2, acts=False)
    known = names({program.input(0): x, half: (z := y / 2)})
    (result,) = program.add(noted("sum", torch.add), (x, z), {}, known, x + z, acts=False)
    replay = program.function([result])
    assert [replay(k * x)[0].tolist() for k in (1, 2)] == [[3.5, 4.5], [6.5, 8.5]]
    assert calls == ["ones", "half", "sum", "sum"]


def test_steps_share_the_views_of_their_point():
    """Along -3 y w for minibatches y, and with a view, a copy of its numbers, and a product that is read every time."""
    w, y, calls = torch.tensor([[1.0, 2.0]]), torch.tensor([[5.0, 7.0]]), []
    program = Program(2)

    def noted(name, function):
        return lambda *args: calls.append(name) or function(*args)

    tensors = {program.input(0): w, program.input(1): y}

    def add(name, function, args, output, is_view):
        (made,) = program.add(noted(name, function), args, {}, names(tensors), output, acts=False, is_view=is_view)
        tensors[made] = output
        return output

    first = add("view", lambda t: t[:, :1], (w,), w[:, :1], is_view=True)
    inner = add("view of a view", lambda t: t[0], (first,), first[0], is_view=True)
    number = add("number", torch.clone, (inner,), inner.clone(), is_view=False)
    parts = [
        add("part", lambda a, k=k: a[:, k : k + 1] * -3, (y,), y[:, k : k + 1] * -3, is_view=False) for k in (0, 1)
    ]
    whole = program.join(parts, 1, names(tensors), torch.cat(parts, 1))
    steps = program.steps([whole, names(tensors)(number)])(w, lr=0.1)
    next(steps)
    for k in (1.0, 2.0):
        before = w.clone()
        (seen,) = steps.send([k * y])
        assert seen.tolist() == before[0, :1].tolist()
        assert torch.equal(w, before.sub_(torch.cat([k * y[:, :1] * -3, k * y[:, 1:] * -3], 1), alpha=0.1))
    assert sorted(calls) == ["number"] * 2 + ["part"] * 4 + ["view", "view of a view"]
