"""Direct functions run the operation that they stand for, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedlightning.oracle.randomness import NoiseOfOne, Randomness
from fedlightning.oracle.recording.course import Course
from fedlightning.oracle.recording.direct import direct
from fedlightning.oracle.recording.program import Program
from fedlightning.oracle.recording.recording import Recording
from fedlightning.oracle.recording.replay import Replay

aten = torch.ops.aten
A, B, C = torch.arange(12.0).reshape(3, 4) - 5, torch.linspace(-1, 1, 12).reshape(3, 4), torch.tensor(3.0)

ON_CPU = {"device": torch.device("cpu"), "pin_memory": False}

DIRECT = [
    (aten.mm.default, (A, B.T), {}, torch.mm),
    (aten.mul.Tensor, (A, B), {}, torch.mul),
    (aten.mul.Tensor, (A, 2.5), {}, torch.mul),
    (aten.mul.Tensor, (A, C), {}, torch.mul),
    (aten.add.Tensor, (A, B), {"alpha": 3}, torch.add),
    (aten.add_.Tensor, (A.clone(), B), {}, torch.Tensor.add_),
    (aten.sum.dim_IntList, (A, [0], True), {}, torch.sum),
    (aten.sum.default, (A,), {}, torch.sum),
    (aten.view.default, (A, [4, -1]), {}, torch.Tensor.view),
    (aten.select.int, (A, 0, -1), {}, torch.select),
    (aten.split_with_sizes.default, (A, [1, 3], 1), {}, torch.split_with_sizes),
    (aten.cat.default, ([A, B], 1), {}, torch.cat),
    (aten.zeros.default, ([2, 3],), ON_CPU, torch.zeros),
    (aten.gelu.default, (A,), {}, torch.nn.functional.gelu),
]


class Noted(TorchDispatchMode):
    """Keeps the operations that run."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("operation", "args", "kwargs", "function"), DIRECT)
def test_functions_run_their_operation_alone(operation, args, kwargs, function):
    found = direct(operation, args, kwargs)
    assert found == function
    again = [each.clone() if isinstance(each, torch.Tensor) else each for each in args]  # it may write into them
    with Noted() as noted:
        result = found(*args, **kwargs)
    assert noted.seen == [operation]
    expected = operation(*again, **kwargs)
    for value, wanted in zip(tree_leaves(result), tree_leaves(expected), strict=True):  # a tuple stands for a list
        torch.testing.assert_close(value, wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("operation", "args"),
    [
        (aten.div.Scalar, (A, 2)),  # torch.div runs div.Tensor
        (aten.threshold_backward.default, (A, B, 0)),  # which has no function
        (aten.max_pool2d_with_indices.default, (A.reshape(1, 3, 2, 2), [2, 2])),  # written in Python
    ],
)
def test_operations_without_such_a_function_are_called_by_name(operation, args):
    assert direct(operation, args, {}) is operation._op


@pytest.mark.parametrize(
    ("operation", "first", "then", "kwargs"),
    [
        (aten.arange.start_step, (0, 5, 2), (1, 1), ON_CPU),  # of two numbers, torch.arange runs arange.start
        (aten.hypot.default, (A, B), (B, C), {}),
        (aten.roll.default, (A, [1], [0]), (A, [1, 1], [0, 1]), {}),
    ],
)
def test_kinds_of_arguments_are_told_apart(operation, first, then, kwargs):
    """What was found for arguments of one kind serves another only if it runs the same operation on these."""
    direct(operation, first, kwargs)
    with Noted() as noted:
        direct(operation, then, kwargs)(*then, **kwargs)
    assert noted.seen == [operation]


def test_arguments_that_arrive_changed_are_given_by_name():
    """PyTorch's function leaves out a diagonal of 0, which is what the operation takes by default."""
    assert direct(aten.tril.default, (A, 0), {}) is aten.tril.default._op
    assert direct(aten.triu.default, (A, 1), {}) is torch.triu


def test_other_functions_stay():
    def own(x):
        return x

    assert direct(own, (A,), {}) is own


def test_operations_are_not_computed_to_be_seen():
    """A direct function is looked for while others compute: an operation in place must not run twice."""
    x = torch.zeros(3)
    assert direct(aten.hypot_.default, (x, torch.ones(3)), {}) == torch.Tensor.hypot_
    assert x.tolist() == [0.0, 0.0, 0.0]


def name_of(names):
    """A function that names tensors."""
    return lambda tensor: names[id(tensor)]


class Doubled(TorchFunctionMode):
    """Doubles what ``torch.relu`` returns."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result + result if func is torch.relu else result


def under(mode, function, w, x, lr):
    """What a function first returns, what its replay returns, and where a step leads, all under a user's mode."""
    recording = Recording(function)
    with mode:
        first = recording(w, x)[0][0].tolist()
        again = recording(w, x)[0][0].tolist()
        with Course(w, lr) as course:
            assert course.step(recording, (x,)) is not None
    return first, again, w.tolist()


