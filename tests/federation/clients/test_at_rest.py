"""Steps of parameters that the loss does not depend on, which torch's optimizers leave as they are."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAvg, FedPD, StatefulFedAvg
from fedlightning.local import SGD, Adam, LocalSteps
from fedlightning.local.torch_optimizers import last_move
from fedlightning.oracle import Sequential, Vectorized
from tests.support.small import Line, fitted, regression_data

TOLD = "the loss does not always depend on 'idle.weight' and 1 more, and the weight decay of the clients' steps moves"
DECAYS = {
    "SGD": SGD(weight_decay=0.1),
    "AdamW": Adam(weight_decay=0.1, decoupled=True),
    "torch's AdamW": partial(torch.optim.AdamW, weight_decay=0.1),
}
DOES_NOT = {
    "momentum": SGD(momentum=0.9),
    "Adam": Adam(),
    "torch's Adam": torch.optim.Adam,
    "elsewhere": SGD(weight_decay={"body": 0.1, "head": 0.1, "idle": 0.0}),
    "plain": None,
}


class Idle(Line):
    """Has a layer that the objective leaves out."""

    def __init__(self, algorithm, oracle=None):
        super().__init__(algorithm, dropout=0.0, oracle=oracle)
        self.idle = nn.Linear(2, 1)


@pytest.mark.parametrize("oracle", [None, Vectorized(backward="vmap")])
@pytest.mark.parametrize("name", DECAYS)
def test_decay_without_a_gradient_is_told(name, oracle):
    task = Idle(FedAvg(0.05, local_optimizer=DECAYS[name]), oracle)
    before = task.idle.weight.detach().clone()
    with pytest.warns(UserWarning, match=TOLD):
        fitted(task, max_steps=1)
    assert not torch.equal(task.idle.weight, before)


@pytest.mark.filterwarnings("error:.*the loss does not always depend")
@pytest.mark.parametrize("name", DOES_NOT)
def test_what_moves_nothing_there_needs_no_word(name):
    task = Idle(FedAvg(0.05, local_optimizer=DOES_NOT[name]))
    before = task.idle.weight.detach().clone()
    fitted(task, max_steps=1)
    assert torch.equal(task.idle.weight, before)


@pytest.mark.filterwarnings("error:.*the loss does not always depend")
def test_decay_of_what_has_a_gradient_needs_no_word():
    fitted(Line(FedAvg(0.05, local_optimizer=DECAYS["SGD"])), max_steps=1)
    frozen = Idle(FedAvg(0.05, local_optimizer=DECAYS["SGD"]))
    frozen.idle.requires_grad_(False)
    fitted(frozen, max_steps=1)


def test_the_last_move():
    z = torch.zeros(3)
    heavy, decaying = partial(torch.optim.SGD, momentum=0.5), partial(torch.optim.SGD, weight_decay=0.1)
    torch.testing.assert_close(last_move(decaying, z, [0.0]), torch.full((3,), 0.01))
    torch.testing.assert_close(last_move(heavy, z, [1.0, 0.0]), torch.full((3,), 0.05))
    torch.testing.assert_close(last_move(SGD(momentum=0.5), z, [1.0, 0.0]), torch.full((3,), 0.5))
    assert not last_move(SGD(momentum=0.5), z, [0.0]).any()
    assert last_move(Adam(), z, [1.0, 0.0]).all()
    for optimizer in (torch.optim.SGD, torch.optim.RMSprop):
        assert not last_move(optimizer, z, [1.0, 0.0]).any()


class Turns(Line):
    """Has a layer whose turn it is in every second epoch alone."""

    def __init__(self, algorithm, oracle):
        super().__init__(algorithm, dropout=0.0, oracle=oracle)
        self.turns = nn.Linear(6, 1)

    def objective(self, batch):
        found = super().objective(batch)
        if self.current_epoch % 2 == 0:
            found["loss"] = found["loss"] + self.turns(batch[0]).square().mean()
        return found


IN_TURNS = "the loss does not always depend on 'turns.weight' and 1 more, and {}"


def in_turns(algorithm, oracle):
    fitted(Turns(algorithm, oracle), regression_data(rounds_per_epoch=1), max_steps=3)


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(), Vectorized(backward="each"), None])
@pytest.mark.parametrize(
    ("algorithm", "what"),
    [
        (StatefulFedAvg(0.05, local_optimizer=SGD(momentum=0.9)), "the momentum of the clients' steps moves"),
        (StatefulFedAvg(0.05, local_optimizer=Adam()), "the momentum of the clients' steps moves"),
        (FedAvg(0.05, local_optimizer=SGD(weight_decay=0.1)), "the weight decay of the clients' steps moves"),
    ],
)
def test_a_parameter_that_rests_in_a_later_epoch_is_told(algorithm, what, oracle):
    with pytest.warns(UserWarning, match=IN_TURNS.format(what)):
        in_turns(algorithm, oracle)


@pytest.mark.filterwarnings("error:.*the loss does not always depend")
@pytest.mark.parametrize(
    "algorithm", [FedAvg(0.05, local_optimizer=SGD(momentum=0.9)), StatefulFedAvg(0.05), FedAvg(0.05)]
)
def test_memory_that_begins_anew_in_every_round_moves_nothing_at_rest(algorithm):
    in_turns(algorithm, None)


class Heads(Line):
    """Has a layer for each of two kinds of clients."""

    def __init__(self, algorithm, oracle):
        super().__init__(algorithm, dropout=0.0, oracle=oracle)
        self.heads = nn.ModuleList(nn.Linear(6, 1) for _ in range(2))

    def objective(self, batch):
        *rest, kind = batch
        return super().objective(rest)["loss"] + self.heads[int(kind[0])](batch[0]).square().mean()


def of_kinds(algorithm, oracle=None):
    x = torch.randn(4, 12, 6, generator=torch.Generator().manual_seed(0))
    clients = [TensorDataset(own, own[:, 0], torch.full((12,), i % 2)) for i, own in enumerate(x)]
    data = FederatedDataModule.from_datasets(train=clients, batch_size=4, local_steps=3)
    fitted(Heads(algorithm, oracle), data, max_steps=3)


@pytest.mark.filterwarnings("error:.*the loss does not always depend")
@pytest.mark.parametrize("algorithm", [FedAvg, StatefulFedAvg])
@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam()])
@pytest.mark.parametrize("oracle", [Sequential(), None])
def test_layers_of_other_clients_are_moved_by_no_momentum(oracle, algorithm, optimizer):
    """Also where an oracle has been tried on two clients before."""
    of_kinds(algorithm(0.05, local_optimizer=optimizer), oracle)


def test_layers_of_other_clients_are_moved_by_decay():
    with pytest.warns(UserWarning, match=r"depend on 'heads\.[01]\.weight' and 1 more, and the weight decay"):
        of_kinds(FedAvg(0.05, local_optimizer=SGD(weight_decay=0.1)))


class IdleOwn(Idle):
    personal_parameters = ("idle",)


def test_decay_of_a_personal_layer_is_told():
    algorithm = FedAvg(0.05, local_optimizer=SGD(weight_decay=0.5))
    with pytest.warns(UserWarning, match=TOLD):
        fitted(IdleOwn(algorithm), max_steps=1, limit_val_batches=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*the loss does not always depend")
        fitted(
            IdleOwn(FedAvg(0.05, local_optimizer=partial(torch.optim.SGD, weight_decay=0.5))),
            max_steps=1,
            limit_val_batches=0,
        )


def test_decay_of_a_solver_is_told():
    solver = LocalSteps(lr=0.1, optimizer=partial(torch.optim.SGD, weight_decay=0.5))
    task = Idle(FedPD(eta=1.0, solver=solver))
    before = task.idle.weight.detach().clone()
    with pytest.warns(UserWarning, match=TOLD):
        fitted(task, max_steps=1)
    assert not torch.equal(task.idle.weight, before)


class Late(Line):
    """Has a layer that is left out where the first label of a minibatch is negative."""

    def __init__(self, algorithm):
        super().__init__(algorithm, dropout=0.0, oracle=Sequential())
        self.late = nn.Linear(6, 1)

    def objective(self, batch):
        loss = super().objective(batch)["loss"]
        return {"loss": loss if batch[1][0] < 0 else loss + self.late(batch[0]).square().mean()}


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [
        (torch.optim.RMSprop, "what the clients' optimizer remembers fades for such parameters"),
        (torch.optim.Adagrad, None),
        (torch.optim.SGD, None),
    ],
)
def test_memory_that_fades_at_rest_is_told(optimizer, told, recwarn):
    fitted(Late(FedAvg(0.01, local_optimizer=optimizer)), regression_data(), max_steps=2)
    assert [told in str(each.message) for each in recwarn if "always depend on 'late" in str(each.message)] == (
        [] if told is None else [True]
    )
