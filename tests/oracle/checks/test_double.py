"""What single precision hides is found in double precision, and an objective that cannot run there is left in peace."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, replace
from queue import SimpleQueue

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlightning.algorithms import FedAvg
from fedlightning.core.parameter_space import ParameterSpace, read
from fedlightning.oracle import Autocast, Objective, Sequential, Vectorized
from fedlightning.oracle.checks import double as double_module
from fedlightning.oracle.checks.check import SelfCheck, fastest_that_agrees
from fedlightning.oracle.checks.comparison import Sample
from fedlightning.oracle.checks.double import DoubleObjective, in_double
from tests.support.cohorts import NETS, Wrong, classify, setting
from tests.support.federations import loop_for, quadratic, rounds_of

SMALL = 1e-5
WAYS = [
    Vectorized(replay=True, backward="autograd"),
    Vectorized(replay=False, backward="autograd"),
    Vectorized(replay=False, backward="vmap"),
]


def sample_of(net, loss, shape=(6,), dtype=torch.float32, autocast=None):
    """An objective and what a check evaluates of it."""
    torch.manual_seed(0)
    objective, w, v, b, data = setting(net, shape, dtype, loss)
    objective.autocast = Autocast("cpu", autocast)
    batches = [tuple(leaf[:2] for leaf in data) for _ in range(3)]
    return objective, Sample(w[:2], v[:2], b[:2], batches)


def checked(net, loss, **options):
    return SelfCheck(*sample_of(net, loss, **options))


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Curved(torch.autograd.Function):
    """``x + 1e-5 x^2``, whose rule of vmap forgets the second term."""

    @staticmethod
    def forward(x):
        return x + SMALL * x.square()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 + 2 * SMALL * x)

    @staticmethod
    def vmap(info, in_dims, x):
        return x * 1.0, in_dims[0]


def penalised(net, batch):
    """A small penalty that clients side by side do not have."""
    penalty = sum(Curved.apply(p).sum() - p.sum() for p in net.parameters())
    return classify(net, batch) + penalty


def curved(net, batch):
    return F.cross_entropy(Curved.apply(net(batch[0])), batch[1])


@torch.library.custom_op("fedlightning_tests::bent", mutates_args=())
def bent(x: torch.Tensor) -> torch.Tensor:
    return x + SMALL * x.square()


@bent.register_fake
def _(x):
    return torch.empty_like(x)


bent.register_autograd(
    lambda ctx, g: g * (1 + 2 * SMALL * ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
bent.register_vmap(lambda info, in_dims, x: (x * 1.0, in_dims[0]))


def bending(net, batch):
    return classify(net, batch) + sum((bent(p) - p).sum() for p in net.parameters())


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("loss", "ways"), [(penalised, WAYS), (curved, WAYS), (bending, WAYS[:2])])
def test_a_small_term_that_vmap_drops_is_found(loss, ways, autocast):
    check = checked(mlp(), loss, autocast=autocast)
    for way in ways:  # grad inside vmap takes no operation of one's own
        assert check(way).endswith("at step 1 (in float64)")
    found, why = fastest_that_agrees(Vectorized(), True, check)
    assert found == Sequential()
    assert "differs from evaluation one by one, relatively by" in why


def penalised_head(net):
    return sum(Curved.apply(p).sum() - p.sum() for p in net.head.parameters())


def test_it_is_found_beside_an_lstm_too_whose_kernel_is_for_single_precision():
    class Characters(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    check = checked(Characters(), lambda net, batch: classify(net, batch) + penalised_head(net), shape=(7, 5))
    assert check(WAYS[0]).endswith("at step 1 (in float64)")
    assert checked(Characters(), classify, shape=(7, 5))(WAYS[0]) is None


def test_of_a_large_model_one_client_is_compared(monkeypatch):
    """It holds two points and a gradient in float64 then, not those of two clients and steps."""
    monkeypatch.setattr(double_module, "MOST_NUMBERS", 10)
    assert "in client 1, at step 1 (in float64)" in checked(mlp(), penalised)(WAYS[0])
    assert checked(mlp(), classify)(WAYS[0]) is None


def test_a_task_of_16_bits_is_compared_too():
    assert checked(mlp(), penalised, dtype=torch.bfloat16)(WAYS[0]).endswith("(in float64)")
    assert checked(mlp(), classify, dtype=torch.bfloat16)(WAYS[0]) is None


def test_the_loop_gives_way_and_says_why():
    algorithm = FedAvg(0.05)
    said = []
    task = quadratic(algorithm).float()
    original = task.objective
    task.objective = lambda batch: original(batch) + (Curved.apply(task.x) - task.x).sum()
    loop = loop_for(task, Vectorized(), report=said.append, self_check="first")
    (batch,) = (each.place(torch.device("cpu"), torch.float32) for each in rounds_of(algorithm, 1, local_steps=25))
    loop.run(batch, Autocast("cpu"))
    (line,) = said
    assert line.startswith("oracle: took Sequential: with Vectorized(backward='autograd', replay=True)")
    assert "at step 1 (in float64)" in line


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", NETS)
def test_what_agrees_is_not_accused(name, autocast):
    make, shape = NETS[name]
    objective, sample = sample_of(make(), classify, shape=shape, autocast=autocast)
    check = SelfCheck(objective, sample)
    said = [check(way) for way in WAYS]  # some layers have no rule of vmap, fewer have one in 16 bits
    assert None in said or autocast is not None
    assert not any("float64" in line for line in said if line is not None)
    double = in_double(objective, sample)
    assert double.tolerance.eps == torch.finfo(torch.float64).eps
    assert None in [double(way) for way in WAYS]


def inverted(net, batch):
    z = torch.complex(net[0].weight[:, :5], net[0].weight[:, 1:])
    return classify(net, batch) + torch.linalg.pinv(z).abs().square().sum()


def test_a_gradient_that_torch_gets_wrong_when_watched_is_not_accused():
    """That of a complex pseudo-inverse below any TorchDispatchMode: a replay is wrong, what is expected must not be."""
    check = checked(mlp(), inverted)
    assert "float64" not in check(WAYS[0])
    for way in WAYS[1:]:
        assert check(way) is None


def noisy(net, batch):
    x = F.dropout(batch[0], 0.3)
    return F.cross_entropy(net(x + torch.randn_like(x) * torch.rand(6)), batch[1])


def test_random_numbers_agree_with_themselves():
    check = checked(mlp(), noisy)
    for way in WAYS:
        assert check(way) is None
    assert checked(mlp(), lambda net, batch: noisy(net, batch) + penalised(net, batch))(WAYS[0]) is not None


def in_single(net, batch):
    return F.cross_entropy(net(batch[0]).float(), batch[1])


def of_a_float32_op(net, batch):
    return classify(lambda x: single_tanh(net(x)), batch)


@torch.library.custom_op("fedlightning_tests::single_tanh", mutates_args=())
def single_tanh(x: torch.Tensor) -> torch.Tensor:
    return x.float().tanh().to(x.dtype, copy=True)


@single_tanh.register_fake
def _(x):
    return torch.empty_like(x)


single_tanh.register_autograd(
    lambda ctx, g: g * (1 - ctx.saved_tensors[0].float().tanh().square()).to(g.dtype),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
single_tanh.register_vmap(lambda info, in_dims, x: (single_tanh(x.movedim(in_dims[0], -1)).movedim(-1, 0), 0))


@pytest.mark.parametrize(("loss", "ways"), [(in_single, WAYS), (of_a_float32_op, WAYS[:2])])
def test_parts_that_compute_in_float32_are_allowed_for(loss, ways):
    check = checked(mlp(), loss)
    for way in ways:
        assert check(way) is None
    dropped = checked(mlp(), lambda net, batch: loss(net, batch) + penalised(net, batch))
    assert dropped(WAYS[0]).endswith("(in float64)")


def with_accuracy(net, batch):
    x, y = batch
    logits = net(x)
    return {"loss": penalised(net, batch), "accuracy": (logits.argmax(1) == y).float().mean()}


def test_a_logged_number_in_float32_makes_nothing_coarser():
    found = in_double(*sample_of(mlp(), with_accuracy))
    assert found.tolerance.eps == torch.finfo(torch.float64).eps
    assert found(Wrong(what="scalars", by=1e-6)) is None
    assert found(Wrong(what="scalars", by=1e-3)).startswith("the logged 'accuracy' differs")
    assert in_double(*sample_of(mlp(), in_single)).tolerance.eps == torch.finfo(torch.float32).eps


def in_half(net, batch):
    return F.cross_entropy(net(batch[0]).bfloat16().double(), batch[1])


CLASS_WEIGHTS = torch.tensor([1.0, 2.0, 3.0])


def with_class_weights(net, batch):
    return F.cross_entropy(net(batch[0]), batch[1], weight=CLASS_WEIGHTS)


def with_bits(net, batch):
    return classify(net, batch) + 0 * batch[0].view(torch.int32).reshape(4, 6).sum()


def that_asserts(net, batch):
    assert batch[0].dtype == torch.float32, "float32 alone"
    return classify(net, batch)


def infinite(net, batch):
    return classify(net, batch) * (1 if batch[0].dtype == torch.float32 else torch.inf)


@pytest.mark.parametrize("loss", [in_half, with_class_weights, with_bits, that_asserts, infinite])
def test_an_objective_that_is_not_for_float64_is_judged_as_it_trains(loss):
    both = lambda net, batch: loss(net, batch) + penalised(net, batch)  # noqa: E731
    objective, sample = sample_of(mlp(), both)
    check = SelfCheck(objective, sample)
    for way in WAYS:
        assert check(way) is None
    assert in_double(objective, sample) is None


@dataclass(frozen=True)
class Failing(Vectorized):
    """Right, but for float64, where it fails."""

    def evaluator(self, objective, calls):
        if objective.dtype == torch.float64:
            raise NotImplementedError("float32 alone")
        return Sequential().evaluator(objective, calls)


def test_a_way_that_fails_in_float64_alone_is_judged_as_it_trains():
    assert checked(mlp(), classify)(Failing()) is None


def test_nothing_is_compared_twice_in_float64(monkeypatch):
    def never(*_):
        raise AssertionError("compared twice")

    monkeypatch.setattr("fedlightning.oracle.checks.check.in_double", never)
    assert checked(mlp(), classify, dtype=torch.float64)(WAYS[0]) is None
    with pytest.raises(AssertionError, match="compared twice"):
        checked(mlp(), classify)(WAYS[0])


def test_what_differs_in_training_is_not_compared_again(monkeypatch):
    @dataclass(frozen=True)
    class Doubled(Vectorized):
        def evaluator(self, objective, calls):
            right = Sequential().evaluator(objective, calls)
            return lambda *arguments: replace(right(*arguments), g=2 * right(*arguments).g)

    monkeypatch.setattr("fedlightning.oracle.checks.check.in_double", lambda *_: pytest.fail("compared in vain"))
    assert "float64" not in checked(mlp(), classify)(Doubled())


class Frozen(nn.Module):
    """A network with a frozen layer, a constant buffer, one of integers and one that is changed, in float32."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("order", torch.tensor([2, 1, 0]))
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.norm(self.frozen(x)))[:, self.order] * self.scale


