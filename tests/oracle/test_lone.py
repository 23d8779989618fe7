"""One client alone is evaluated without vmap, in operations that can be replayed."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fedlightning.core.errors import UsageError
from fedlightning.oracle import Sequential, Vectorized, vectorized
from fedlightning.oracle.errors import BatchedError
from fedlightning.oracle.lone import of_one
from tests.support.cohorts import NETS, assert_equal_evaluations, setting
from tests.support.federations import close
from tests.support.small import Line, fitted, regression_data


def first(value):
    return value[0] if isinstance(value, torch.Tensor) else tuple(map(first, value))


@pytest.mark.parametrize("blocks", ["both", "shared"])
@pytest.mark.parametrize("name", NETS)
def test_the_operator_is_that_of_plain_evaluation(name, blocks):
    make, shape = NETS[name]
    objective, *arguments = setting(make(), shape, torch.float64)
    alone = [first(argument) for argument in arguments]
    kept = [argument[:1] for argument in arguments[:3]], tuple(leaf[:1] for leaf in arguments[3])
    plain = Sequential().evaluator(objective, 1)
    assert_equal_evaluations(of_one(objective, *alone, blocks), plain(*kept[0], kept[1], blocks))


@pytest.mark.parametrize("backward", [None, "autograd", "vmap"])
@pytest.mark.parametrize("replay", [True, False])
def test_a_chunk_of_one_client_runs_without_vmap(backward, replay, monkeypatch):
    make, shape = next(iter(NETS.values()))
    objective, w, v, b, data = setting(make(), shape, torch.float64)
    objective.draws, objective.forward_only = False, True
    evaluate = Vectorized(backward=backward, replay=replay).evaluator(objective, 100)
    plain = Sequential().evaluator(objective, 1)
    monkeypatch.setattr("fedlightning.oracle.vectorized.vmap", None)
    for _ in range(3):
        arguments = w[:1], v[:1], b[:1], tuple(leaf[:1] for leaf in data)
        assert_equal_evaluations(evaluate(*arguments), plain(*arguments))
        w, data = w + 0.1, (torch.randn_like(data[0]), data[1].flip(1))
    with pytest.raises(BatchedError):  # two clients still need it
        evaluate(w, v, b, data)


READS = {
    "item": lambda error: error.item(),
    "float": lambda error: float(error.detach()),
    "bool": lambda error: bool(error > 1),
    "numpy": lambda error: error.detach().numpy(),
    "tolist": lambda error: error.tolist(),
    "repr": lambda error: float(repr(error.detach()).removeprefix("tensor(").split(",")[0].rstrip(")")),
    "copy": lambda error: copy.deepcopy(error.detach()),
    "storage": lambda error: error.detach().storage()[0],
    "apply_": lambda error: error.detach().clone().apply_(lambda value: value),
    "a list": lambda error: torch.tensor([error.detach()]),
    "a list in a list": lambda error: error.new_tensor([[error.detach()]]),
    "an index": lambda error: torch.tensor([0.0, 2.0])[[(error > 1).long(), 0]][0],
}
HIDDEN = READS.keys() - {"item", "float", "bool"}


def reading(value):
    def loss(net, batch):
        error = F.cross_entropy(net(batch[0]), batch[1])
        return error * (2.0 if value(error) > 1 else 1.0)

    make, shape = next(iter(NETS.values()))
    return setting(make(), shape, torch.float64, loss)


@pytest.mark.parametrize("name", READS)
def test_one_client_that_stands_for_others_reads_no_numbers(name):
    objective, *arguments = reading(READS[name])
    with pytest.raises(UsageError, match="reads numbers of a tensor"):
        of_one(objective, *map(first, arguments), stands_for_others=True)


@pytest.mark.parametrize("name", READS)
def test_a_client_alone_may_read_what_a_recorder_sees(name):
    """It is run anew every time; what is read behind the recorder's back is refused."""
    objective, w, v, b, data = reading(READS[name])
    objective.draws = False
    evaluate, plain = Vectorized(backward="vmap").evaluator(objective, 100), Sequential().evaluator(objective, 1)
    for size in (0.1, 10.0, 0.1):
        arguments = w[:1], v[:1], b[:1], (size * data[0][:1], data[1][:1])
        if name in HIDDEN:
            with pytest.raises(BatchedError, match="reads numbers of a tensor"):
                evaluate(*arguments)
        else:
            assert_equal_evaluations(evaluate(*arguments), plain(*arguments))


