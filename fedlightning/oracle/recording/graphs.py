"""Replays as CUDA graphs, which a GPU runs without waiting for Python between one operation and the next.

A recorded program is a straight line of operations, which is what a graph can hold. A graph always reads and writes the
same memory, so inputs are copied to their places before it runs, and results are copied away before any other runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedlightning.core.errors import FedlightningError
from fedlightning.oracle.errors import is_out_of_memory

Operations = Callable[..., list[Tensor]]
"""Runs recorded operations on its inputs, and returns their results."""

Capture = Callable[[Callable[[], list[Tensor]], torch.device], tuple[list[Tensor], Callable[[], None]] | None]
"""Runs a function once, as a rehearsal, captures its operations on a device, and returns where their results will lie
and what runs the operations; or None if they cannot be captured."""


class Graphed:
    """Calls recorded operations as a graph, or takes steps along their first result, each a graph, too.

    Where operations cannot be captured, as some libraries' cannot, they are started one by one, with a warning.
    """

    def __init__(self, line: Operations, capture: Capture | None = None) -> None:
        """Keep the operations, which are captured at the first call.

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
            An empty list at first; then, for the other inputs that are sent, all results but the first.
        """
        others = yield []
        taken = self._free.pop(lr, None)
        if taken is None:
            taken = _Captured(_step_along(self._line, lr), (point, *others), self._capture)
        taken.put(0, point)
        try:
            while True:
                others = yield taken([None, *others])
        finally:
            point.copy_(taken.inputs[0])
            self._free[lr] = taken


def _step_along(line: Operations, lr: float) -> Operations:
    def step(point: Tensor, *others: Tensor) -> list[Tensor]:
        first, *rest = line(point, *others)
        point.sub_(first.view_as(point), alpha=lr)  # one client's result has a dimension more than its point
        return rest

    return step


class _Captured:
    """Runs captured operations on inputs that are copied to their places.

    Attributes:
        inputs: The places, which captured operations may change.
    """

    def __init__(self, line: Operations, inputs: Sequence[Tensor], capture: Capture) -> None:
        self._once = [tuple(slice(1) if stride == 0 else slice(None) for stride in t.stride()) for t in inputs]
        self.inputs = [_like(tensor, once) for tensor, once in zip(inputs, self._once, strict=True)]
        self._line = line  # keeps what the operations read beside the inputs
        for k, tensor in enumerate(inputs):
            self.put(k, tensor)
        self._found = capture(lambda: line(*self.inputs), inputs[0].device)

    def put(self, k: int, tensor: Tensor) -> None:
        """Copy an input to its place."""
        once = self._once[k]
        self.inputs[k][once].copy_(tensor[once])

    def __call__(self, inputs: Sequence[Tensor | None]) -> list[Tensor]:
        """Return copies of the results; an input that is None is what lies in its place."""
        for k, tensor in enumerate(inputs):
            if tensor is not None:
                self.put(k, tensor)
        if self._found is None:
            return [result.clone() for result in self._line(*self.inputs)]
        results, replay = self._found
        replay()
        return [result.clone() for result in results]


def _like(tensor: Tensor, once: tuple[slice, ...]) -> Tensor:
    """Return a tensor of the same shape and strides in memory of its own.

    Where a stride is 0, the numbers are there once: ``once`` has every number a single time.
    """
    shape, strides = tensor[once].shape, tensor.stride()
    numbers = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    return numbers.as_strided(tensor.shape, strides)


def _cuda_graph(
    function: Callable[[], list[Tensor]], device: torch.device
) -> tuple[list[Tensor], Callable[[], None]] | None:
    """Capture a function in a CUDA graph; None if that fails, or has failed before."""
    with torch.cuda.device(device):
        return _captures(torch.cuda.current_device()).capture(function)


class _Captures:
    """Captures graphs on one GPU.

    All graphs take their memory from one pool, because their results are copied before another one runs. The pool is
    kept between rounds, in each of which graphs are captured anew: PyTorch forgets a pool without graphs, so that a
    small one stays.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._aside = torch.cuda.Stream(device)  # one for all, because libraries keep memory for every stream
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._has_failed = False
        self._keeper = self.capture(lambda: [torch.zeros(1, device=device)])

    def capture(self, function: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Callable[[], None]] | None:
        """Rehearse and capture a function.

        Operations that cannot be captured leave the allocator as if a capture went on, so that none is tried again.
        """
        if self._has_failed:
            return None
        present = torch.cuda.current_stream(self._device)
        self._aside.wait_stream(present)
        try:
            with torch.cuda.stream(self._aside):
                function()  # libraries choose algorithms and take memory of their own now, and not during the capture
            graph, results = self._captured(function)
            return results, graph.replay
        except _CaptureError as error:
            self._has_failed = True
            with suppress(Exception):
                torch._C._cuda_endAllocateToPool(self._device, self._pool)
            with suppress(Exception):  # the generator would wait for the capture's end, too, and draw nothing any more
                generator = torch.cuda.default_generators[self._device]
                generator.graphsafe_set_state(generator.clone_state())
            message = f"A CUDA graph cannot hold these operations, so all start one by one from now on: {error}"
            warnings.warn(message, NoGraphWarning, stacklevel=2)
            return None
        except RuntimeError as error:
            if is_out_of_memory(error):  # the pool keeps what the graph had taken already
                _captures.cache_clear()
            raise
        finally:
            present.wait_stream(self._aside)

    def _captured(self, function: Callable[[], list[Tensor]]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._aside):
            try:
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    results = function()
                finally:
                    graph.capture_end()
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                raise _CaptureError(str(error).partition("\n")[0]) from error
        return graph, results


class NoGraphWarning(UserWarning):
    """Operations start one by one, where a CUDA graph was wanted."""


class _CaptureError(FedlightningError, RuntimeError):
    """Operations cannot be captured."""


@cache
def _captures(device: int) -> _Captures:
    return _Captures(device)
