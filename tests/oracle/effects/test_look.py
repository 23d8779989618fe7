"""The first evaluation: what it changes, and what it costs."""

from __future__ import annotations

import gc
import weakref
from queue import SimpleQueue

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from fedlightning import FederatedLightningModule
from fedlightning.algorithms import FedAvg, FedSGDA
from fedlightning.core.parameter_space import ParameterSpace, read
from fedlightning.oracle import Autocast, Cost, Objective, ObjectiveError, Sequential, Vectorized
from fedlightning.oracle.effects.look import Look
from fedlightning.participation import Uniform
from tests.support.cohorts import setting
from tests.support.federations import loop_for, quadratic, rounds_of, run
from tests.support.objectives_in_python import STEPS
from tests.support.small import Line, fitted, regression_data


def test_chunk_follows_memory():
    small, large = Cost(100, 4, 1000), Cost(10**7, 4, 10**6)
    assert Vectorized().chunk(small) > 1000
    assert Vectorized().chunk(large) == 4
    assert Vectorized().chunk(Cost(10**7, 4, 10**6, free_bytes=10**9)) == 1
    assert Vectorized(chunk_size=5).chunk(large) == 5
    assert Sequential().chunk(small) == 1
    with pytest.raises(ValueError, match="chunk_size=0"):
        Vectorized(chunk_size=0)


def test_a_buffer_that_is_written_late_is_refused_by_name():
    def thaws(task, original, batch):
        if task.thawed:
            task.offset.mul_(0.9)
        return original(batch)

    for oracle in (Sequential(), Vectorized()):
        algorithm = FedAvg(0.05)
        task = quadratic(algorithm)
        original, task.thawed = task.objective, False
        task.objective = lambda batch, task=task, original=original: thaws(task, original, batch)
        loop = loop_for(task, oracle, self_check="first")
        first, second = rounds_of(algorithm, 2, local_steps=STEPS)
        point = run(loop, [first])[0]
        task.thawed = True
        with pytest.raises(ObjectiveError, match="has begun to write into the buffer 'offset'"):
            run(loop, [second])
        assert torch.equal(loop.point, point)


def scaled(task):
    with torch.no_grad():
        task.x.mul_(0.9)


def initialised(task):
    nn.init.zeros_(task.x)


def replaced(task):
    task.x.data = task.x.data * 0.9


def clamped(task):
    task.x.data.clamp_(-0.01, 0.01)


def clamped_in_vain(task):
    task.x.data.clamp_(-1e6, 1e6)


def clamped_behind_the_back(task):
    for parameter in task.in_a_list:
        parameter.data.clamp_(-0.01, 0.01)


def written(oracle, write, algorithm=None, from_round=0):
    """A loop whose objective writes into the parameter x from its next round on; that round, the point and the task."""
    algorithm = algorithm or FedAvg(0.05)
    task = quadratic(algorithm)
    original, task.writes, task.in_a_list = task.objective, False, [task.x]

    def objective(batch):
        if task.writes:
            write(task)
        return original(batch)

    task.objective = objective
    loop = loop_for(task, oracle, self_check="first")
    *before, batch = rounds_of(algorithm, from_round + 1, local_steps=STEPS)
    for each in before:
        loop.run(each, Autocast("cpu"))
    task.writes = True
    return loop, batch, loop.point.clone(), task


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized()], ids=str)
@pytest.mark.parametrize("write", [scaled, initialised, replaced, clamped, clamped_in_vain, clamped_behind_the_back])
def test_an_objective_that_moves_what_is_trained_is_refused(write, oracle):
    loop, batch, point, _ = written(oracle, write)
    with pytest.raises(
        ObjectiveError,
        match=r"objective writes into its trainable parameter 'x': the algorithm alone moves .*"
        r"proximal\.Box\(low, high\).*register_buffer",
    ) as error:
        loop.run(batch, Autocast("cpu"))
    assert "freeze" not in str(error.value)  # frozen parameters must not be written either
    assert torch.equal(loop.point, point)


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(replay=False)], ids=str)
@pytest.mark.parametrize("algorithm", [FedAvg(0.05), FedSGDA(0.05)], ids=["from a copy", "from the server's point"])
def test_one_that_begins_to_later_is_refused_too(algorithm, oracle):
    loop, batch, point, task = written(oracle, scaled, algorithm, from_round=1)
    own = task.x.clone()
    with pytest.raises(ObjectiveError, match="has begun to write into a trainable parameter: the algorithm alone"):
        loop.run(batch, Autocast("cpu"))
    assert torch.equal(loop.point, point)
    assert torch.equal(own, task.x)


