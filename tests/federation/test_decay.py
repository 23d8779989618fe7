"""Weight decay of parameters that the loss does not depend on, which torch's optimizers leave as they are."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from fedlightning.algorithms import FedAvg
from fedlightning.local import SGD, Adam
from fedlightning.local.descent import step_at_rest
from tests.support.small import Line, fitted

TOLD = "the loss of the first minibatch does not depend on 'idle.weight' and 1 more, on which the weight decay"
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

    def __init__(self, algorithm):
        super().__init__(algorithm, dropout=0.0)
        self.idle = nn.Linear(2, 1)


@pytest.mark.parametrize("name", DECAYS)
def test_decay_without_a_gradient_is_told(name):
    task = Idle(FedAvg(0.05, local_optimizer=DECAYS[name]))
    before = task.idle.weight.detach().clone()
    with pytest.warns(UserWarning, match=TOLD):
        fitted(task, max_steps=1)
    assert not torch.equal(task.idle.weight, before)


@pytest.mark.filterwarnings("error:.*the loss of the first minibatch does not depend")
@pytest.mark.parametrize("name", DOES_NOT)
def test_what_moves_nothing_there_needs_no_word(name):
    task = Idle(FedAvg(0.05, local_optimizer=DOES_NOT[name]))
    before = task.idle.weight.detach().clone()
    fitted(task, max_steps=1)
    assert torch.equal(task.idle.weight, before)


@pytest.mark.filterwarnings("error:.*the loss of the first minibatch does not depend")
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
