"""Results take the place of operands that nobody reads any more, and of no others."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fedlightning.oracle.recording.course import Course
from fedlightning.oracle.recording.overwriting import IN_PLACE
from fedlightning.oracle.recording.recording import Recording

aten = torch.ops.aten


class Taken(TorchDispatchMode):
    """Notes the operations that compute into an operand."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in IN_PLACE.values():
            assert result.data_ptr() == args[0].data_ptr()
            self.names.append(func._schema.name.removeprefix("aten::"))
        return result


def taken(function, *inputs):
    """Replay a function, compare with a call, and return the operations of a replay that computed in place."""
    calls = []
    recording = Recording(lambda *tensors: (calls.append(None) or function(*tensors), None))
    for _ in range(3):
        calls.clear()
        inputs = [torch.randn_like(tensor) for tensor in inputs]
        kept = [tensor.clone() for tensor in inputs]
        with Taken() as seen:
            found, _ = recording(*inputs)
        assert all(map(torch.equal, inputs, kept))
        for mine, expected in zip(found, function(*inputs), strict=True):
            assert torch.equal(mine, expected)
            assert mine.stride() == expected.stride()
    assert not calls  # else nothing was replayed
    return seen.names


def gradient(activation, w, x):
    with torch.enable_grad():
        w = w.detach().requires_grad_()
        return [*torch.autograd.grad(activation(x @ w.view(3, 4)).cos().sum(), w)]


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (torch.relu, ["relu_", "threshold_backward"]),
        (torch.tanh, ["tanh_", "tanh_backward"]),
        (torch.sigmoid, ["sigmoid_", "sigmoid_backward"]),
        (F.leaky_relu, ["leaky_relu_backward"]),  # whose backward pass reads what goes into it
        (F.hardtanh, ["hardtanh_backward"]),
    ],
)
def test_activations_and_their_gradients(activation, expected):
    """The gradient of a sum of cosines is a product, which is new."""
    assert taken(lambda w, x: gradient(activation, w, x), torch.randn(12), torch.randn(5, 3)) == expected


@pytest.mark.parametrize("activation", [F.leaky_relu, F.hardtanh], ids=["leaky_relu", "hardtanh"])
def test_activations_whose_operand_no_backward_pass_reads(activation):
    found = taken(lambda x, w: [activation(x @ w)], torch.randn(5, 3), torch.randn(3, 4))
    assert found == [f"{activation.__name__}_"]


def test_the_operand_may_be_a_view_of_a_result_that_nobody_reads():
    def function(x, w):
        return [F.conv2d(x, w).view(2, 3, 2, 36).relu().view(2, 6, 36).sum(2)]

    assert taken(function, torch.randn(2, 1, 8, 8), torch.randn(6, 1, 3, 3)) == ["relu_"]


def test_a_chain_takes_one_place():
    assert taken(lambda x: [(x @ x).relu().tanh().sigmoid()], torch.randn(4, 4)) == ["relu_", "tanh_", "sigmoid_"]


KEPT = []


@torch.library.custom_op("fedlightning_tests::keep", mutates_args=())
def keep(x: torch.Tensor) -> None:
    KEPT[:] = [x]


@torch.library.custom_op("fedlightning_tests::kept", mutates_args=())
def kept(x: torch.Tensor) -> torch.Tensor:
    return KEPT[0].clone()


def written(x):
    y = (h := x @ x).relu()
    h.add_(1)
    return [y, h * 2]


def kept_by_an_operation(x):
    keep(h := x @ x)
    return [kept(x) + h.relu(), kept(x)]


CONSTANT = torch.randn(4, 4)
STAYS = {
    "returned": lambda x: [(h := x @ x).relu(), h],
    "read later": lambda x: [(h := x @ x).relu() + h],
    "a view is returned": lambda x: [(h := x @ x)[0], h.relu()],
    "a view is read later": lambda x: [(h := x @ x).relu() + h.t()],
    "a view of a view is read later": lambda x: [(h := x @ x).view(16).relu() + h.t()[0].view(-1).repeat(4)],
    "perhaps a view is read later": lambda x: [(h := x @ x).relu(), h.reshape(16) * 2],
    "an input": lambda x: [x.relu()],
    "a view of an input": lambda x: [x.t().relu()],
    "perhaps an input": lambda x: [x.roll(1).relu()],
    "a constant": lambda x: [CONSTANT.relu() + x],
    "repeated in memory": lambda x: [x.mm(x).sum(1, keepdim=True).expand(4, 4).relu()],
    "of other strides than the result": lambda x: [(x @ x)[:, ::2].relu()],
    "part of what would be kept": lambda x: [(x @ x)[-1:].relu()],
    "nested": lambda x: [torch.nested.as_nested_tensor([x @ x, x]).relu().to_padded_tensor(0.0)],
    "the other operand": lambda x: [aten.threshold_backward((h := x @ x), h, 0)],
    "written by the user": written,
    "kept by a user's operation": kept_by_an_operation,
}


@pytest.mark.parametrize("case", STAYS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_operands_that_are_needed_stay(case):
    before = CONSTANT.clone()
    assert taken(STAYS[case], torch.randn(4, 4)) == []
    assert torch.equal(CONSTANT, before)


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_kernel_of_the_users_for_the_variant_is_not_called():
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("relu_", lambda x: x.fill_(7.0), "CPU")
        assert taken(lambda x: [(x @ x).relu()], torch.randn(4, 4)) == []
    finally:
        library._destroy()


def test_steps_in_place_overwrite_what_each_step_computes_anew():
    """Of an autoencoder whose layers share a weight: parts of the gradient are joined, and subtracted by parts."""

    def function(w, x):
        with torch.enable_grad():
            leaf = w.detach().requires_grad_()
            first, second = leaf[:, :12].view(1, 3, 4), leaf[:, 12:].view(1, 4, 3)
            loss = ((x @ first).relu() @ second).tanh().cos().sum()
            (g,) = torch.autograd.grad(loss, leaf)
        return [torch.cat([g[:, :12] * 1, g[:, 12:] * 1], 1), loss.detach()[None]], None

    recording, point = Recording(function), torch.randn(1, 24)
    samples = [torch.randn(1, 5, 3) for _ in range(4)]
    expected = point.clone()
    for x in samples:
        expected = expected - 0.1 * function(expected, x)[0][0]
    for _ in range(2):  # until it is known that it can be replayed
        recording(point, samples[0])
    with Course(point, 0.1) as course, Taken() as seen:
        for x in samples:
            assert course.step(recording, (x,)) is not None
    torch.testing.assert_close(point, expected)
    assert {"relu_", "tanh_", "threshold_backward", "tanh_backward"} <= set(seen.names)