def taken(queue):
    return [queue.get() for _ in range(queue.qsize())]


def test_all_that_an_objective_holds_is_in_double_precision():
    seen = SimpleQueue()  # is not put back

    def loss(net, batch):
        holds = (*net.parameters(), *net.buffers(), batch[0])
        seen.put({tensor.dtype for tensor in holds if tensor.is_floating_point()})
        return penalised(net, batch)

    objective, sample = sample_of(Frozen(), loss)
    objective.space.restrict_buffers([name for name in objective.space.buffers.names if ".norm." in name])
    sample = replace(sample, b=read(objective.space.buffers, objective.task, like=sample.w).expand(2, -1))
    before = {name: tensor.clone() for name, tensor in objective.task.state_dict().items()}
    check = SelfCheck(objective, sample)
    assert {dtype for dtypes in taken(seen) for dtype in dtypes} == {torch.float32}
    assert check(WAYS[0]).endswith("(in float64)")
    dtypes = taken(seen)
    assert {torch.float64} in dtypes
    assert all(each in ({torch.float32}, {torch.float64}) for each in dtypes)
    after = objective.task.state_dict()
    assert all(torch.equal(after[name], value) and after[name].dtype == value.dtype for name, value in before.items())


def test_tied_and_frozen_weights_are_one_in_double_precision():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = (nn.Linear(6, 6) for _ in range(2))
            self.other.weight = self.one.weight
            self.one.weight.requires_grad_(False)
            self.out = nn.Linear(6, 3)

        def forward(self, x):
            return self.out(self.other(self.one(x)))

    assert checked(Tied(), classify)(WAYS[0]) is None
    assert checked(Tied(), penalised)(WAYS[0]).endswith("(in float64)")


