"""What clients receive of a server's broadcasts where these pass through a channel's download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.base import PerClient
from fedlightning.channel.base import Sent
from fedlightning.channel.channel import Channel
from fedlightning.core.errors import InvalidValueError
from fedlightning.federation.channels.passage import DOWNLOAD, exchange_of
from fedlightning.federation.protocol import Request
from fedlightning.federation.validation import tensors_of


@dataclass(frozen=True)
class Broadcast:
    """Holds what a server sends to all clients in one phase, and what it keeps of it.

    The first broadcast travels whole. Later ones travel as transformed differences from what clients know already.

    Attributes:
        message: The message as clients have it once they have received it.
        known: Its tensors that pass through the channel, flat, ``[n]`` by name.
        memory: What the transforms remember, by name.
        whole_bits: Bits of the whole message to one client.
        bits: Bits of what is sent in place of it to a client that has received all broadcasts before; None where that
            is the whole message.
    """

    message: Any
    known: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]
    whole_bits: float
    bits: float | None = None

    def ways(self, contacted: int, num_clients: int) -> tuple[float, float]:
        """Return the bits that are sent to all clients together, in either of two ways.

        Clients that were not asked have to catch up before they are asked again. So either the contacted ones receive
        the whole message, or all N follow every broadcast from the first one on, which is whole.

        Args:
            contacted: Number of clients that are asked.
            num_clients: N.

        Returns:
            The bits of whole messages to the contacted ones, and of what all N receive that follow.
        """
        whole = self.whole_bits * contacted
        if not self.known:
            return whole, whole
        return whole, (self.whole_bits if self.bits is None else self.bits) * num_clients


def broadcast(
    request: Request, channel: Channel, known: Mapping[str, Tensor], memory: Mapping[str, Tensor]
) -> Broadcast:
    """Return what clients receive of a request's message.

    Args:
        request: Has the algorithm's message, and terms.
        channel: The channel of the phase.
        known: What clients know, as the :class:`Broadcast` before returned it; empty before the first.
        memory: What the transforms remember, likewise.

    Raises:
        InvalidValueError: If transforms would have to change what belongs to single clients.
    """
    message = request.message
    whole = _bits_of(message, request.buffers)
    if not channel.download:
        return Broadcast(message, {}, {}, whole)
    if message is not None and any(isinstance(getattr(message, each.name), PerClient) for each in fields(message)):
        raise InvalidValueError(
            "Channel(download=...) changes what all clients receive alike, but this algorithm's "
            f"{type(message).__name__} has something for each client by itself. Leave download out."
        )
    tensors = {name: value for name, value in tensors_of(message).items() if value.is_floating_point()}
    now = {name: value.reshape(-1) for name, value in tensors.items()}
    follows = {name: known[name].to(value) for name, value in now.items() if name in known}
    if not follows or any(value.shape != now[name].shape for name, value in follows.items()) or len(follows) < len(now):
        return Broadcast(message, {**known, **now}, memory, whole)
    differences = {name: (value - follows[name])[None] for name, value in now.items()}
    dense = {name: _bits(value) for name, value in now.items()}
    chain = channel.download_transform
    start = memory or chain.memory({name: value[0] for name, value in differences.items()})
    sent, after = chain.apply(
        Sent(differences, {name: torch.full((1,), bits, dtype=torch.float64) for name, bits in dense.items()}),
        {name: value[None].to(request.point.device) for name, value in start.items()},
        exchange_of(request),
        DOWNLOAD,
    )
    received = {name: follows[name] + value[0] for name, value in sent.values.items()}
    changed = {name: value.view_as(tensors[name]) for name, value in received.items()}
    bits = whole - sum(dense.values()) + sum(float(value.sum()) for value in sent.bits.values())
    kept = {name: value[0] for name, value in after.items()}
    return Broadcast(replace(message, **changed), {**known, **received}, kept, whole, bits)


def _bits_of(message: Any, buffers: Tensor) -> float:
    """Return the bits of a message and of buffers to one client, as they lie in memory."""
    values = [] if message is None else [getattr(message, each.name) for each in fields(message)]
    tensors = [value.default if isinstance(value, PerClient) else value for value in values]
    return sum(_bits(value) for value in (*tensors, buffers) if isinstance(value, Tensor))


def _bits(value: Tensor) -> float:
    return 8.0 * value.element_size() * value.numel()
