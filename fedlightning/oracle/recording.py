"""Record a gradient once a round, replay it at the other steps.

Under ``vmap`` the K local steps of a round run the same tensor operations on new numbers, and for small models most of
the time goes into finding out which: Python, functorch and autograd bookkeeping. A :class:`Recording` notes the
operations that reach the device during the first step (forward and backward) as a ``torch.fx`` graph and runs the rest
of the round from it. The operations are the same, so are the bits; random ones draw anew. A recording lives for one
chunk of one round, so whatever a task changes between rounds (a schedule, a mode) is seen by the next one.

A function is not recorded if it reads a tensor's value in Python, draws from a generator of its own, or writes into a
tensor that was there before: its next call may do other operations, or find other numbers.
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

from fedlightning.oracle.randomness import ClientNoise, PerClient, is_random

TensorFunction = Callable[..., list[Tensor]]
"""Takes tensors only, returns a list of tensors, and has no other effects."""

aten = torch.ops.aten


class Recording:
    """Calls a function of tensors, from the second call of the same shapes on by replay."""

    def __init__(self, function: TensorFunction, noise: ClientNoise | None = None) -> None:
        """Wrap ``function``, whose random numbers come from ``noise``."""
        self._function = function
        self._noise = ClientNoise() if noise is None else noise
        self._replays: dict[Any, TensorFunction] = {}

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The function's outputs."""
        key = tuple((t.shape, t.stride() if t.numel() else (), t.dtype) for t in inputs)
        replay = self._replays.get(key)
        if replay is not None:
            with torch.no_grad():
                return replay(*inputs)
        recorder = _Recorder(inputs, self._noise)
        with recorder:
            outputs = self._function(*inputs)
        self._replays[key] = recorder.replay(outputs) or self._unrecorded
        return outputs

    def _unrecorded(self, *inputs: Tensor) -> list[Tensor]:
        with PerClient(self._noise):
            return self._function(*inputs)


class _Recorder(TorchDispatchMode):
    """Writes every operation that reaches the device into a graph, as long as a replay would do the same."""

    def __init__(self, inputs: Iterable[Tensor], noise: ClientNoise) -> None:
        super().__init__()
        self._noise = noise
        self._given_up = False
        self._graph = fx.Graph()
        self._constants: dict[str, Any] = {"noise": noise}
        self._held: set[fx.Node] = set()  # constants that were there before, and views of them
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Tensor] = []  # a tensor's id names it only while it lives
        for i, tensor in enumerate(inputs):
            self._name(tensor, self._graph.placeholder(f"input_{i}"))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        random = is_random(func)
        self._given_up = self._given_up or func is aten._local_scalar_dense.default or _own_generator(kwargs)
        if self._given_up:
            return self._noise(func, *args, **kwargs) if random else func(*args, **kwargs)
        if func in (aten.lift_fresh.default, aten.lift_fresh_copy.default):
            return self._made_in_python(func, args[0])
        if random:
            output = self._noise(func, *args, **kwargs)
        else:
            output = func(*args, **kwargs)
            if _changes_nothing(func, args, output):
                self._name(output, self._node(args[0]))
                return output
        nodes = map_aggregate(args, self._node), map_aggregate(kwargs, self._node)
        if random:
            noise = self._graph.get_attr("noise")
            node = self._graph.call_function(_draw, (noise, func, *nodes[0]), nodes[1])
        else:
            node = self._graph.call_function(func, *nodes)
        self._follow_writes(func, nodes[0], node)
        if isinstance(output, Tensor):
            self._name(output, node)
        elif isinstance(output, tuple | list):
            for i, item in enumerate(output):
                if isinstance(item, Tensor):
                    self._name(item, self._part(node, i))
        return output

    def replay(self, outputs: list[Tensor]) -> TensorFunction | None:
        """A function that runs the graph; None if the function cannot be replayed."""
        if self._given_up:
            return None
        self._graph.output([self._node(output) for output in outputs])
        code = self._graph.python_code(root_module="self")
        scope: dict[str, Any] = dict(code.globals)
        exec(code.src, scope)  # Python that torch.fx wrote: one line an operation
        return partial(scope["forward"], SimpleNamespace(**self._constants))

    def _made_in_python(self, func: Any, value: Tensor) -> Tensor:
        """``torch.tensor(...)``: every call of the function makes it anew, before it may write into it."""
        name = f"constant_{len(self._constants)}"
        self._constants[name] = value.clone()
        output = func(value)
        self._name(output, self._graph.call_function(aten.clone.default, (self._graph.get_attr(name),)))
        return output  # type: ignore[no-any-return]

    def _follow_writes(self, func: Any, args: tuple[Any, ...], node: fx.Node) -> None:
        """Give up where a tensor that was there before is written into; a view of one is one."""
        for argument, value in zip(func._schema.arguments, args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, fx.Node) and item in self._held and argument.alias_info is not None:
                    self._given_up = self._given_up or written
                    self._held.add(node)

    def _part(self, node: fx.Node, index: int) -> fx.Node:
        part = self._graph.call_function(_getitem, (node, index))
        if node in self._held:
            self._held.add(part)
        return part

    def _name(self, tensor: Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)

    def _node(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._nodes:  # held by the module, or from NumPy: a constant of the round
            name = f"constant_{len(self._constants)}"
            self._constants[name] = value
            node = self._graph.get_attr(name)
            self._held.add(node)
            self._name(value, node)
        return self._nodes[id(value)]


def _changes_nothing(func: Any, args: tuple[Any, ...], output: Any) -> bool:
    """Whether a view (detach, expand, ...) is its argument itself, as far as replaying is concerned.

    A lazy conjugate or negative lies in the same memory with the same strides, but is another tensor.
    """
    if func._schema.is_mutable or not isinstance(output, Tensor) or not args or not isinstance(args[0], Tensor):
        return False
    value = args[0]
    return (
        output.data_ptr() == value.data_ptr()
        and (output.shape, output.stride(), output.dtype) == (value.shape, value.stride(), value.dtype)
        and (output.is_conj(), output.is_neg()) == (value.is_conj(), value.is_neg())
        and output.numel() > 0
    )


def _own_generator(kwargs: dict[str, Any]) -> bool:
    return kwargs.get("generator") is not None


def _draw(noise: ClientNoise, func: Any, *args: Any, **kwargs: Any) -> Any:
    return noise(func, *args, **kwargs)


def _getitem(sequence: Any, index: int) -> Any:
    return sequence[index]