def test_a_large_frozen_network_is_not_copied(monkeypatch):
    objective, sample = sample_of(Frozen(), classify)
    assert in_double(objective, sample) is not None
    monkeypatch.setattr(double_module, "MOST_CONSTANTS", 8)
    assert in_double(objective, sample) is None


def test_the_objective_beside_it_stays_as_it_is():
    net = mlp()
    objective, _ = sample_of(net, classify, autocast=torch.bfloat16)
    double = DoubleObjective(objective)
    assert (objective.dtype, objective.autocast.dtype) == (torch.float32, torch.bfloat16)
    assert (double.dtype, double.autocast.dtype) == (torch.float64, None)
    space = ParameterSpace(objective.task)
    assert Objective(objective.task, space, objective.autocast).dtype == torch.float32


def test_it_leaves_no_trace_and_does_not_warn():
    net = mlp()
    net.calls, net.memory = 0, torch.zeros(2)

    def loss(net, batch):
        if batch[0].dtype == torch.float64:
            warnings.warn("in double precision", stacklevel=1)
            net.extra = batch[0]
            net.memory += 1
            random.random()
            np.random.rand()
        return penalised(net, (F.dropout(batch[0]), batch[1]))

    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    check = checked(net, loss)
    torch.set_rng_state(before[0])
    assert check(WAYS[0]).endswith("(in float64)")
    assert (net.calls, net.memory.tolist()) == (0, [0, 0])
    assert not hasattr(net, "extra")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()


def test_a_compiled_gradient_is_compared_before_compilation(monkeypatch):
    """To compile for float64 would take as long again, and what vmap drops it drops uncompiled."""
    compiled = []

    def compile_nothing(function, **options):
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile_nothing)
    assert checked(mlp(), penalised)(Vectorized(compile=True)).endswith("(in float64)")
    assert len(compiled) == 1


@pytest.mark.parametrize(
    "way",
    [*WAYS, Vectorized(parts=2), Vectorized(backward="each"), Vectorized(backward="each", threads=2)],
    ids=repr,
)
def test_every_way_is_compared_in_double_precision(way, monkeypatch):
    seen, evaluator = [], Vectorized.evaluator

    def noted(way, objective, calls):
        seen.append(objective.dtype)
        return evaluator(way, objective, calls)

    monkeypatch.setattr(Vectorized, "evaluator", noted)
    assert checked(nn.Linear(6, 3), classify)(way) is None
    assert torch.float64 in seen
