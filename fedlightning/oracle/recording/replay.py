"""What runs a recorded program, whole or in steps along its first result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from fedlightning.oracle.recording.direct import without_overrides
from fedlightning.oracle.recording.graphs import Graphed
from fedlightning.oracle.recording.lines import Name
from fedlightning.oracle.recording.own_memory import LARGE_FOR_THREADS
from fedlightning.oracle.recording.program import Program, Steps

LARGE = 2**14
"""Numbers in a matrix from which on it pays to subtract a product from it while it is computed."""

_MAKING = Lock()
"""Held while a program is compiled, because threads that replay side by side may come to a program at once."""


class Replay:
    """Runs a program, as it was recorded or with steps along its first output; what is not used is not compiled.

    Attributes:
        constant: The second result of the recorded function.
        is_lasting: Whether it may serve in other rounds, too, if the function does the same there.
    """

    def __init__(
        self,
        program: Program,
        outputs: Sequence[Name],
        constant: Any,
        is_apart: bool,
        is_of_one: bool,
        is_of_gpu: bool,
        is_lasting: bool,
    ) -> None:
        """Keep the program.

        Args:
            program: What was recorded.
            outputs: Names of what the function returned.
            constant: Its second result.
            is_apart: Whether no output, nor any part of the first, shares memory with the first input, from which parts
                can be subtracted with the bits of the whole.
            is_of_one: Whether the first input has a single row, whose products all threads compute together.
            is_of_gpu: Whether all tensors lie on one GPU, and nothing is drawn, so that a graph can hold the program.
            is_lasting: Whether other rounds may replay it, too.
        """
        self._program, self._outputs = program, outputs
        self.constant, self.is_lasting = constant, is_lasting
        self._is_apart, self._is_of_one, self._is_of_gpu = is_apart, is_of_one, is_of_gpu

    @cached_property
    def run(self) -> Callable[..., list[Tensor]]:
        """Returns the program's outputs."""
        return self._graphed if self._is_of_gpu else self._function()

    @cached_property
    def steps(self) -> Callable[..., Steps] | None:
        """Begins steps along the first output; None if there are none."""
        if self._is_of_gpu:
            return self._graphed.steps if self._is_apart else None
        with _MAKING:
            fused_from = LARGE_FOR_THREADS if self._is_of_one and torch.get_num_threads() > 1 else LARGE
            return self._program.steps(self._outputs, fused_from) if self._is_apart else None

    @cached_property
    def _graphed(self) -> Graphed:
        return Graphed(self._function())

    def _function(self) -> Callable[..., list[Tensor]]:
        with _MAKING, torch.no_grad(), without_overrides():  # operations on constants run now
            return self._program.function(self._outputs)
