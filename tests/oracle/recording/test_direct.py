"""Direct functions run the operation that they stand for, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedlightning.oracle.recording.course import Course
from fedlightning.oracle.recording.direct import direct, without_overrides
from fedlightning.oracle.recording.recording import Recording

aten = torch.ops.aten
A, B, C = torch.arange(12.0).reshape(3, 4) - 5, torch.linspace(-1, 1, 12).reshape(3, 4), torch.tensor(3.0)

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
    (aten.zeros.default, ([2, 3],), {"device": torch.device("cpu"), "pin_memory": False}, torch.zeros),
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
    with Noted() as noted:
        result = found(*args, **kwargs)
    assert noted.seen == [operation]
    expected = operation(*args, **kwargs) if not operation._schema.is_mutable else args[0]
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
    found = direct(operation, args, {})
    assert found is operation._op
    torch.testing.assert_close(found(*args), operation(*args), rtol=0, atol=0)


def test_kinds_of_arguments_are_told_apart():
    """``torch.add`` takes a number and a tensor, whose operations are one; of ``torch.div`` they are two."""
    assert direct(aten.div.Tensor, (A, B), {}) is torch.div
    assert direct(aten.div.Scalar, (A, 2.0), {}) is aten.div.Scalar._op
    assert direct(aten.div.Tensor, (A, 2.0), {}) is torch.div


def test_other_functions_stay():
    """What is no operation, and operations of other libraries."""

    def own(x):
        return x

    assert direct(own, (A,), {}) is own
    operation = torch.ops.prims.sin.default
    assert direct(operation, (A,), {}) is operation._op


def test_operations_are_not_computed_to_be_seen():
    """A direct function is looked for while others compute: an addition in place must not be made twice."""
    x = torch.zeros(3, dtype=torch.float64)
    found = direct(aten.sub_.Tensor, (x, torch.ones(3, dtype=torch.float64)), {"alpha": 0.125})
    assert found == torch.Tensor.sub_
    assert x.tolist() == [0.0, 0.0, 0.0]


class Doubled(TorchFunctionMode):
    """Doubles what ``torch.relu`` returns."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result + result if func is torch.relu else result


def test_overrides_of_functions_count_once():
    """A user's mode is recorded as the operations that it runs, and must not act on the replay of these again."""

    def function(w, x):
        left, right = w.split(3, 1)
        return [torch.cat([torch.relu(left * x), right * 1], 1)], None

    w, x = torch.ones(2, 6), torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, 6.0]])
    recording = Recording(function)
    with Doubled():
        first = recording(w, x)[0][0].clone()
        again = recording(w, x)[0][0]
        with Course(w, lr=0.5) as course:
            assert course.step(recording, (x,)) is not None
    assert recording.replays
    assert first.tolist() == again.tolist() == [[2.0, 0.0, 6.0, 1.0, 1.0, 1.0], [0.0, 10.0, 12.0, 1.0, 1.0, 1.0]]
    assert w.tolist() == [[0.0, 1.0, -2.0, 0.5, 0.5, 0.5], [1.0, -4.0, -5.0, 0.5, 0.5, 0.5]]


def test_overrides_come_back_behind_a_replay():
    with Doubled():
        with without_overrides():
            assert torch.relu(C).item() == 3.0
        assert torch.relu(C).item() == 6.0
