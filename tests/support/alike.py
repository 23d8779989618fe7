"""Comparisons of two servers that have carried out the same rounds."""

from __future__ import annotations

import torch


def assert_same_servers(here, there, results, close=torch.equal):
    """Two federations have the same global model and traffic, and report the same of every round.

    Args:
        here: A simulation.
        there: Another federation, with a ``server`` and a ``point``.
        results: What both reported, a pair for each round.
        close: Compares tensors.
    """
    assert close(here.point, there.point)
    assert (here.server.buffers is None) == (there.server.buffers is None)
    if here.server.buffers is not None:
        assert close(here.server.buffers, there.server.buffers)
    assert here.server.traffic == there.server.traffic
    for mine, theirs in results:
        assert mine.metrics.keys() == theirs.metrics.keys()
        assert (mine.undone, mine.overflow) == (theirs.undone, theirs.overflow)
        for name, value in mine.metrics.items():
            torch.testing.assert_close(torch.as_tensor(value), torch.as_tensor(theirs.metrics[name]))
