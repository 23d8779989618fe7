"""Every field that an algorithm sends declares what the server knows of it."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from fedlightning.algorithms.base import PerClient
from fedlightning.federation.channels.differences import is_count
from fedlightning.federation.protocol import Stamp
from fedlightning.federation.remote.expectations import Expectations
from tests.support.cases import CASES
from tests.support.federations import loop_for, quadratic


@pytest.mark.parametrize("name", CASES)
def test_updates_of_every_algorithm_are_declared(name):
    changes = {"p": 0.0} if name == "FedPD" else {}  # it sends nothing in some rounds
    loop = loop_for(quadratic(CASES[name].algorithm(**changes)))
    for phase in range(len(loop.algorithm.phases)):
        request = loop.server.request(Stamp(0, phase), seed=1)
        update = Expectations(lambda: loop.algorithm, 0).of(request).update
        for each in fields(update):
            value = getattr(update, each.name)
            if is_count(each):
                assert value.shape == (1,)
                continue
            known = each.metadata["relative_to"]
            if known:  # its shape is that of the broadcast's field
                sent = getattr(request.message, known)
                sent = sent.default if isinstance(sent, PerClient) else sent
                assert value.shape == (1, *sent.shape)


@pytest.mark.parametrize("name", ["FedAvg", "FedMM", "CODAPlus", "LpProj"])
def test_local_points_are_near_what_was_sent(name):
    """Steps of size zero, or close to it, make differences of zero."""
    case = CASES[name]
    algorithm = case.algorithm(**{case.size: 1e-12})
    loop = loop_for(quadratic(algorithm))
    request = loop.server.request(Stamp(0, 0), seed=1)
    update = Expectations(lambda: loop.algorithm, 0).of(request).update
    declared = fields(update)[0]
    sent = getattr(request.message, declared.metadata["relative_to"])
    if name != "LpProj":  # its reference moves by a step size of its own
        torch.testing.assert_close(getattr(update, declared.name)[0], sent)
