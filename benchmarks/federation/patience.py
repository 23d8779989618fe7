"""A rule of participation for runs that are compared with simulations while machines are killed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedlightning.participation import Recruitment, Uniform


@dataclass(frozen=True)
class Patient(Uniform):
    """Draws a cohort as ``Uniform`` does, and asks it again until all of it have answered, a thousand times at most."""

    def recruit(self, num_clients: int, seed: int, round_index: int, phase: int) -> Recruitment:
        """Return the same cohort many times, of whom all have to answer."""
        once = super().recruit(num_clients, seed, round_index, phase)
        return replace(once, cohorts=1000 * once.cohorts, at_least=len(once.cohorts[0]))
