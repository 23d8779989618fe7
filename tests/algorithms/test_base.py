"""The contract itself: messages for single clients, what an algorithm may keep, hyper-parameters by block."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.algorithms.base import PerClient, composite_methods, per_block, per_block_fields
from fedlightning.core.parameter_space import PerBlock
from tests.support.cases import CASES
from tests.support.federations import personal_quadratic, quadratic, space_of

LIKE = torch.zeros(1, dtype=torch.float64)


def test_clients_without_a_tensor_of_their_own_receive_the_default():
    message = PerClient(torch.tensor([0.5]), torch.tensor([4, 1]), torch.tensor([[4.0], [1.0]]))
    assert message.of([1, 2, 4, 1]).tolist() == [[1.0], [0.5], [4.0], [1.0]]


def test_binding_spreads_numbers_over_blocks_and_leaves_the_algorithm_alone():
    algorithm = fl.FedAvg(lr=[0.1, 0.2])
    bound = algorithm.bind(space_of(quadratic(algorithm)), LIKE)
    assert bound.lr.tolist() == [0.1] * 5 + [0.2] * 3
    assert (bound.min_dim, algorithm.min_dim) == (5, 0)
    assert algorithm.lr == [0.1, 0.2]


def test_a_personal_block_has_the_step_size_of_its_prefix():
    algorithm = fl.FedAvg(lr={"u": 0.1, "v": 0.3})
    bound = algorithm.bind(space_of(personal_quadratic(algorithm)), LIKE)
    assert torch.as_tensor(bound.lr).unique().tolist() == [0.1]
    assert torch.as_tensor(bound.personal_lr).unique().tolist() == [0.3]


def test_methods_that_take_regularizers_are_listed():
    regularized = {case.make.__name__ for case in CASES.values() if case.make.regularized}
    assert regularized <= set(composite_methods())


@pytest.mark.parametrize("name", CASES)
def test_an_algorithm_keeps_nothing_on_itself(name):
    algorithm = CASES[name].algorithm()
    with pytest.raises(AttributeError):
        algorithm.memory = torch.zeros(1)


@dataclass(frozen=True, eq=False)
class Unspread(fl.FedAvg):
    pull: PerBlock = 1.0


@dataclass(frozen=True, eq=False)
class Spread(fl.FedAvg):
    pull: PerBlock = per_block(1.0)


def test_a_hyper_parameter_that_nothing_spreads_is_named():
    assert per_block_fields(Spread) == ["lr", "pull"]
    with pytest.raises(TypeError, match=r"Unspread.pull is declared PerBlock, .* Write pull: PerBlock = per_block\(\)"):
        per_block_fields(Unspread)


def test_what_makes_no_optimizer_is_refused():
    with pytest.raises(TypeError, match=r"FedAvg\(local_optimizer=0.1\): expected something that makes one"):
        fl.FedAvg(0.1, local_optimizer=0.1)
