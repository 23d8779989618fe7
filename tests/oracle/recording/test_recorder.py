"""What is known from another round is used again where the function does the same, and only there."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils.dlpack import from_dlpack, to_dlpack

from fedlightning.algorithms import FedAvg
from fedlightning.oracle import BatchedError, Sequential, Vectorized
from fedlightning.oracle.randomness import ClientNoise, Randomness
from fedlightning.oracle.recording import recorder
from fedlightning.oracle.recording.known import KnownRecordings
from fedlightning.oracle.recording.names import LARGE
from fedlightning.oracle.recording.program import Program
from fedlightning.oracle.recording.recording import Recording, key_of
from tests.support.cohorts import NETS, S, assert_equal_evaluations, setting
from tests.support.federations import loop_for, quadratic, rounds_of, run

HELD = torch.tensor([2.0, 3.0])


class Changing:
    """A function that reads a number, a branch and a tensor from outside."""

    def __init__(self):
        self.factor, self.negative, self.held = 2.0, False, HELD

    def __call__(self, x):
        y = x.sin() * self.factor * self.held
        return [-y if self.negative else y], "constant"


def rounds(function, count, known, change=lambda k: None):
    """Replays of each of some rounds after the first call, whose results, and later ones, are the function's."""
    replayed = []
    for k in range(count):
        change(k)
        recording = Recording(function, known=known.begin())
        for _ in range(3):
            x = torch.randn(2)
            assert torch.equal(recording(x)[0][0], function(x)[0][0])
            replayed.append(recording.is_replayed(x))
    return replayed


def kind_of(x, kind=None):
    """What recordings of a function of one tensor are kept by."""
    return kind, torch.get_num_threads(), key_of([x])


X = torch.ones(2)


def test_a_function_that_does_the_same_is_known_from_round_to_round():
    known = KnownRecordings()
    assert rounds(Changing(), 1, known) == [True] * 3
    replay = known.of(kind_of(X)).replay
    assert rounds(Changing(), 2, known) == [True] * 6
    assert known.of(kind_of(X)).replay is replay


