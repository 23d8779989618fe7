"""Whether noise covers all that a server's state is made of; refusals of channels and algorithms where it does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from fedlightning.algorithms.base import Algorithm
from fedlightning.algorithms.fed_exp import FedExP
from fedlightning.algorithms.fiaelt import FIAELT
from fedlightning.channel.base import Release, Transform
from fedlightning.channel.channel import Channel, Channels
from fedlightning.channel.compression.fixed_point import FixedPoint
from fedlightning.channel.privacy.adaptive_clip import AdaptiveClip
from fedlightning.channel.privacy.distributed import DistributedGaussianNoise
from fedlightning.channel.privacy.gaussian import GaussianNoise
from fedlightning.core.errors import InvalidValueError

Noise = GaussianNoise | DistributedGaussianNoise


def noises_of(channels: Channels | None, algorithm: Algorithm) -> tuple[Noise, ...]:
    """Return the noise of each phase of a round, in order; an empty tuple where there is no noise at all.

    Args:
        channels: What happens to updates; None for nothing.
        algorithm: Whose updates they are.

    Raises:
        ValueError: If something that clients send would reach the server's state without noise, or with less noise than
            an account would believe.
    """
    if channels is None:
        return ()
    of_phases = [channels.of(phase) for phase in range(len(algorithm.phases))]
    noises = [None if channel is None else _noise_of(channel) for channel in of_phases]
    covered = tuple(noise for noise in noises if noise is not None)
    if covered:
        _require_covered(algorithm)
    if covered and len(covered) < len(noises):
        raise InvalidValueError(
            f"{type(algorithm).__name__}: the updates of phase {noises.index(None) + 1} of {len(noises)} pass without "
            "noise, so the noise of the others protects nobody. Give every phase noise, or take one Channel for all."
        )
    return covered


def drawing(channels: Channels, algorithm: Algorithm) -> list[Noise | AdaptiveClip]:
    """Return all that draws noise in a round: the noise of updates, and that of counts beside them."""
    of_phases = [channels.of(phase) for phase in range(len(algorithm.phases))]
    parts = [part for channel in of_phases if channel is not None for part in (*channel.client, *channel.server)]
    return [each for part in parts for each in _inside(part) if isinstance(each, Noise | AdaptiveClip)]


def _noise_of(channel: Channel) -> Noise | None:
    """Return the noise of one channel; None if it has none."""
    shares = [each for each in channel.client if each.adds_noise]
    if any(isinstance(inner, Noise) for each in channel.client for inner in _inside(each) if inner is not each):
        raise InvalidValueError(
            "Channel(client=...): noise inside another transform covers part of an update alone. Put "
            "DistributedGaussianNoise at the end of the list itself."
        )
    if not shares and not channel.server:
        return None
    if not channel.averages:
        raise InvalidValueError(
            f"Channel(aggregate={channel.aggregate}): one client may move it by more than a mean, so that noise "
            "made for a mean does not hide the client. Use either noise or a robust aggregate."
        )
    if isinstance(channel.aggregate, FixedPoint) and channel.server:
        raise InvalidValueError(
            f"Channel(aggregate={channel.aggregate}): clients round what clipping has bounded, so that one may move "
            "the sum by more than its norm, and noise at the server comes too late to cover it. Let clients add noise "
            "before they round: DistributedGaussianNoise at the end of Channel(client=[...])."
        )
    if channel.adversary is not None:
        raise InvalidValueError(
            f"Channel(adversary={channel.adversary}): attackers send what no clipping has bounded, so that noise does "
            "not hide them. Use either noise or attackers."
        )
    noises: Sequence[Any] = [*shares, *channel.server]
    if len(noises) > 1:
        raise InvalidValueError(
            f"Channel: {', '.join(map(str, noises))} in one channel; an account knows one. Keep one."
        )
    (noise,) = noises
    if not isinstance(noise, Noise):
        raise InvalidValueError(
            f"{type(noise).__name__}: no account of privacy knows this noise. Use GaussianNoise or "
            "DistributedGaussianNoise."
        )
    counting = [each for part in channel.client for each in _inside(part) if isinstance(each, AdaptiveClip)]
    if other := [each for each in counting if each.noise_cohort_size != noise.noise_cohort_size]:
        raise InvalidValueError(
            f"AdaptiveClip(noise_cohort_size={other[0].noise_cohort_size}) beside {type(noise).__name__}"
            f"(noise_cohort_size={noise.noise_cohort_size}): one account is of one cohort. Give both the same size."
        )
    if counting and shares:
        raise InvalidValueError(
            "AdaptiveClip beside DistributedGaussianNoise: clients' noise hides them from the server too, but the "
            "server learns how many were below the norm, and adds noise to this count afterwards. Take Clip, or "
            "GaussianNoise with a server that is trusted."
        )
    if shares and channel.client[-1] is not noise:
        raise InvalidValueError(
            f"Channel(client=...): {type(channel.client[-1]).__name__} comes after DistributedGaussianNoise, and the "
            "sum would not carry the noise any more. Put the noise last."
        )
    return noise


def _require_covered(algorithm: Algorithm) -> None:
    """Refuse algorithms that make more known than means over clients, or that noise would break."""
    name = type(algorithm).__name__
    if algorithm.server_knows_clients:
        raise InvalidValueError(
            f"{name} keeps something of single clients at its server, and sends it on, which noise on a mean does "
            "not cover. Choose an algorithm whose server needs means alone, such as FedAvg or SCAFFOLD."
        )
    if isinstance(algorithm, FedExP):
        raise InvalidValueError(
            f"{name}: the server steps by squared norms of the clients' moves, which would reach it without noise. "
            "Choose an algorithm whose server needs means of moves alone, such as FedAvg or SCAFFOLD."
        )
    if isinstance(algorithm, FIAELT) and algorithm.beta is None:
        raise InvalidValueError(
            f"{name}(beta=None): the server divides by the mean of the clients' penalties, which noise may bring to 0 "
            "or below. Give beta a number."
        )


def _inside(value: Any) -> Iterator[Transform | Release]:
    """Yield a part of a channel and all parts among its arguments."""
    if isinstance(value, Transform | Release):
        yield value
    if isinstance(value, Mapping):
        value = list(value.values())
    elif is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, each.name) for each in fields(value)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _inside(each)