def test_an_embedding_that_renormalises_its_rows_is_refused():
    """Plain for FedAvg, but where clients stand at the server's point it would change that."""
    net = nn.Sequential(nn.Embedding(3, 4, max_norm=0.1), nn.Linear(4, 3))
    objective, w, v, _, data = setting(net, (6,), loss=lambda net, batch: F.cross_entropy(net(batch[1]), batch[1]))
    data = tuple(leaf[0] for leaf in data)
    with pytest.raises(
        ObjectiveError, match=r"'net\.0\.weight' by nn\.Embedding\(max_norm=\.\.\.\): .* Leave max_norm out and scale"
    ):
        Look.at(objective, w[0], v[0], data)
    net[0].weight.requires_grad_(False)
    frozen = Objective(objective.task, ParameterSpace(objective.task), Autocast("cpu"))
    z = read(frozen.space.shared, frozen.task)
    with pytest.raises(
        ObjectiveError, match=r"frozen parameter 'net\.0\.weight'.* Renormalise the rows of the table once"
    ):
        Look.at(frozen, z, v[0], data)


def test_nothing_of_the_evaluations_stays_in_memory():
    made = SimpleQueue()  # which the look leaves as it is

    class Watched(Line):
        def objective(self, batch):
            x, y = batch
            hidden = torch.tanh(self.body[0](x))  # tanh saves its own output
            made.put(weakref.ref(hidden))
            return (self.head(hidden).squeeze(1) - y).square().mean()

    task = Watched()
    objective = Objective(task, ParameterSpace(task), Autocast("cpu"))
    z = read(objective.space.shared, task)
    look = Look.at(objective, z, z.new_empty(0), (torch.randn(4, 6), torch.randn(4)))
    gc.collect()
    assert look.activation_bytes > 0
    assert made.qsize() == 4
    assert all(made.get()() is None for _ in range(4))


class Made(FederatedLightningModule):
    """Makes a buffer in its objective."""

    def __init__(self, make, oracle=None):
        super().__init__(FedAvg(0.05), oracle=oracle)
        self.line, self.make = nn.Linear(6, 1), make
        self.register_buffer("mask", None)

    def objective(self, batch):
        x, y = batch
        self.make(self, x)
        return (self.line(x * self.mask).squeeze(1) - y).square().mean()


def grows(task, x):
    task.mask = 0.5 * x.detach()[0] if task.mask is None else 0.9 * task.mask


def once(task, x):
    if task.mask is None:
        task.register_buffer("mask", torch.arange(6) / 6, persistent=False)


def test_a_buffer_that_the_objective_makes_may_be_a_constant_but_not_change():
    for oracle in (Sequential(), Vectorized(), None):
        with pytest.raises(ValueError, match="makes the buffer 'mask', which was registered as None"):
            fitted(Made(grows, oracle))
        task = Made(once, oracle)
        fitted(task)
        torch.testing.assert_close(task.mask, torch.arange(6) / 6)


class Conditional(Line):
    """Chooses by ``torch.cond``, which compiles its branches."""

    def objective(self, batch):
        loss = super().objective(batch)["loss"]
        return {"loss": torch.cond(loss > 0.5, lambda value: 2 * value, lambda value: value.clone(), (loss,))}


class Chosen(Line):
    """The same by a mask."""

    def objective(self, batch):
        loss = super().objective(batch)["loss"]
        return {"loss": torch.where(loss > 0.5, 2 * loss, loss)}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at it
def test_an_objective_with_torch_cond_is_computed_client_by_client():
    ends = []
    for make in (Conditional, Chosen):
        for oracle in (Sequential(), Vectorized(), None):
            torch.manual_seed(0)
            task = make(dropout=0.0, oracle=oracle)
            fitted(task, regression_data(participation=Uniform(2)), max_steps=1)  # every evaluation is compiled
            ends.append(parameters_to_vector(task.parameters()))
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0])
