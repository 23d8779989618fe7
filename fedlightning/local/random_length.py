"""Rounds of random length: a coin that all clients share says after which local step they communicate."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import chain, count, islice

from torch import Tensor

from fedlightning.core.seeding import derive_seed
from fedlightning.core.tree import map_tensors
from fedlightning.oracle.gradient import GradientOracle
from fedlightning.oracle.minibatch import Minibatch


def steps_until_heads(p: float, seed: int, t: int) -> int:
    """Return how often a coin is tossed in round ``t`` until it falls on heads, at least once.

    Args:
        p: Probability of heads, 0 < p <= 1.
        seed: Seed of the coin; server and clients toss alike.
        t: Round, from 0.
    """
    toss = random.Random(derive_seed(seed, t))
    steps = 1
    while toss.random() >= p:
        steps += 1
    return steps


def cycled(oracle: GradientOracle, steps: int) -> Iterator[Minibatch]:
    """Yield ``steps`` minibatches of every client, starting again from the client's first after its last.

    Which minibatch a client meets does not depend on the clients that are computed beside it.
    """
    own_steps = oracle.steps.long()
    if bool((own_steps == own_steps[0]).all()):
        yield from islice(chain.from_iterable(oracle.batches() for _ in count()), steps)
        return
    batches = list(islice(oracle.batches(), steps))
    for k in range(steps):
        turn = k % own_steps
        at_hand = turn.unique().tolist()
        if len(at_hand) == 1:
            yield Minibatch.of(batches[at_hand[0]].data)
        else:
            yield Minibatch.of(
                map_tensors(partial(_rows_of, turn, at_hand), *(batches[place].data for place in at_hand))
            )


def _rows_of(turn: Tensor, places: list[int], *leaves: Tensor) -> Tensor:
    """Select for each client the minibatch numbered ``turn[i]``."""
    picked = leaves[0].clone()
    for place, leaf in zip(places[1:], leaves[1:], strict=True):
        picked[turn == place] = leaf[turn == place]
    return picked
