"""Replays as CUDA graphs, which a GPU runs without waiting for Python between one operation and the next.

A recorded program is a straight line of operations, which is what a graph can hold. A graph always reads and writes the
same memory, so inputs are copied to their places before it runs, and results are copied away before it runs again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedlightning.oracle.objective import is_out_of_memory

Line = Callable[..., list[Tensor]]
"""Runs recorded operations on its inputs, and returns their results."""

Capture = Callable[[Callable[[], list[Tensor]]], tuple[list[Tensor], Callable[[], None]]]
"""Runs a function once, as a rehearsal, captures its operations, and returns where their results will lie and what runs
the operations."""


class Graphed:
    """Calls recorded operations as a graph, or takes steps along their first result, each a graph, too.

    Where operations cannot be captured, as some libraries' cannot, they are started one by one, with a warning.
    """

    def __init__(self, line: Line, capture: Capture | None = None) -> None:
        """Keep what is captured when it is first called.

        Args:
            line: Runs the operations, always on inputs of the same shapes, strides and dtypes on one device.
            capture: Captures a function; None for a CUDA graph.
        """
        self._line, self._capture = line, _cuda_graph if capture is None else capture
        self._whole: _Captured | None = None
        self._free: dict[float, _Captured] = {}  # steps that nobody is taking, by step size

    def __call__(self, *inputs: Tensor, room: Tensor | None = None) -> list[Tensor]:
        """Return the results, in memory of their own; ``room`` is not used."""
        if self._whole is None:
            self._whole = _Captured(self._line, inputs, self._capture)
        return self._whole(inputs)

    def steps(self, point: Tensor, lr: float) -> Generator[list[Tensor], Sequence[Tensor], None]:
        """Take steps ``point <- point - lr * first result``.

        Args:
            point: The first input, which shares no memory with any result. It holds what the steps made of it once the
                coroutine is closed.
            lr: Step size.

        Yields:
            All results but the first, for the other inputs that are sent.
        """
        taken = self._free.pop(lr, None)
        others = yield []
        if taken is None:
            taken = _Captured(self._step(lr), (point, *others), self._capture)
        taken.put(0, point)
        try:
            while True:
                others = yield taken([None, *others])
        finally:
            point.copy_(taken.inputs[0])
            self._free[lr] = taken

    def _step(self, lr: float) -> Line:
        def step(point: Tensor, *others: Tensor) -> list[Tensor]:
            first, *rest = self._line(point, *others)
            point.sub_(first, alpha=lr)
            return rest

        return step


class _Captured:
    """Runs captured operations on inputs that are copied to their places.

    Attributes:
        inputs: The places, which captured operations may change.
    """

    def __init__(self, line: Line, inputs: Sequence[Tensor], capture: Capture) -> None:
        self._once = [tuple(slice(1) if stride == 0 else slice(None) for stride in t.stride()) for t in inputs]
        self.inputs = [_like(tensor, once) for tensor, once in zip(inputs, self._once, strict=True)]
        self._replay: Callable[[], None] | None = None
        self._line = line
        for k, tensor in enumerate(inputs):
            self.put(k, tensor)
        try:
            self._results, self._replay = capture(lambda: line(*self.inputs))
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0]
            warnings.warn(f"A CUDA graph cannot hold these operations, which start one by one: {reason}", stacklevel=2)

    def put(self, k: int, tensor: Tensor) -> None:
        """Copy an input to its place."""
        once = self._once[k]
        self.inputs[k][once].copy_(tensor[once])

    def __call__(self, inputs: Sequence[Tensor | None]) -> list[Tensor]:
        """Return copies of the results; an input that is None is what lies in its place."""
        for k, tensor in enumerate(inputs):
            if tensor is not None:
                self.put(k, tensor)
        if self._replay is None:
            return [result.clone() for result in self._line(*self.inputs)]
        self._replay()
        return [result.clone() for result in self._results]


def _like(tensor: Tensor, once: tuple[slice, ...]) -> Tensor:
    """Return memory with a tensor's shape and strides, of which ``once`` has every number a single time."""
    shape, strides = tensor[once].shape, tensor.stride()
    numbers = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    return numbers.as_strided(tensor.shape, strides)


def _cuda_graph(function: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Callable[[], None]]:
    """Capture a function; its memory comes from one pool, which all graphs of a device use in turn."""
    device = torch.cuda.current_device()
    present, aside = torch.cuda.current_stream(device), _stream(device)
    graph = torch.cuda.CUDAGraph()
    aside.wait_stream(present)
    with torch.cuda.stream(aside):
        function()  # libraries choose algorithms and take memory of their own now, and not during the capture
        pool: Any = _pool(device).id  # a tuple, as the handles of pools are
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            results = function()
        finally:
            graph.capture_end()
    present.wait_stream(aside)
    return results, graph.replay


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """Return the stream on which graphs are captured: libraries keep memory for every stream that they meet."""
    return torch.cuda.Stream(device)


@cache
def _pool(device: int) -> torch.cuda.MemPool:
    """Return the pool of a device, which keeps its memory between rounds, in each of which graphs are captured anew."""
    return torch.cuda.MemPool()
