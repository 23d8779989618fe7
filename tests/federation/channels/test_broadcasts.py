"""Broadcasts through a channel's download, by closed forms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedlightning.algorithms.base import PerClient
from fedlightning.channel import Channel, Clip
from fedlightning.federation.channels.broadcasts import broadcast
from fedlightning.federation.protocol import Request, Stamp
from fedlightning.federation.terms import Terms
from tests.support.transforms import Halved

Z = torch.tensor([3.0, 4.0])


@dataclass(frozen=True)
class Held(Halved):
    """Halves, and has nothing to be told."""

    def public(self):
        return {}


@dataclass(frozen=True)
class Message:
    z: Any
    t: int = 0
    when: Tensor = torch.tensor(1)


def request(z):
    return Request(Stamp(0, 0), 3, Message(z), Z, torch.zeros(1), terms=Terms(4, 10))


def test_without_transforms_the_message_is_whole():
    asked = request(Z)
    sent = broadcast(asked, Channel(), {}, {})
    assert (sent.message is asked.message, sent.known, sent.memory, sent.bits) == (True, {}, {}, None)
    assert sent.whole_bits == 64 + 64 + 32  # two numbers, a whole number of 64 bits, a buffer
    assert sent.ways(4, 10) == (4 * 160, 4 * 160)


def test_the_first_travels_whole_and_later_ones_as_differences():
    channel = Channel(download=[Clip(1.0)])
    first = broadcast(request(Z), channel, {}, {})
    assert torch.equal(first.message.z, Z)
    assert first.bits is None
    second = broadcast(request(2 * Z), channel, first.known, first.memory)
    torch.testing.assert_close(second.message.z, 1.2 * Z)
    third = broadcast(request(2 * Z), channel, second.known, second.memory)
    torch.testing.assert_close(third.message.z, 1.4 * Z)
    assert third.message.t == 0


def test_memory_goes_on_and_bits_are_those_of_the_differences():
    channel = Channel(download=[Held()])
    first = broadcast(request(0 * Z), channel, {}, {})
    second = broadcast(request(Z), channel, first.known, first.memory)
    torch.testing.assert_close(second.message.z, Z / 2)
    torch.testing.assert_close(second.memory["0.z"], Z / 2)
    third = broadcast(request(Z), channel, second.known, second.memory)
    torch.testing.assert_close(third.message.z, Z)
    assert (third.whole_bits, third.bits) == (160, 128)
    assert first.ways(4, 10) == (640, 1600)  # those who follow need the whole message once
    assert third.ways(4, 10) == (640, 1280)


def test_a_field_that_comes_back_or_changes_its_length_travels_whole():
    channel = Channel(download=[Clip(1.0)])
    first = broadcast(request(Z), channel, {}, {})
    nothing = broadcast(request(None), channel, first.known, first.memory)
    assert nothing.message.z is None
    longer = broadcast(request(torch.ones(3)), channel, nothing.known, nothing.memory)
    assert torch.equal(longer.message.z, torch.ones(3))


def test_what_belongs_to_single_clients_is_refused():
    own = PerClient(Z, torch.tensor([1]), Z[None])
    assert broadcast(request(own), Channel(), {}, {}).whole_bits == 160
    with pytest.raises(ValueError, match=r"Channel\(download=\.\.\.\) .* Message has something for each client"):
        broadcast(request(own), Channel(download=[Clip(1.0)]), {}, {})


def test_nothing_is_written_into_the_servers_message():
    asked = replace(request(2 * Z), terms=Terms(4, 10))
    before = asked.message.z.clone()
    broadcast(asked, Channel(download=[Clip(1.0)]), {"z": Z.clone()}, {})
    assert torch.equal(asked.message.z, before)
