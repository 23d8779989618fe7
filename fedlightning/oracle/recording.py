"""Record a gradient once a round, replay it at the other steps.

Under ``vmap`` the K local steps of a round run the same tensor operations on new numbers, and for small models most of
the time goes into finding out which: Python, functorch and autograd bookkeeping. A :class:`Recording` notes the
operations that reach the device during the first step (forward and backward) as a ``torch.fx`` graph and runs the rest
of the round from it. The operations are the same, so are the bits; random ones draw anew. A recording lives for one
chunk of one round, so whatever a task changes between rounds (a schedule, a mode) is seen by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

TensorFunction = Callable[..., list[Tensor]]
"""Takes tensors only, returns a list of tensors, and has no other effects."""


class NotRecordable(Exception):
    """The function reads a tensor's value in Python, so its operations may differ from call to call."""


class Recording:
    """Calls a function of tensors, from the second call of the same shapes on by replay."""

    def __init__(self, function: TensorFunction) -> None:
        """Wrap ``function``."""
        self._function = function
        self._replays: dict[Any, TensorFunction] = {}

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The function's outputs."""
        key = tuple((t.shape, t.stride(), t.dtype) for t in inputs)
        replay = self._replays.get(key)
        if replay is not None:
            with torch.no_grad():
                return replay(*inputs)
        recorder = _Recorder(inputs)
        try:
            with recorder:
                outputs = self._function(*inputs)
            self._replays[key] = recorder.replay(outputs)
        except NotRecordable:
            self._replays[key] = self._function
            outputs = self._function(*inputs)
        return outputs


class _Recorder(TorchDispatchMode):
    """Writes every operation that reaches the device into a graph."""

    def __init__(self, inputs: Iterable[Tensor]) -> None:
        super().__init__()
        self._graph = fx.Graph()
        self._constants: dict[str, Tensor] = {}
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Tensor] = []  # a tensor's id names it only while it lives
        for i, tensor in enumerate(inputs):
            self._name(tensor, self._graph.placeholder(f"input_{i}"))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise NotRecordable
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if _changes_nothing(func, args, output):
            self._name(output, self._node(args[0]))
            return output
        node = self._graph.call_function(func, map_aggregate(args, self._node), map_aggregate(kwargs, self._node))
        if isinstance(output, Tensor):
            self._name(output, node)
        elif isinstance(output, tuple | list):
            for i, item in enumerate(output):
                if isinstance(item, Tensor):
                    self._name(item, self._graph.call_function(_getitem, (node, i)))
        return output

    def replay(self, outputs: list[Tensor]) -> TensorFunction:
        """A function that runs the graph."""
        self._graph.output([self._node(output) for output in outputs])
        code = self._graph.python_code(root_module="self")
        scope: dict[str, Any] = dict(code.globals)
        exec(code.src, scope)  # Python that torch.fx wrote: one line an operation
        return partial(scope["forward"], SimpleNamespace(**self._constants))

    def _name(self, tensor: Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)

    def _node(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            if isinstance(value, torch.Generator):
                raise NotRecordable
            return value
        if id(value) not in self._nodes:  # made by Python, or held by the module: a constant of the round
            name = f"constant_{len(self._constants)}"
            self._constants[name] = value
            self._name(value, self._graph.get_attr(name))
        return self._nodes[id(value)]


def _changes_nothing(func: Any, args: tuple[Any, ...], output: Any) -> bool:
    """Whether a view (detach, expand, ...) is its argument itself, as far as replaying is concerned."""
    if func._schema.is_mutable or not isinstance(output, Tensor) or not args or not isinstance(args[0], Tensor):
        return False
    return (
        output.data_ptr() == args[0].data_ptr()
        and (output.shape, output.stride(), output.dtype) == (args[0].shape, args[0].stride(), args[0].dtype)
        and output.numel() > 0
    )


def _getitem(sequence: Any, index: int) -> Any:
    return sequence[index]
