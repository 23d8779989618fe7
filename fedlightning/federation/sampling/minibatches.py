"""The minibatches that one client works on in a round."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedlightning.core.seeding import derive_seed


def draw_minibatches(indices: Tensor, batch_size: int | None, steps: int, seed: int) -> Tensor:
    """Draw the minibatches of one client for one round.

    The client goes through its data epoch by epoch, each in a new order without replacement. Where the end of an epoch
    would leave a minibatch short, the minibatch is filled from the beginning of the next epoch, so that all have
    ``batch_size`` samples. A client with fewer samples than that meets some of them more than once in a minibatch.

    Args:
        indices: ``[n]``, positions of the client's samples, n >= 1.
        batch_size: Samples B of a minibatch; None for all n, every time.
        steps: Number K of minibatches.
        seed: Seed of the order.

    Returns:
        ``[K, B]`` positions.
    """
    n = indices.numel()
    if batch_size is None:
        return indices.expand(steps, n)
    generator = torch.Generator().manual_seed(seed)
    needed = steps * batch_size
    orders = [torch.randperm(n, generator=generator) for _ in range(math.ceil(needed / n))]
    order = orders[0] if len(orders) == 1 else torch.cat(orders)
    return indices.index_select(0, order[:needed]).view(steps, batch_size)


def client_seed(seed: int, round_index: int, phase: int, client: int) -> int:
    """Derive the seed of one client's minibatches, which does not depend on the rest of the cohort."""
    return derive_seed(seed, round_index, phase, 1, client)


def repeat_last(tensor: Tensor, length: int) -> Tensor:
    """Lengthen a tensor ``[K, ...]`` to ``[length, ...]``, length >= K >= 1, by repeating its last entry.

    Clients with fewer minibatches or samples than their neighbours get the shape of the others this way; callers know
    from their own counts which entries are repeats.
    """
    missing = length - len(tensor)
    if missing == 0:
        return tensor
    return torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])])
