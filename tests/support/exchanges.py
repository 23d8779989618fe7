"""Exchanges of a federation of twenty clients."""

from __future__ import annotations

from fedlightning.channel import Exchange


def exchange(cohort=8, seed=5, num_clients=20):
    return Exchange(round=0, phase=0, seed=seed, cohort=cohort, num_clients=num_clients)
