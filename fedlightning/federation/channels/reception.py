"""The server's part of the channels of a run, and what it keeps for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.base import Algorithm
from fedlightning.channel.chain import inside, under
from fedlightning.channel.channel import Channels
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.serialisation import NotPlainError, shown, to_config
from fedlightning.federation.aggregation import CohortMean
from fedlightning.federation.channels.broadcasts import Broadcast, broadcast
from fedlightning.federation.channels.passage import UPLOAD, exchange_of
from fedlightning.federation.channels.through_channel import ThroughChannel
from fedlightning.federation.protocol import Request, Roster, Stamp
from fedlightning.federation.resume import START_ANEW
from fedlightning.federation.terms import Terms
from fedlightning.federation.told_apart import told_apart


@dataclass(frozen=True)
class Kept:
    """Holds what the server keeps for channels from one round to the next; each name begins with a phase's number.

    Attributes:
        public: What it tells the transforms of all clients.
        known: What clients know of its broadcasts.
        memory: What the transforms of broadcasts remember.
        releases: How often each phase has told something of its clients behind noise.
    """

    public: Mapping[str, Tensor] = field(default_factory=dict)
    known: Mapping[str, Tensor] = field(default_factory=dict)
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    releases: Mapping[str, int] = field(default_factory=dict)


class Reception:
    """Prepares requests for the channels of a run, and receives the answers.

    Attributes:
        channels: What happens in which phase.
        kept: What is kept from one round to the next.
    """

    def __init__(self, channels: Channels, whole: Callable[[], Tensor | None] = lambda: None) -> None:
        """Start before the first round.

        Args:
            channels: What happens in which phase.
            whole: Returns which averaged buffers are whole numbers, ``[b]``; None if none is.
        """
        self._whole = whole
        self.channels = channels
        self.kept = Kept()
        self._sent: tuple[Stamp, Broadcast, float, int] | None = None

    def adds_noise(self, phases: int) -> bool:
        """Return whether the channel of any of so many phases hides single clients."""
        of_phases = [self.channels.of(phase) for phase in range(phases)]
        return any(channel is not None and channel.adds_noise for channel in of_phases)

    def prepared(self, request: Request, roster: Roster, asked: int, expected: float | None) -> Request:
        """Return a request as it is sent: with a broadcast that has passed its transforms, and with terms.

        Args:
            request: What the clients are asked, with the algorithm's broadcast.
            roster: The clients of the federation.
            asked: Number of clients that are asked.
            expected: Mean number of clients that are asked; None for ``asked``.

        Raises:
            ValueError: If transforms of broadcasts would have to change what belongs to single clients.
        """
        channel = self.channels.of(request.stamp.phase)
        if channel is None:
            return request
        phase, device = str(request.stamp.phase), request.point.device
        public = {**channel.transform.public(), **inside(phase, self.kept.public)}
        terms = Terms(asked, roster.num_clients, {name: each.to(device) for name, each in public.items()}, expected)
        request = replace(request, terms=terms)
        sent = broadcast(request, channel, inside(phase, self.kept.known), inside(phase, self.kept.memory))
        told = 8.0 * sum(value.element_size() * value.numel() for value in public.values())
        self._sent = request.stamp, sent, told, roster.num_clients
        self.kept = replace(
            self.kept,
            known={**self.kept.known, **under(phase, sent.known)},
            memory={**self.kept.memory, **under(phase, sent.memory)},
        )
        return replace(request, message=sent.message)

    def bits(self, request: Request, contacted: int) -> tuple[float, float] | None:
        """Return the bits of a request to all clients, in either of two ways; None if it passed through no channel.

        See :meth:`~fedlightning.federation.channels.broadcasts.Broadcast.ways`.
        """
        if self._sent is None or self._sent[0] != request.stamp or request.terms is None:
            return None
        _, sent, told, num_clients = self._sent
        whole, following = sent.ways(contacted, num_clients)
        return whole + told * contacted, following + told * contacted

    def cohort(self, request: Request, roster: Roster, by_samples: bool, algorithm: Algorithm) -> ThroughChannel | None:
        """Return what puts the answers to a request together; None where they pass through no channel."""
        channel = self.channels.of(request.stamp.phase)
        if channel is None or request.terms is None:
            return None
        return ThroughChannel(roster, by_samples, request, channel, algorithm, self._whole())

    def shortage(self, request: Request, cohort: CohortMean) -> str | None:
        """Say that fewer updates count than the channel's rule needs; None if enough do.

        Where enough clients answered, and none of them with finite numbers, it is not the rule that lacks clients.
        """
        channel = self.channels.of(request.stamp.phase)
        rule = None if channel is None else channel.aggregate
        usable = round(float(cohort.metrics()["clients"]))
        if rule is None or usable >= rule.fewest or (not usable and cohort.answered >= rule.fewest):
            return None
        asked = exchange_of(request).cohort
        return (
            f"{rule!r} needs the updates of {rule.fewest} clients or more, and of {asked} that were asked, {usable} "
            "sent finite numbers"
        )

    def end(self, request: Request, cohort: ThroughChannel) -> None:
        """Take note of what clients reported, once their answers have changed the server's state."""
        channel = self.channels.of(request.stamp.phase)
        if channel is None or not cohort.passed:
            return
        phase, exchange = str(request.stamp.phase), exchange_of(request)
        told = channel.transform.publish(exchange.public, cohort.reports(), exchange, UPLOAD)
        releases = dict(self.kept.releases)
        if channel.adds_noise:
            releases[phase] = releases.get(phase, 0) + 1
        self.kept = replace(self.kept, public={**self.kept.public, **under(phase, told)}, releases=releases)

    def go_on_counting(self, releases: Mapping[str, int]) -> None:
        """Count what earlier fits of the same clients have released, by phase, among the releases."""
        self.kept = replace(self.kept, releases=dict(releases))

    def undo(self, before: Kept) -> None:
        """Go back to what was kept before a round; what has been released stays released."""
        self.kept = replace(before, releases=self.kept.releases)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, in plain types."""
        return {
            "described": described(self.channels),
            **{each.name: dict(getattr(self.kept, each.name)) for each in fields(self.kept)},
        }

    def load_state_dict(self, stored: Mapping[str, Any], device: torch.device) -> None:
        """Go on from a :meth:`state_dict` of the same channels."""
        tensors = {
            part: {name: value.to(device) for name, value in stored[part].items()}
            for part in ("public", "known", "memory")
        }
        self.kept = Kept(**tensors, releases=dict(stored["releases"]))


def description_of(reception: Reception | None) -> str:
    """Return the channels of a server as text; empty for none."""
    return "" if reception is None else described(reception.channels)


def described(channels: Channels | None) -> str:
    """Return channels as text, the same for the same channels; empty for none."""
    if channels is None:
        return ""
    try:
        return shown(to_config(channels))
    except NotPlainError:
        return repr(channels)


def require_same(stored: Mapping[str, Any] | None, channels: Channels | None) -> None:
    """Make sure that a run goes on through the channels of a checkpoint.

    Args:
        stored: What :meth:`Reception.state_dict` returned; None for a run without channels.
        channels: Those of this run; None for none.

    Raises:
        InvalidValueError: If they differ.
    """
    then, now = "" if stored is None else stored["described"], described(channels)
    if then != now:
        then, now = told_apart(then, now)
        raise InvalidValueError(
            f"The checkpoint was trained with channel={then or None}, this run has channel={now or None}: what clients "
            f"and server remember of their updates does not fit. Resume with the same channel, or {START_ANEW}."
            + _spent_so_far(stored)
        )


def _spent_so_far(stored: Mapping[str, Any] | None) -> str:
    """Say what weights alone do not tell of releases; empty without any."""
    most = max(stored["releases"].values(), default=0) if stored is not None else 0
    if not most:
        return ""
    return (
        f" Weights alone do not tell what they have cost of privacy: then set PrivacyBudget(earlier={most}), which "
        "counts these rounds with the noise of the new run; where that is stronger, set more."
    )