class _GoesBack(torch.autograd.Function):
    """Multiplies by a number of its input, on the way back alone."""

    @staticmethod
    def forward(ctx, x, value):
        ctx.save_for_backward(x)
        ctx.value = value
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * ctx.value(x.detach().max()), None


def on_the_way_back(value):
    return reading_by(lambda y: _GoesBack.apply(y, value))


def by_a_hook(value):
    def hooked(y):
        z = y * 1
        z.register_hook(lambda gradient: gradient * value(y.detach().max()))
        return z

    return reading_by(hooked)


def reading_by(layer):
    make, shape = next(iter(NETS.values()))
    return setting(make(), shape, torch.float64, lambda net, batch: F.cross_entropy(layer(net(batch[0])), batch[1]))


@pytest.mark.parametrize("made", [on_the_way_back, by_a_hook])
@pytest.mark.parametrize("name", READS)
def test_nor_does_its_backward_pass(name, made):
    objective, *arguments = made(READS[name])
    with pytest.raises(UsageError, match="reads numbers of a tensor"):
        of_one(objective, *map(first, arguments), stands_for_others=True)


@pytest.mark.parametrize("made", [on_the_way_back, by_a_hook])
def test_a_backward_pass_of_operations_is_replayed(made):
    objective, w, v, b, data = made(torch.sigmoid)
    evaluate, plain = Vectorized(backward="each").evaluator(objective, 100), Sequential().evaluator(objective, 1)
    for _ in range(3):
        expected = plain(w, v, b, data)
        assert_equal_evaluations(evaluate(w, v, b, data), expected)
        w = w - 0.1 * expected.g


class _GoesBackForAll(torch.autograd.Function):
    """Has a rule for vmap of its own, and reads all clients' numbers in one backward pass."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * torch.from_numpy(x.detach().numpy().max(axis=(-2, -1), keepdims=True))

    @staticmethod
    def vmap(info, in_dims, x):
        return _GoesBackForAll.apply(x.movedim(in_dims[0], 0)), 0


def test_numbers_read_on_the_way_back_of_all_clients_are_not_replayed():
    objective, w, v, b, data = reading_by(_GoesBackForAll.apply)
    plain, batched = Sequential().evaluator(objective, 1), Vectorized(replay=False, backward="autograd")
    for _ in range(3):
        expected = plain(w, v, b, data)
        assert_equal_evaluations(batched.evaluator(objective, 100)(w, v, b, data), expected)
        with pytest.raises(BatchedError, match="reads numbers of a tensor"):
            Vectorized(backward="autograd").evaluator(objective, 100)(w, v, b, data)
        w = w - 0.1 * expected.g


def assigned(x):
    other = torch.zeros_like(x)
    other.data = 2 * x
    return other


def put_there(x):
    other = torch.zeros_like(x)
    return other.set_(2 * x)


class BeginsLate(Line):
    """Puts other numbers into a tensor, where no operation does, from the second round on."""

    def __init__(self, twice, **federation):
        super().__init__(dropout=0.0, **federation)
        self.twice = twice

    def objective(self, batch):
        x, y = batch
        return super().objective((self.twice(x) if self.current_epoch else x, y))


@pytest.mark.parametrize("twice", [assigned, put_there])
@pytest.mark.parametrize("oracle", [Vectorized(backward="each"), Vectorized(chunk_size=1)], ids=["each", "one"])
def test_numbers_put_behind_the_recorders_back_are_not_taken_for_the_old_ones(twice, oracle):
    ends = []
    for each in (Sequential(), oracle):
        torch.manual_seed(0)
        task = BeginsLate(twice, oracle=each).double()
        data = regression_data(local_steps=5, rounds_per_epoch=1)
        fitted(task, data, max_steps=3, limit_val_batches=0, precision="64-true")
        ends.append(torch.cat([parameter.detach().flatten() for parameter in task.parameters()]))
    close(ends[1], ends[0])


def test_a_client_whose_evaluation_alone_is_wrong_takes_vmap(monkeypatch):
    """The check of an oracle looks at one client alone as well."""
    monkeypatch.setattr(vectorized, "of_one", lambda *args: replace(of_one(*args), loss=torch.zeros(1).double()))
    task = Line(dropout=0.0, oracle=Vectorized(chunk_size=1)).double()
    fitted(task, regression_data(local_steps=5), max_steps=1, limit_val_batches=0, precision="64-true")
    runner = task.run.simulation.runner
    assert isinstance(runner.oracle_selection.oracle, Vectorized)
    assert float(task.round_metrics["train_loss"]) > 0