CHANGES = {
    "a number": lambda function: setattr(function, "factor", 3.0),
    "a branch": lambda function: setattr(function, "negative", True),
    "a tensor of other numbers": lambda function: setattr(function, "held", HELD + 1),
    "a tensor of equal numbers": lambda function: setattr(function, "held", HELD.clone()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_function_that_does_something_else_is_recorded_anew(change):
    """Its first call is a call, its second is recorded, and so is the first one of every later round."""
    known, function = KnownRecordings(), Changing()
    replayed = rounds(function, 4, known, lambda k: change(function) if k == 2 else None)
    assert replayed == [True] * 6 + [None] + [True] * 5
    assert not known.is_of_use(kind_of(X))


def test_numbers_written_into_a_held_tensor_are_seen_without_a_new_recording():
    known, function = KnownRecordings(), Changing()
    function.held = HELD.clone()
    assert rounds(function, 3, known, lambda k: function.held.add_(k)) == [True] * 9
    assert known.of(kind_of(X)) is not None


def test_what_draws_or_makes_tensors_of_pythons_numbers_is_recorded_in_every_round():
    for function in (lambda x: ([x + torch.rand(2)], None), lambda x: ([x + torch.tensor([1.0, 2.0])], None)):
        known = KnownRecordings()
        for _ in range(2):
            recording = Recording(function, known=known.begin())
            recording(X)
            assert recording.replays
            assert not known.is_of_use(kind_of(X))


def test_a_function_that_begins_to_draw_draws_each_clients_numbers():
    known, draws, noise = KnownRecordings(), [], ClientNoise()

    def function(x):
        return [x + torch.rand(2, 3) if draws else x + 1], None

    x, found = torch.zeros(2, 3), []
    Recording(function, noise, known.begin())(x)
    draws.append(1)
    for kept in (known.begin(), None):
        recording = Recording(function, noise, kept)
        for step in range(3):
            noise.begin(Randomness((5, 7), step))
            found.append(recording(x)[0][0])
    for one, other in zip(found[:3], found[3:], strict=True):
        assert torch.equal(one, other)
    assert len(torch.stack(found).unique()) == 18


def test_other_threads_have_other_recordings():
    """They may subtract other products while these are computed, which leaves out a rounding."""
    known, threads = KnownRecordings(), torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            Recording(lambda x: ([x + 1], None), known=known.begin())(X)
    finally:
        torch.set_num_threads(threads)
    assert len(known) == 2


POOL = torch.arange(20.0)


def test_a_window_that_has_moved_is_seen():
    """A view at an absolute place is nothing new only where the tensor begins there."""
    known, held = KnownRecordings(), POOL[0:2].clone()

    def function(x):
        return [x * held.as_strided((2,), (1,), 0)], None

    def move(k):
        if k == 2:
            held.data = POOL[7:9]

    assert rounds(function, 4, known, move) == [True] * 6 + [None] + [True] * 5


class Own(torch.Tensor):
    """A tensor with a class of its own, of which an outline knows too little."""


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ["nested", "subclass"])
def test_tensors_of_other_kinds_are_recorded_in_every_round(name):
    parts = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    own = HELD.as_subclass(Own)
    functions = {"nested": lambda x: x * parts.to_padded_tensor(0.0).sum(), "subclass": lambda x: x * own}
    known = KnownRecordings()
    rounds(lambda x: ([functions[name](x)], None), 3, known)
    assert known.of(kind_of(X)) is None


def test_other_second_results_are_not_known():
    known, names = KnownRecordings(), ["loss"]

    def function(x):
        return [x + 1], list(names)

    Recording(function, known=known.begin())(torch.ones(2))
    names.append("accuracy")
    recording = Recording(function, known=known.begin())
    assert [recording(torch.ones(2))[1] for _ in range(2)] == [["loss", "accuracy"]] * 2


@pytest.mark.parametrize("backward", [None, "vmap"])
@pytest.mark.parametrize("name", NETS)
def test_three_rounds_of_every_network(name, backward):
    """The second follows the first; the third does something else."""
    make, shape = NETS[name]
    objective, w, v, b, data = setting(make(), shape)
    objective.draws, inner = False, objective.task.loss
    for k in range(3):
        if k == 2:
            objective.task.loss = lambda *arguments: 1.5 * inner(*arguments)
        evaluate = Vectorized(backward=backward).evaluator(objective, 100)
        for _ in range(2):
            w = w + 0.1 * torch.randn_like(w)
            expected = Sequential().evaluator(objective, 1)(w, v, b, data)
            assert_equal_evaluations(evaluate(w, v, b, data), expected)


def test_results_in_a_list_of_their_own_are_replayed():
    """As cuDNN's recurrent layers return the gradients of their weights."""
    with torch.library._scoped_library("fedlightning_tests", "DEF") as library:
        library.define("halves(Tensor x) -> (Tensor, Tensor[])")
        library.impl("halves", lambda x: (x.sum(), list((2 * x).chunk(2))), "CompositeExplicitAutograd")

        def function(x):
            total, (one, other) = torch.ops.fedlightning_tests.halves(x)
            return [total * one - other], None

        assert all(rounds(function, 2, KnownRecordings()))


CUDNN = """
rnn(Tensor x, Tensor[] weight, Tensor? weight_buf, float dropout, bool train, Tensor? dropout_state) -> Tensor
rnn_backward(Tensor g, Tensor x, Tensor[] weight) -> (Tensor?, Tensor[])
"""


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, dropout):
        ctx.save_for_backward(x, weight)
        return torch.ops.fedlightning_tests.rnn(x, [weight], None, dropout, True, None)

    @staticmethod
    def backward(ctx, g):
        _, (weight,) = torch.ops.fedlightning_tests.rnn_backward(g, *ctx.saved_tensors[:1], ctx.saved_tensors[1:])
        return None, weight, None


