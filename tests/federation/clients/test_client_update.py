"""What clients make of a broadcast does not depend on how a cohort is cut into chunks."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms import FedAvg
from fedlightning.federation.clients.client_update import Received
from fedlightning.oracle import Sequential, Vectorized
from tests.support.federations import loop_for, quadratic, rounds_of, run


class Writes(FedAvg):
    """Changes what it was sent, as is its right."""

    def client_update(self, message, state, oracle):
        message.z.mul_(0.5)
        return super().client_update(message, state, oracle)


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(chunk_size=2), Vectorized(chunk_size=3)])
def test_a_message_that_is_written_into_reaches_every_chunk_as_it_was_sent(oracle):
    whole, cut = (
        run(loop_for(quadratic(Writes(0.05)), oracle=each), rounds_of(Writes(0.05), 3))
        for each in (Vectorized(), oracle)
    )
    torch.testing.assert_close(cut, whole, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(whole, run(loop_for(quadratic(FedAvg(0.05))), rounds_of(FedAvg(0.05), 3)))


def test_a_message_is_copied_once_unless_it_is_written_into():
    sent = FedAvg(0.05).init_server(torch.ones(3))
    received = Received(sent)
    first = received.message
    assert first is received.message
    first.z.mul_(2)
    second = received.message
    assert second is not first
    assert torch.equal(second.z, torch.ones(3))
    assert torch.equal(sent.z, torch.ones(3))
    assert Received(None).message is None
