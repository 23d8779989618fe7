"""Steps that wait for each other, so that a thread takes several of its clients' steps in a row.

What a client needs stays in the caches of one processor then, and threads seldom wait for each other: beside other
work, one of them is late at every step. A step that reads the buffers of the one before cannot wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from torch import Tensor

MOST_WAITING, MOST_WAITING_BYTES = 16, 2**22
"""Steps that wait to be taken, and the memory of their samples, which are copied: more gain little."""

Step = TypeVar("Step")


class Waiting(Generic[Step]):
    """Keeps steps until they are many."""

    def __init__(self) -> None:
        """Wait for the first one."""
        self._steps: list[Step] = []
        self._num_bytes = 0

    def add(self, step: Step, held: Sequence[Tensor]) -> bool:
        """Let a step wait.

        Args:
            step: The step.
            held: What it keeps in memory.

        Returns:
            Whether the steps are many, or hold much memory, and are to be taken.
        """
        self._steps.append(step)
        self._num_bytes += sum(tensor.nbytes for tensor in held)
        return len(self._steps) >= MOST_WAITING or self._num_bytes >= MOST_WAITING_BYTES

    def pop(self) -> Sequence[Step]:
        """Return all steps that wait, in their order; none waits from then on."""
        steps, self._steps, self._num_bytes = self._steps, [], 0
        return steps


def kept(samples: Sequence[Tensor], laid_out_alike: bool = False) -> list[Tensor] | None:
    """Return copies of samples for a step that waits, because a transform may use their memory for the next minibatch.

    Args:
        samples: Of the step.
        laid_out_alike: Whether copies must lie in memory as the samples do, which those that are not dense do not.

    Returns:
        None if copies would not do: what is written into one of two that share memory is seen in the other.
    """
    places = [leaf.untyped_storage().data_ptr() for leaf in samples if leaf.numel()]
    if len(set(places)) < len(places):
        return None
    copies = [leaf.clone() for leaf in samples]
    alike = all(copy.stride() == leaf.stride() for copy, leaf in zip(copies, samples, strict=True))
    return copies if alike or not laid_out_alike else None
