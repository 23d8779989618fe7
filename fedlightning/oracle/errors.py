"""Errors of objectives, which say what to change."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedlightning.core.errors import FedlightningError


class ObjectiveError(FedlightningError, RuntimeError):
    """The task's objective cannot be evaluated; the message says what to change.

    Attributes:
        place: Place of the failing client in its chunk, from 0; None if the error is not about one client.
    """

    def __init__(self, message: str, place: int | None = None) -> None:
        """Keep the message and the place of the client."""
        super().__init__(message)
        self.place = place

    def named(self, objective: str, client_ids: Sequence[int]) -> ObjectiveError:
        """Return the error with the id of the client that failed; the error itself if it is not about one client.

        Args:
            objective: What messages call the objective.
            client_ids: Clients of the chunk, in order.
        """
        if self.place is None:
            return self
        return ObjectiveError(f"{objective} failed for client {client_ids[self.place]}: {self}")


class BatchedError(ObjectiveError):
    """The objective cannot be evaluated for many clients at once, but perhaps for one after the other."""


class ChunkTooLargeError(BatchedError):
    """The clients of a chunk do not fit into memory at once, but fewer may."""


class NotTheClientsError(ObjectiveError):
    """The objective reads tensors that are not the client's; by now they would not be for a slower oracle either."""


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that memory was too short, on any device, for more than one client."""
    if isinstance(error, ObjectiveError):
        return isinstance(error, ChunkTooLargeError)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def begins_to_write(name: str, kind: str, constant: str) -> ObjectiveError:
    """Build the error for an objective that begins after the first round to write into what all clients share.

    Args:
        name: What messages call the objective.
        kind: What is written into, a buffer or a frozen parameter.
        constant: Its name.
    """
    return ObjectiveError(
        f"{name} has begun to write into the {kind} '{constant}', which it left alone in the first round, so "
        "that it counts as a constant of all clients. Use a buffer and write into it in every call, from the first on "
        "(its own value, while nothing changes)."
    )


def writes_into(
    name: str, parameter: str | None, by_embedding: bool = False, place: int | None = None
) -> ObjectiveError:
    """Build the error for an objective that changes a trainable parameter.

    Args:
        name: What messages call the objective.
        parameter: Name of the parameter; None if unknown, because writes after the first round are not traced.
        by_embedding: Whether an embedding with ``max_norm`` renormalised its table.
        place: Place of the client in its chunk, from 0; None if the error is not about one client.
    """
    how = " by nn.Embedding(max_norm=...)" if by_embedding else ""
    what = (
        "has begun to write into a trainable parameter"
        if parameter is None
        else (f"writes into its trainable parameter '{parameter}'{how}")
    )
    instead = (
        "Leave max_norm out and scale the rows that were looked up in the objective"
        if by_embedding
        else "To keep it within bounds, give a regularizer that projects, e.g. fedlightning.proximal.Box(low, high), "
        "to an algorithm that takes one; or keep running state in a buffer (register_buffer)"
    )
    return ObjectiveError(
        f"{name} {what}: the algorithm alone moves what is trained, and would lose the change or take it for "
        f"its own step. {instead}.",
        place,
    )


def writes_into_frozen(name: str, parameter: str, by_embedding: bool) -> ObjectiveError:
    """Build the error for an objective that changes a frozen parameter, which would go on from client to client.

    Args:
        name: What messages call the objective.
        parameter: Name of the parameter.
        by_embedding: Whether an embedding with ``max_norm`` renormalised its table.
    """
    instead = (
        "Renormalise the rows of the table once, before the fit, and leave max_norm out"
        if by_embedding
        else "Keep it as a buffer (register_buffer), of which every client has its own value, and the server the "
        "mean of all"
    )
    return ObjectiveError(
        f"{name} writes into the frozen parameter '{parameter}', which all clients share: each would go on "
        f"from what the one before has made of it. {instead}."
    )


def reads_late(name: str, what: str) -> NotTheClientsError:
    """Build the error for an objective that reads the task's tensors in the backward pass.

    Args:
        name: What messages call the objective.
        what: What it reads.
    """
    return NotTheClientsError(
        f"{name} reads {what} in the backward pass, as activation checkpointing (torch.utils.checkpoint) and "
        "hooks on tensors do. The task holds its own values again by then, not the client's, and gradients would be "
        "wrong. Leave checkpointing out: chunk_size of Vectorized, or Sequential, limits memory. Compute what a hook "
        "needs in the forward pass."
    )


def reads_what_was_left(name: str, what: str) -> NotTheClientsError:
    """Build the error for an objective that begins to read what the evaluation before has left in an attribute.

    Args:
        name: What messages call the objective.
        what: The attribute.
    """
    return NotTheClientsError(
        f"{name} has begun to read {what} before it writes it, which holds what the evaluation before has left. "
        "In the first round every evaluation wrote it first, so clients are computed side by side, and the one before "
        "is another client's. Read it from the first round on, or name fedlightning.oracle.Sequential as oracle, "
        "which evaluates one client after the other."
    )
