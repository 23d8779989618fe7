"""Steps of parameters that the loss does not depend on, which torch's optimizers leave as they are."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from fedlightning.algorithms import FedAvg, StatefulFedAvg
from fedlightning.local import SGD, Adam
from fedlightning.local.descent import step_at_rest
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


def test_a_step_at_rest():
    z = torch.zeros(3)
    torch.testing.assert_close(step_at_rest(partial(torch.optim.SGD, weight_decay=0.1), z), torch.full((3,), 0.01))
    assert not step_at_rest(torch.optim.RMSprop, z).any()
    assert not step_at_rest(SGD(momentum=0.5), z).any()


def test_a_step_at_rest_after_motion():
    z = torch.zeros(3)
    heavy = partial(torch.optim.SGD, momentum=0.5)
    torch.testing.assert_close(step_at_rest(heavy, z, after_motion=True), torch.full((3,), 0.05))
    torch.testing.assert_close(step_at_rest(SGD(momentum=0.5), z, after_motion=True), torch.full((3,), 0.5))
    assert step_at_rest(Adam(), z, after_motion=True).all()
    assert not step_at_rest(partial(torch.optim.SGD), z, after_motion=True).any()
    assert not step_at_rest(torch.optim.RMSprop, z, after_motion=True).any()


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


IN_TURNS = "the loss does not always depend on 'turns.weight' and 1 more, and the {} of the clients' steps moves"


def in_turns(algorithm, oracle):
    fitted(Turns(algorithm, oracle), regression_data(rounds_per_epoch=1), max_steps=3)


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(), Vectorized(backward="each"), None])
@pytest.mark.parametrize(
    ("algorithm", "what"),
    [
        (StatefulFedAvg(0.05, local_optimizer=SGD(momentum=0.9)), "momentum"),
        (StatefulFedAvg(0.05, local_optimizer=Adam()), "momentum"),
        (FedAvg(0.05, local_optimizer=SGD(weight_decay=0.1)), "weight decay"),
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
