"""Rows, exchanges and known draws for tests of compressors."""

from __future__ import annotations

import torch

from fedlightning.channel.base import Exchange, Sent
from fedlightning.channel.compression import Draws


def rows_of(count, length, seed=0, dtype=torch.float64):
    """Rows of entries of very different sizes, ``[count, length]``."""
    draw = torch.Generator().manual_seed(seed)
    normal, scale = (torch.randn(count, length, generator=draw, dtype=torch.float64) for _ in range(2))
    return (normal * scale.exp()).to(dtype)


def exchange_of(client_ids, round_index=0, **options):
    """An exchange of some of a hundred clients."""
    defaults = {"phase": 0, "seed": 7 + round_index, "cohort": max(len(client_ids), 1), "num_clients": 100}
    return Exchange(round_index, client_ids=client_ids, **{**defaults, **options})


def draws_of(count, seed=7):
    """Draws of the first ``count`` clients."""
    return Draws(exchange_of(range(count), seed=seed), 0, torch.device("cpu"))


def sent_of(**values):
    """What clients send before any transform: every number in full."""
    bits = {
        name: torch.full((len(value),), value.shape[1] * torch.finfo(value.dtype).bits, dtype=torch.float64)
        for name, value in values.items()
    }
    return Sent(values, bits)


def transformed(transform, values, client_ids=None, memory=None, **options):
    """One field's rows, bits and memories after a transform."""
    ids = range(len(values)) if client_ids is None else client_ids
    memory = {} if memory is None else memory
    sent, after = transform.apply(sent_of(z=values), memory, exchange_of(ids, **options), 0)
    return sent.values["z"], sent.bits["z"], after


class EvenDraws:
    """Uniform numbers in the middles of S equal parts of [0, 1), the same ones for all entries of a row.

    A mean over the S rows is an integral over the draw, exact but for 1 / (2 S).
    """

    def __init__(self, count):
        self.count = count

    def uniform(self, length, dtype):
        middles = (torch.arange(self.count, dtype=dtype) + 0.5) / self.count
        return middles[:, None].expand(-1, length)
