"""The channels of a run: what happens to its updates, and to its broadcasts, in each phase."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from fedlightning.channel.base import Aggregation, Release, Transform
from fedlightning.channel.chain import Chain
from fedlightning.channel.losses import require_kept_in_memory
from fedlightning.channel.robust.attacks.base import Attack
from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.validation import require_instance


class Channels(ABC):
    """Says through which channel the updates of each phase of a round pass."""

    @abstractmethod
    def of(self, phase: int) -> Channel | None:
        """Return the channel of a phase, numbered from 0; None where updates pass as without any."""

    @abstractmethod
    def require_phases(self, algorithm: str, count: int) -> None:
        """Make sure that there is a channel for each phase.

        Args:
            algorithm: Name of the algorithm, for the message.
            count: Number of its phases.

        Raises:
            ValueError: If there is not.
        """


@dataclass(frozen=True)
class Channel(Channels):
    """Describes what happens to the updates of clients on their way to the server, the same in all phases of a round.

    Args:
        client: Transforms that each client applies to its update, in this order.
        aggregate: Puts the updates of a cohort together in place of the mean; null for the mean.
        server: What the server does to the aggregate, in this order.
        download: Transforms that the server applies to what it broadcasts, in this order.
        adversary: What simulated adversaries among the clients send; null for none.
    """

    client: Sequence[Transform] = ()
    aggregate: Aggregation | None = None
    server: Sequence[Release] = ()
    download: Sequence[Transform] = ()
    adversary: Attack | None = None

    def __post_init__(self) -> None:
        for name, kind, example in (
            ("client", Transform, "client=[Clip(1.0)]"),
            ("server", Release, "server=[...]"),
            ("download", Transform, "download=[...]"),
        ):
            given = getattr(self, name)
            if not isinstance(given, Sequence) or isinstance(given, str):
                raise InvalidTypeError(f"Channel({name}={given!r}): expected a list, e.g. {example}.")
            for each in given:
                require_instance(f"Channel({name}", each, kind, example)
            object.__setattr__(self, name, tuple(given))
        require_kept_in_memory(self.client)
        for each in self.download:
            if each.adds_noise or each.public():
                raise InvalidValueError(
                    f"Channel(download=[{each}]): it needs what clients send, and would do nothing to a broadcast. "
                    "Leave it to Channel(client=[...]); compressors and Clip serve broadcasts."
                )
        if self.aggregate is not None:
            require_instance("Channel(aggregate", self.aggregate, Aggregation, "Median()")
        if self.adversary is not None:
            require_instance("Channel(adversary", self.adversary, Attack, "SignFlip(share=0.2)")

    def of(self, phase: int) -> Channel:
        """Return this channel."""
        return self

    def require_phases(self, algorithm: str, count: int) -> None:
        """Accept any number of phases."""

    @property
    def transform(self) -> Chain:
        """Return the client's transforms as one."""
        return Chain(self.client)

    @property
    def download_transform(self) -> Chain:
        """Return the transforms of broadcasts as one."""
        return Chain(self.download)

    @property
    def remembers(self) -> bool:
        """Return whether something may be remembered of each client from one round to the next."""
        return self.transform.remembers

    @property
    def needs_rows(self) -> bool:
        """Return whether all updates of a cohort are needed at once, and not only their sum."""
        return self.aggregate is not None or self.adversary is not None

    @property
    def adds_noise(self) -> bool:
        """Return whether it hides single clients, so that sums are divided by what tells nothing of who answered."""
        return bool(self.server) or any(transform.adds_noise for transform in self.client)

    @property
    def averages(self) -> bool:
        """Return whether the server receives the mean of what clients send, or of what adversaries send for them."""
        return self.aggregate is None or self.aggregate.is_mean

    @property
    def acts_on_cohort(self) -> bool:
        """Return whether it acts on what a cohort sends together, so that fields of single clients would pass it by."""
        return self.needs_rows or self.adds_noise

    @property
    def counts_clients_alike(self) -> bool:
        """Return whether it presupposes that all clients weigh the same."""
        return not self.averages or self.adds_noise or self.adversary is not None


@dataclass(frozen=True)
class PerPhase(Channels):
    """Gives each phase of a round its own channel, for algorithms whose phases send different things.

    Args:
        channels: A channel for each phase, in order; null for a phase whose updates pass as without any.
    """

    channels: Sequence[Channel | None]

    def __post_init__(self) -> None:
        if not isinstance(self.channels, Sequence) or isinstance(self.channels, str) or not self.channels:
            raise InvalidTypeError(
                f"PerPhase(channels={self.channels!r}): expected a list with a channel for each phase."
            )
        for each in self.channels:
            if each is not None:
                require_instance("PerPhase(channels", each, Channel, "PerPhase([Channel(...), None])")
        object.__setattr__(self, "channels", tuple(self.channels))

    def of(self, phase: int) -> Channel | None:
        """Return the channel of a phase."""
        return self.channels[phase]

    def require_phases(self, algorithm: str, count: int) -> None:
        """Make sure that there are as many channels as phases.

        Raises:
            ValueError: If there are not.
        """
        if count != len(self.channels):
            raise InvalidValueError(
                f"PerPhase has {len(self.channels)} channels, but a round of {algorithm} has {count} "
                f"{'phase' if count == 1 else 'phases'}. Give one channel for each, or a single Channel for all."
            )
