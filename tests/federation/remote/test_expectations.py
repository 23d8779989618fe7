"""What clients send, worked out without data, is what clients do send."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedlightning.algorithms import FedAvg
from fedlightning.core.errors import UsageError
from fedlightning.federation.protocol import Stamp
from fedlightning.federation.remote.expectations import Expectations
from fedlightning.federation.remote.training_codec import split
from fedlightning.federation.validation import tensors_of
from fedlightning.oracle import Autocast, Sequential
from tests.support.cases import CASES
from tests.support.federations import loop_for, personal_quadratic, quadratic, rounds_of


def described(update, buffers):
    shapes = {name: (value.shape, value.dtype) for name, value in tensors_of(update).items()}
    return type(update), shapes, (buffers.shape, buffers.dtype)


@pytest.mark.parametrize("personal", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_sends_what_is_expected(name, personal, monkeypatch):
    case = CASES[name]
    algorithm = case.personal_algorithm() if personal else case.algorithm()
    task = personal_quadratic(algorithm, **case.problem) if personal else quadratic(algorithm)
    loop = loop_for(task, Sequential())
    expectations = Expectations(lambda: loop.algorithm, loop.space.personal.dim)
    ask, seen = loop.loop.transport.ask, []

    def compared(request, invited):
        state = torch.get_rng_state()
        expected = expectations.of(request)
        assert torch.equal(torch.get_rng_state(), state)
        for answer in ask(request, invited):
            for one in split(answer):
                assert described(one.update, one.buffers) == described(expected.update, expected.buffers)
                assert (set(one.metrics), one.per_client) == (expected.metrics, expected.per_client)
                seen.append(one)
            yield answer

    monkeypatch.setattr(loop.loop.transport, "ask", compared)
    for batch in rounds_of(algorithm, 6, size=2):
        loop.run(batch, Autocast("cpu"))
    assert len(seen) == 6 * 2 * len(algorithm.phases)


@dataclass(frozen=True, eq=False)
class Curious(FedAvg):
    """Looks at its data."""

    def client_update(self, message, state, oracle):
        for batch in oracle.batches:
            assert len(batch.data)
        return super().client_update(message, state, oracle)


def test_an_algorithm_that_looks_at_data_is_refused_by_name():
    loop = loop_for(quadratic(Curious(0.1)))
    with pytest.raises(UsageError, match=r"What clients of Curious send cannot be told without data \(TypeError"):
        Expectations(lambda: loop.algorithm, 0).of(loop.server.request(Stamp(0, 0), 1))
