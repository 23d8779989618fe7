"""Algorithms where they have come to rest, computed once for all tests that begin there."""

from __future__ import annotations

from functools import cache

from tests.support.cases import CASES, EXACT
from tests.support.federations import train


@cache
def at_the_saddle(name, **changes):
    """The distance to the saddle after the rounds of :data:`EXACT`, and what is stored then."""
    task, loop, trajectory = train(CASES[name].algorithm(**changes), rounds=EXACT[name][1])
    return float((trajectory[-1] - task.solution).norm()), loop.state_dict()