def test_overrides_of_functions_count_once():
    """A user's mode is recorded as the operations that it runs, and must not act on the replay of these again."""

    def function(w, x):
        left, right = w.split(3, 1)
        return [torch.cat([torch.relu(left * x), right * 1], 1)], None

    w, x = torch.ones(2, 6), torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, 6.0]])
    first, again, stepped = under(Doubled(), function, w, x, lr=0.5)
    assert first == again == [[2.0, 0.0, 6.0, 1.0, 1.0, 1.0], [0.0, 10.0, 12.0, 1.0, 1.0, 1.0]]
    assert stepped == [[0.0, 1.0, -2.0, 0.5, 0.5, 0.5], [1.0, -4.0, -5.0, 0.5, 0.5, 0.5]]


def test_overrides_of_constants_count_once():
    """Operations that depend on no input run once, before all replays and steps."""

    def function(w, x):
        left, right = w.split(1, 1)
        return [torch.cat([left * x + torch.relu(torch.full((1, 1), 2.0)), right * x], 1)], None

    w, x = torch.ones(1, 2), torch.full((1, 1), 3.0)
    first, again, stepped = under(Doubled(), function, w, x, lr=1.0)
    assert first == again == [[7.0, 3.0]]
    assert stepped == [[-6.0, -2.0]]


class DoubledByName(TorchFunctionMode):
    """Doubles what an operation returns that is called by its name."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if isinstance(func, torch._ops.OpOverload) else result


def test_overrides_of_operations_that_are_called_by_name_count_once():
    """Where PyTorch has no function of its own, a replay calls operations as the user did, but without the mode."""

    def function(w, x):
        left, right = w.split(1, 1)
        return [torch.cat([aten.threshold_backward.default(left, x, 0), right * x], 1)], None

    w, x = torch.ones(1, 2), torch.full((1, 1), 3.0)
    first, again, stepped = under(DoubledByName(), function, w, x, lr=1.0)
    assert first == again == [[2.0, 3.0]]
    assert stepped == [[-1.0, -2.0]]


def test_constants_of_a_graph_are_computed_without_overrides():
    """They are computed when its program is made, which is before anything is captured."""
    w, constant = torch.ones(2), torch.full([2], 2.0)
    program = Program(1)
    names = {id(w): program.input(0)}
    for function, args, output in [
        (aten.full.default, ([2], 2.0), constant),
        (aten.relu.default, (constant,), rectified := constant.relu()),
        (aten.mul.Tensor, (w, rectified), product := w * rectified),
    ]:
        (names[id(output)],) = program.add(function, args, {}, name_of(names), output, acts=False)
    replay = Replay(
        program, [names[id(product)]], None, is_apart=False, is_of_one=True, is_of_gpu=False, is_lasting=False
    )
    with Doubled():
        run = replay.run
    assert run(w)[0].tolist() == [2.0, 2.0]


@pytest.fixture
def library():
    """Operations of one's own whose bodies override ``torch.relu``."""

    def doubled(x):
        with Doubled():
            return torch.relu(x)

    library = torch.library.Library("fedlightning_direct", "FRAGMENT")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", doubled, "CPU")
    library.define("lists(Tensor x) -> (Tensor[], Tensor)")
    library.impl("lists", lambda x: ([doubled(x)], x + 1), "CPU")
    library.define("drawn(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    library.impl("drawn", lambda x: doubled(x) + 0 * torch.rand(x.shape), "CPU")
    yield torch.ops.fedlightning_direct
    library._destroy()


@pytest.mark.parametrize(
    "function",
    [
        lambda library, x: library.doubled.default(x),
        lambda library, x: library.lists.default(x)[0][0],
        lambda library, x: library.drawn.default(x),
    ],
    ids=["one tensor", "lists of tensors", "random"],
)
def test_overrides_inside_an_operation_act_in_every_replay(library, function):
    """A recording sees the operation alone, and not what its body does."""
    noise = NoiseOfOne()
    noise.begin(Randomness([7], 0), 0)
    recording = Recording(lambda w, x: ([function(library, w * x)], None), noise)
    w, x = torch.ones(1, 3), torch.tensor([[1.0, 2.0, -3.0]])
    assert [recording(w, x)[0][0].tolist() for _ in range(3)] == [[[2.0, 4.0, 0.0]]] * 3
    assert recording.replays


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_kernels_of_the_users_own_keep_their_overrides():
    """PyTorch's operations, too, may run Python where a kernel of one's own is registered."""

    def kernel(x):
        with Doubled():
            return torch.relu(x)

    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("special_bessel_j0", kernel, "CPU")
        recording = Recording(lambda w, x: ([torch.special.bessel_j0(w * x)], None))
        w, x = torch.ones(1, 2), torch.tensor([[1.0, -3.0]])
        assert [recording(w, x)[0][0].tolist() for _ in range(3)] == [[[2.0, 0.0]]] * 3
        assert recording.replays
    finally:
        library._destroy()


def test_overrides_come_back_behind_a_replay():
    recording = Recording(lambda w: ([torch.relu(w)], None))
    with Doubled():
        for _ in range(2):
            assert recording(C[None])[0][0].item() == 6.0
        assert torch.relu(C).item() == 6.0
