"""What a loss tells of the backward pass before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction


def has_own_functions(loss: Tensor) -> bool:
    """Return whether the user has written part of the backward pass, which may remember something."""
    return any(isinstance(node, BackwardCFunction) for node in _nodes(loss))


def is_checkpointed(loss: Tensor) -> bool:
    """Return whether part of the forward pass runs once more in the backward pass, whose parameters it hides."""
    return any(type(node).__name__ == "CheckpointFunctionBackward" for node in _nodes(loss))


def _nodes(loss: Tensor) -> Iterator[Any]:
    """Yield the operations that the backward pass would go through, each once."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]
