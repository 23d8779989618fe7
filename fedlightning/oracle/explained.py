"""What is wrong with an objective that cannot be evaluated for many clients at once, in the user's words."""

from __future__ import annotations

import re

from fedlightning.oracle.errors import (
    BatchedError,
    ChunkTooLargeError,
    NotTheClientsError,
    ObjectiveError,
    is_out_of_memory,
)
from fedlightning.oracle.randomness import LateDrawError

_LATE_DRAW = "called random operation while in randomness error mode"


def explained(error: Exception, name: str, backward: str | None = None) -> ObjectiveError:
    """Return what an evaluation of many clients at once raises in place of an error.

    Args:
        error: What went wrong.
        name: What messages call the objective.
        backward: The way of differentiation, as in :class:`~fedlightning.oracle.Vectorized`.
    """
    if isinstance(error, NotTheClientsError):
        return error
    if is_out_of_memory(error):
        return ChunkTooLargeError(f"{name} does not fit into memory for a chunk of clients. Lower chunk_size.")
    text = _without_requests(f"{type(error).__name__}: {error}".splitlines()[0])
    if _LATE_DRAW in text or isinstance(error, LateDrawError):
        return BatchedError(f"{name} has begun to draw random numbers, which it did not at first")
    if backward == "each":
        return BatchedError(f"{name} cannot be replayed from one client to the next: {text}")
    return BatchedError(
        f"{name} cannot run for all clients at once (torch.func.vmap): {text}\n"
        "Typical causes: .item() or float(tensor), `if` on a tensor, indexing by a boolean mask, writing into a tensor "
        "made outside. Replace them by masks (torch.where), or set oracle to fedlightning.oracle.Sequential, "
        "which evaluates one client after the other without this limit."
    )


def _without_requests(text: str) -> str:
    """Leave out the sentences in which PyTorch asks for reports of what it does not do."""
    return " ".join(each for each in re.split(r"(?<=\.) ", text) if "please file" not in each.lower())
