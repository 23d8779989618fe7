"""The contract itself: messages for single clients, what an algorithm may keep, hyper-parameters by block."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from fedlightning import FederatedLightningModule
from fedlightning import algorithms as fl
from fedlightning.algorithms.base import PerClient, composite_methods, per_block, per_block_fields
from fedlightning.core.parameter_space import PerBlock
from fedlightning.oracle import Autocast
from fedlightning.schedules import Exponential
from tests.support.cases import CASES
from tests.support.federations import K, close, loop_for, personal_quadratic, quadratic, rounds_of, space_of

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


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        (fl.FedProx(0.1, mu={"u": 2.0}), "mu"),
        (fl.FedDyn(0.1, alpha={"u": 2.0}), "alpha"),
        (fl.SCAFFOLD(0.1, lr_server={"u": 2.0}), "lr_server"),
        (fl.FedAPM(0.1, rho={"u": 2.0}), "rho"),
    ],
    ids=["mu", "alpha", "lr_server", "rho"],
)
def test_what_acts_on_shared_parameters_alone_needs_no_value_for_personal_ones(algorithm, name):
    bound = algorithm.bind(space_of(personal_quadratic(algorithm)), LIKE)
    assert torch.as_tensor(getattr(bound, name)).unique().tolist() == [2.0]
    other = replace(algorithm, **{name: {"v": 2.0}})
    with pytest.raises(ValueError, match=f"{name}: no entry covers parameter 'u'"):
        other.bind(space_of(personal_quadratic(other)), LIKE)


class Slope(FederatedLightningModule):
    """A shared and a personal number with a gradient of 1 everywhere."""

    personal_parameters = ("own",)

    def __init__(self, algorithm):
        super().__init__(algorithm)
        self.shared, self.own = (nn.Parameter(torch.zeros((), dtype=torch.float64)) for _ in range(2))

    def objective(self, batch):
        return self.shared + self.own


@pytest.mark.parametrize(
    ("algorithm", "scales"),
    [
        (fl.CDMA_ADA(lr=0.1, rho=0.5), [1, 2**-0.5, 3**-0.5, 0.5]),
        (fl.CODAPlus(lr=0.1, theta=0.0, stage_steps=2 * K), [1, 1, 1 / 3, 1 / 3]),
        (fl.CODASCA(lr=0.1, theta=0.0, stage_steps=K), [1, 1 / 3, 1 / 9, 1 / 27]),
        (fl.FedAvg(lr=Exponential(0.1, gamma=0.5)), [1, 1 / 2, 1 / 4, 1 / 8]),
    ],
    ids=["CDMA_ADA", "CODA+", "CODASCA", "schedule"],
)
def test_personal_parameters_move_by_the_step_size_of_the_round(algorithm, scales):
    loop = loop_for(Slope(algorithm))
    points, own = [], []
    for batch in rounds_of(algorithm, len(scales)):
        loop.run(batch, Autocast("cpu"))
        points.append(loop.point)
        own.append(loop.clients.all("personal")[0])
    expected = -0.1 * K * torch.tensor(scales, dtype=torch.float64).cumsum(0)
    close(torch.cat(points), expected)
    close(torch.cat(own), expected)


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
