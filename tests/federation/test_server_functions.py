"""What the server calls of an algorithm is named where it returns, or does, something else than the contract says."""

from __future__ import annotations

import pytest

from fedlightning.algorithms import FedAvg, Phase
from tests.support.federations import loop_for, quadratic, rounds_of, run


class Bare(FedAvg):
    def broadcast(self, server):
        return server.z


class SendsClass(FedAvg):
    def broadcast(self, server):
        return type(server)


class SendsNothing(FedAvg):
    def send(self, server):
        """Ends without a return."""

    @property
    def phases(self):
        return (Phase(self.send, self.client_update, self.server_update),)


class ReturnsBare(FedAvg):
    def server_update(self, server, update):
        return update.z


MISTAKES = {
    Bare: r"^Bare\.broadcast returned a Tensor; expected an object of a frozen .* fedlightning\.algorithms\.Point",
    SendsClass: r"^SendsClass\.broadcast returned a type; expected an object of a frozen dataclass of tensors",
    SendsNothing: r"^SendsNothing\.send returned None; expected an object of a frozen dataclass of tensors and numbers",
    ReturnsBare: r"^ReturnsBare\.server_update returned a Tensor; expected a Point as init_server does",
}


@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.__name__)
def test_what_is_no_message_and_no_state_is_named(kind):
    algorithm = kind(0.05)
    with pytest.raises(TypeError, match=MISTAKES[kind]):
        run(loop_for(quadratic(algorithm)), rounds_of(algorithm, 1))
