"""What a run has released, with how the cohorts of each release were drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedlightning.channel.privacy.accountants import Part
from fedlightning.channel.privacy.sampling import EveryClient, FixedSizeSampling, PoissonSampling, Sampling
from fedlightning.core.serialisation import Trust, from_config, to_config


@dataclass(frozen=True)
class Ledger:
    """Holds the releases of a run up to some moment, by how their cohorts were drawn.

    Attributes:
        parts: The releases.
        counted: Number of the server's releases that are among them, by phase.
    """

    parts: tuple[Part, ...] = ()
    counted: tuple[int, ...] = ()

    @property
    def releases(self) -> int:
        """Return the number of all releases."""
        return sum(sum(releases.values()) for _, releases in self.parts)

    def with_more(self, sampling: Sampling, multipliers: Sequence[float], counts: Sequence[int]) -> Ledger:
        """Return the ledger after the releases that the server has made since.

        Args:
            sampling: How their cohorts were drawn.
            multipliers: Noise multiplier of each phase.
            counts: Number of the server's releases of each phase so far; below ``counted`` if it began anew.
        """
        counted = self.counted if self.goes_on_to(counts) else (0,) * len(counts)
        releases: Counter[float] = Counter()
        for multiplier, before, now in zip(multipliers, counted, counts, strict=True):
            releases[multiplier] += now - before
        if not releases.total():
            return Ledger(self.parts, tuple(counts))
        merged = [part for part in self.parts if part[0] != sampling]
        releases.update({z: count for known, of in self.parts if known == sampling for z, count in of.items()})
        return Ledger((*merged, (sampling, dict(releases))), tuple(counts))

    def goes_on_to(self, counts: Sequence[int]) -> bool:
        """Return whether a server with these counts may have gone on from what is counted here."""
        same = len(self.counted) == len(counts)
        return same and all(now >= before for before, now in zip(self.counted, counts, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return the ledger in plain types."""
        return {
            "parts": [[to_config(sampling), [list(item) for item in of.items()]] for sampling, of in self.parts],
            "counted": list(self.counted),
        }

    @classmethod
    def from_state_dict(cls, stored: Mapping[str, Any], *kinds: type[Sampling]) -> Ledger:
        """Return the ledger of a :meth:`state_dict`.

        Args:
            stored: The ledger in plain types.
            kinds: Classes of samplings that may be among it, beside those of this package.
        """
        trust = Trust(named=(EveryClient, PoissonSampling, FixedSizeSampling, *kinds))
        parts = ((from_config(sampling, trust), dict(of)) for sampling, of in stored["parts"])
        return cls(tuple(parts), tuple(stored["counted"]))