class LikeCuDNN(nn.Module):
    """A layer that asks in which memory its weights lie, and an operation that may draw, as cuDNN's LSTM is called."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.weight = nn.Parameter(torch.randn(3, 6))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x):
        with torch._C.DisableTorchFunction():
            held = torch.empty(0, dtype=x.dtype).set_(self.weight.detach().untyped_storage())
            held.narrow(0, 0, self.weight.numel())  # the point has more in it: the layer's bias
        return _Recurrent.apply(x, self.weight, self.dropout) + self.bias


@pytest.fixture
def like_cudnn():
    with torch.library._scoped_library("fedlightning_tests", "DEF") as library:
        for line in CUDNN.strip().splitlines():
            library.define(line, tags=(torch.Tag.nondeterministic_seeded,) if line.startswith("rnn(") else ())
        library.impl("rnn", lambda x, weight, *_: x @ weight[0].T, "CompositeExplicitAutograd")
        backward = lambda g, x, weight: (None, [g.T @ x])  # noqa: E731
        library.impl("rnn_backward", backward, "CompositeExplicitAutograd")
        yield LikeCuDNN


def test_a_layer_like_cudnn_s_is_recorded_for_all_clients(like_cudnn):
    objective, w, *rest = setting(like_cudnn(), (6,))
    evaluate = Vectorized(backward="each").evaluator(objective, 100)
    for _ in range(3):
        expected = Sequential().evaluator(objective, 1)(w, *rest)
        assert_equal_evaluations(evaluate(w, *rest), expected)
        w = w - 0.1 * expected.g


def test_a_layer_that_draws_from_a_state_of_its_own_is_not_recorded(like_cudnn):
    objective, *arguments = setting(like_cudnn(dropout=0.5), (6,))
    evaluate = Vectorized(backward="each").evaluator(objective, 100)
    with pytest.raises(BatchedError, match="cannot be recorded"):
        evaluate(*arguments, "both", Randomness(range(S), 0))


@pytest.mark.parametrize(
    "read",
    [
        lambda x: torch.empty(0).set_(x.untyped_storage()) + 0,
        lambda x: torch.empty(0).set_(x.untyped_storage())[:2] + 0,
        lambda x: torch.empty(0).set_(x.untyped_storage())[:2].view(2) + 0,
        lambda x: torch.empty(0).set_(x.untyped_storage()),
        lambda x: torch.empty(0).set_(x.untyped_storage())[:2],
        lambda x: torch.empty(2).set_(x.untyped_storage()) + 0,
        lambda x: torch.tensor([]).set_(x.untyped_storage()) + 0,
        lambda x: x[:0].set_(x.untyped_storage()) + 0,
        lambda x: torch.empty(2).set_(x.untyped_storage(), 0, (2,), (1,)) + 0,
    ],
    ids=[
        *("whole", "in part", "twice removed", "as a result", "in part as a result"),
        *("by a tensor with numbers", "by a tensor of Python's", "by an empty view", "with strides"),
    ],
)
def test_what_lies_in_memory_that_was_looked_up_is_not_recorded(read):
    recording = Recording(lambda x: ([read(x)], None))
    for _ in range(3):
        x = torch.randn(2)
        assert torch.equal(recording(x)[0][0], x)
    assert not recording.replays


def test_swapped_tensors_are_not_recorded():
    def function(x):
        y, other = 2 * x, torch.ones(2)
        torch.utils.swap_tensors(y, other)
        return [y + 3 * other], None

    recording = Recording(function)
    for _ in range(3):
        x = torch.randn(2)
        assert torch.equal(recording(x)[0][0], 1 + 6 * x)


def test_a_network_is_written_down_once(monkeypatch):
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    objective, *arguments = setting(net, (6,), loss=lambda net, batch: F.cross_entropy(net(batch[0]), batch[1]))
    written = []
    monkeypatch.setattr(recorder, "Program", lambda inputs: written.append(1) or Program(inputs))
    for _ in range(3):
        Vectorized().evaluator(objective, 100)(*arguments)
    assert written == [1]


def test_a_schedule_that_begins_late_is_seen():
    """Two rounds alike, then another factor in each; plain evaluation is the judge."""
    algorithm, points = FedAvg(0.05), []
    batches = rounds_of(algorithm, 5, local_steps=10)
    for oracle in (Vectorized(), Sequential()):
        task = quadratic(algorithm)
        task.factor, original = 1.0, task.objective
        task.objective = lambda batch, task=task, original=original: task.factor * original(batch)
        loop = loop_for(task, oracle)
        for k, batch in enumerate(batches):
            task.factor = 1.0 if k < 2 else 0.5**k
            points.append(run(loop, [batch])[0])
    for together, alone in zip(points[:5], points[5:], strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("known", [None, KnownRecordings()], ids=["forgotten", "known"])
def test_what_a_function_needs_no_longer_is_freed_while_it_is_recorded(known):
    gone = []

    def function(x):
        y = x.exp()
        before = StorageWeakRef(y.untyped_storage())
        y = y + 1
        gone.append(before.expired())
        return [y * 2], "constant"

    recording = Recording(function, known=None if known is None else known.begin())
    x = torch.randn(LARGE)
    assert torch.equal(recording(x)[0][0], (x.exp() + 1) * 2)
    assert recording.is_replayed(x)
    assert gone == [True]


def test_tensors_in_places_and_under_ids_of_freed_ones_are_told_apart():
    """Each result dies with the next, so that Python and PyTorch use its id and its memory again."""

    def function(x):
        y = x.repeat(LARGE)
        for k in range(40):
            y = (y * 1.01 + k).sin() - HELD.repeat(LARGE)
        with torch.enable_grad():
            z = y.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(z.tanh().softmax(0).square().sum(), z)
        return [gradient], "constant"

    assert rounds(function, 3, KnownRecordings()) == [True] * 9


def through_dlpack(y):
    return from_dlpack(to_dlpack(y))


def through_dlpack_in_part(y):
    return from_dlpack(to_dlpack(y[1:]))[:1]


def through_a_buffer(y):
    return torch.frombuffer(y.numpy(), dtype=y.dtype)


@pytest.mark.parametrize("count", [1, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("again", [through_dlpack, through_dlpack_in_part, through_a_buffer])
def test_memory_of_a_result_that_comes_back_in_another_tensor_is_no_constant(again, count):
    def function(x):
        y = x.repeat(count).sin()
        return [again(y) * 2 + y], "constant"

    assert rounds(function, 3, KnownRecordings()) == [False] * 9


def test_empty_results_do_not_cost_what_is_known():
    def function(x):
        return [torch.cat([torch.zeros(0), x]) * 2], "constant"

    assert rounds(function, 4, KnownRecordings()) == [True] * 12


class Pair(torch.Tensor):
    """A tensor in two parts, with operations of its own."""

    @staticmethod
    def __new__(cls, a, b):
        pair = torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)
        pair.a, pair.b = a, b
        return pair

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


def test_what_an_operation_has_wrapped_is_no_constant():
    """The recorder does not see how the parts came about."""
    with torch.library._scoped_library("fedlightning_tests", "DEF") as library:
        library.define("paired(Tensor x) -> Tensor")
        library.impl("paired", lambda x: Pair(x.clone(), x + 1), "CPU")

        def function(x):
            pair = torch.ops.fedlightning_tests.paired(x.sin())
            return [pair.a * 2 + pair.b], "constant"

        assert rounds(function, 2, KnownRecordings()) == [False] * 6
