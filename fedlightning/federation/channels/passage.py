"""The client's part of a channel: updates pass it before they are sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.base import Algorithm
from fedlightning.channel.base import Exchange, Fields, Sent
from fedlightning.channel.chain import inside, under
from fedlightning.channel.channel import Channel, Channels
from fedlightning.core.errors import InvalidValueError
from fedlightning.federation.aggregation import BUFFERS, finite_clients
from fedlightning.federation.channels.differences import Differences, accumulated, counts_of
from fedlightning.federation.client_states import LATE, ClientStates, StatesByField
from fedlightning.federation.protocol import Answer, Request, Stamp
from fedlightning.federation.validation import tensors_of

UPLOAD, DOWNLOAD, ATTACK, RELEASE = range(4)
"""Purposes of the draws of a channel's parts."""

_BEGUN = "begun"


class Passage:
    """Lets the answers to one request pass through the client's part of a channel.

    What transforms remember of a client lies among its other states, under names that begin with ``channel.`` and the
    number of the phase.
    """

    def __init__(self, channel: Channel, algorithm: Algorithm, request: Request, whole: Tensor | None = None) -> None:
        """Take what clients know of the exchange.

        Args:
            channel: The channel of the phase.
            algorithm: The algorithm, for messages.
            request: What the clients are asked, with terms; nobody has written into it.
            whole: Which averaged buffers are whole numbers, ``[b]``, and pass by the channel; None if none is.
        """
        self._chain = channel.transform
        self._is_noisy = any(transform.adds_noise for transform in channel.client)
        self._aggregate = channel.aggregate
        self._buffers = request.buffers
        self._real: Any = slice(None)
        if whole is not None and not channel.adds_noise:  # noise is refused beside buffers, counts among them
            self._real = ~whole.to(request.buffers.device)
        self._algorithm = algorithm
        self._differences = Differences(algorithm, request)
        self._exchange = exchange_of(request)
        self._name = f"{LATE}{request.stamp.phase}"

    @classmethod
    def through(
        cls, channels: Channels | None, algorithm: Algorithm, request: Request, whole: Tensor | None = None
    ) -> Passage | None:
        """Return the passage of a request's answers; None if they pass through no channel."""
        channel = None if channels is None else channels.of(request.stamp.phase)
        return None if channel is None else cls(channel, algorithm, request, whole)

    def sent(
        self, answers: Iterator[Answer], states: ClientStates, pending: list[tuple[Stamp, list[int], StatesByField]]
    ) -> Iterator[Answer]:
        """Yield what is sent in place of answers.

        Args:
            answers: The answers as the algorithm has them.
            states: Holds the clients' memories.
            pending: Takes their new memories.
        """
        for answer in answers:
            passed, memory = self.send(answer, states)
            if memory:
                pending.append((answer.stamp, answer.client_ids, memory))
            yield passed

    def send(self, answer: Answer, states: ClientStates) -> tuple[Answer, StatesByField]:
        """Return what S clients send in place of an answer, and their new memories, to be kept if it is accepted.

        A client with numbers that are not finite is marked as unsound here: a transform could hide them.

        Args:
            answer: The answer as the algorithm has it.
            states: Holds the clients' memories.

        Raises:
            TypeError: If a field of the update does not declare what the server knows of it.
            ValueError: If a field's length is not that of its memory.
        """
        values = self._differences.of(answer.update, answer.client_ids)
        real = answer.buffers[:, self._real]
        stuck = self._stuck(real)
        if real.shape[1]:
            values[BUFFERS] = real.masked_fill(stuck, 0.0)
        counts = {name: tensors_of(answer.update)[name] for name in counts_of(answer.update)}
        bits = {name: _dense(value) for name, value in values.items()}
        rest = sum((_dense(value) for value in counts.values()), torch.zeros(len(answer.client_ids)).double())
        rest = rest + _dense(answer.buffers[:, : answer.buffers.shape[1] - real.shape[1]])
        if not values:
            return replace(answer, bits=rest), {}
        finite = finite_clients({**values, **counts})
        exchange = replace(
            self._exchange,
            client_ids=answer.client_ids,
            accumulated=accumulated(self._algorithm, answer.update),
            aggregate=self._aggregate,
        )
        before = self._memory(values, states, answer.client_ids)
        sent, memory = self._chain.apply(Sent(values, bits), before, exchange, UPLOAD)
        buffers = answer.buffers.clone()
        buffers[:, self._real] = torch.where(stuck, real, sent.values.get(BUFFERS, real))
        update = self._differences.put(answer.update, {k: v for k, v in sent.values.items() if k != BUFFERS})
        wire = [self._on_the_wire(name, sent) for name in sent.values]
        told = sum((_dense(value) for value in sent.reports.values()), rest)
        sound = answer.sound if finite is None else finite if answer.sound is None else finite & answer.sound
        passed = replace(
            answer,
            update=update,
            buffers=buffers,
            bits=sum(wire, told),
            reports=sent.reports,
            sound=sound,
        )
        begun = {_BEGUN: torch.ones(len(answer.client_ids), dtype=torch.bool, device=answer.buffers.device)}
        return passed, under(self._name, {**memory, **begun}) if memory else {}

    def bound(self, answer: Answer) -> float | None:
        """Return the largest norm that one client's answer has on the wire; None if nothing bounds it, or noise."""
        if self._is_noisy:
            return None
        names = list(self._differences.of(answer.update, answer.client_ids))
        names += [BUFFERS] if answer.buffers[:, self._real].shape[1] else []
        return self._chain.bound(None, names, self._exchange)

    def reported(self) -> Mapping[str, Sequence[float]]:
        """Return the only finite values that clients' reports may have, by name; see :meth:`Transform.reported`."""
        return self._chain.reported()

    def _stuck(self, buffers: Tensor) -> Tensor:
        """Return which changes of buffers are NaN or infinite as the server's are, and pass as they are, ``[S, b]``."""
        return ~buffers.isfinite() & ~self._buffers[self._real].isfinite()

    def _on_the_wire(self, name: str, sent: Sent) -> Tensor:
        """Return the bits of each client's field, ``[S]``."""
        value = sent.values[name]
        needed = None if self._aggregate is None else self._aggregate.wire_bits(value.shape[1])
        return sent.bits[name].cpu() if needed is None else torch.full((len(value),), needed, dtype=torch.float64)

    def _memory(self, values: Mapping[str, Tensor], states: ClientStates, client_ids: list[int]) -> Fields:
        """Return the memories of S clients; those that have none yet begin with the transform's."""
        start = self._chain.memory({name: value[0] for name, value in values.items()})
        if not start:
            return {}
        stored = inside(self._name, states.of(client_ids, start=f"{self._name}."))
        found: dict[str, Tensor] = {}
        for name, first in start.items():
            begins = first.expand(len(client_ids), *first.shape)
            if name not in stored:
                found[name] = begins
                continue
            if stored[name].shape != begins.shape:
                raise InvalidValueError(
                    f"A channel remembers {list(stored[name].shape[1:])} numbers of every client ('{name}'), but now "
                    f"they send {list(first.shape)}. Fields whose length changes, such as those that hold something of "
                    "every local step, take no transform with memory: leave it out, or let ByField name the others."
                )
            known = stored[_BEGUN].view(-1, *[1] * first.dim())
            found[name] = torch.where(known.to(first.device), stored[name].to(first), begins)
        return found


def exchange_of(request: Request) -> Exchange:
    """Return between whom a request's answers pass, for transforms."""
    terms = request.terms
    assert terms is not None, "a server with a channel sends terms"
    return Exchange(
        request.stamp.round,
        request.stamp.phase,
        request.seed,
        terms.cohort,
        terms.num_clients,
        public=terms.public,
        expected=terms.expected,
    )


def _dense(value: Tensor) -> Tensor:
    """Return the bits of S clients' numbers as they lie in memory, ``[S]`` float64."""
    count = 8.0 * value.element_size() * (value[0].numel() if len(value) else 0)
    return torch.full((len(value),), count, dtype=torch.float64)
