"""One client alone is evaluated without vmap, in operations that can be replayed."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedlightning.core.errors import UsageError
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.oracle.lone import of_one
from fedlightning.oracle.objective import BatchedError
from tests.support.cohorts import NETS, assert_equal_evaluations, setting


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


@pytest.mark.parametrize(
    "value",
    [lambda error: error.item(), lambda error: error.detach().numpy(), lambda error: error.tolist(), float, bool],
    ids=["item", "numpy", "tolist", "float", "bool"],
)
def test_an_objective_that_reads_numbers_is_refused(value):
    def loss(net, batch):
        error = F.cross_entropy(net(batch[0]), batch[1])
        return error * (2.0 if value(error) > 1 else 1.0)

    make, shape = next(iter(NETS.values()))
    objective, *arguments = setting(make(), shape, torch.float64, loss)
    with pytest.raises(UsageError, match="reads numbers of a tensor"):
        of_one(objective, *map(first, arguments))
