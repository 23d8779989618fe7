"""What algorithms use their gradients for is found out beforehand, and leaves no trace."""

from __future__ import annotations

import random

import pytest
import torch

from fedlightning.algorithms import FIAELT, SCAFFOLD, FedAvg, FedProx, Scaffnew
from fedlightning.federation.clients import oracle_trial
from fedlightning.federation.clients.rehearsal import share_in_place
from fedlightning.local import SVRG
from fedlightning.oracle import Auto, Sequential
from tests.support.small import Line, fitted, regression_data

pytestmark = pytest.mark.filterwarnings("ignore:Impatient.client_update draws")


class Halving(FedAvg):
    """Takes half of its gradients for plain steps, and the others at the point where they lead."""

    def client_update(self, message, state, oracle):
        reply = super().client_update(message, state, oracle)
        for batch in oracle.batches():
            oracle(reply.point, batch)
        return reply


class Impatient(FedAvg):
    """Cannot do with a gradient of zero, and draws."""

    def client_update(self, message, state, oracle):
        torch.rand(3), random.random()
        (batch, *_) = oracle.batches()
        if not oracle(message.z.expand(oracle.num_clients, -1), batch).any():
            raise ZeroDivisionError("no length")
        return super().client_update(message, state, oracle)


class Restless(FedAvg):
    """Begins anew until the gradient is less than the last one, which none is that is zero."""

    def client_update(self, message, state, oracle):
        (batch, *_), w, last = oracle.batches(), message.z.expand(oracle.num_clients, -1).clone(), 0.0
        while not (length := oracle(w, batch).norm()) > last:
            last = length
        return super().client_update(message, state, oracle)


@pytest.fixture
def shares(monkeypatch):
    """What rehearsals of a fit have found."""
    seen = []

    def share(*arguments):
        state, drawn = torch.get_rng_state(), random.getstate()
        seen.append(share_in_place(*arguments))
        assert torch.equal(torch.get_rng_state(), state)
        assert random.getstate() == drawn
        return seen[-1]

    monkeypatch.setattr(oracle_trial, "share_in_place", share)
    return seen


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (FedAvg(0.05), 1.0),
        (FedAvg(0.05, local_optimizer=torch.optim.Adam), 0.0),
        (FedProx(0.05, mu=0.1), 0.0),
        (SCAFFOLD(0.05), 0.0),
        (Scaffnew(0.05, p=0.5), 0.0),
        (Halving(0.05), 0.5),
        (Impatient(0.05), 0.5),
        (Restless(0.05), 0.0),
        (FIAELT(beta=2.0, solver=SVRG(lr=0.05, inner_steps=2, epochs=2)), 0.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_share_of_plain_steps_is_known_before_the_first_round(algorithm, expected, shares):
    fitted(Line(algorithm, dropout=0.0, oracle=Auto(trials=1)), regression_data(local_steps=25), limit_val_batches=0)
    assert shares == [expected]


@pytest.mark.parametrize("algorithm", [SCAFFOLD(0.05), Impatient(0.05)], ids=lambda value: type(value).__name__)
def test_a_rehearsed_fit_is_that_of_one_that_was_not_rehearsed(algorithm, shares):
    points = []
    for oracle in (Auto(trials=1), Sequential()):
        torch.manual_seed(0)
        task = Line(algorithm, dropout=0.0, oracle=oracle)
        fitted(task, regression_data(local_steps=25), limit_val_batches=0)
        points.append(task.head.weight)
    torch.testing.assert_close(*points)
    assert len(shares) == 1
