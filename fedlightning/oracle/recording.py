"""Recording of a gradient at the first step of a round, and replay at all other steps.

Under ``vmap`` the K local steps of a round run the same tensor operations on new numbers. For small models, most of the
time goes into finding out which operations these are: Python, functorch and autograd bookkeeping. A :class:`Recording`
notes the operations that reach the device during the first step (forward and backward) as a
:class:`~fedlightning.oracle.program.Program`, and runs the rest of the round from the program. The operations are the
same, so the results are the same bit for bit (but see :meth:`Recording.steps`); random operations draw anew. A
recording lives for one phase of one round, so the next round sees whatever a task changes between rounds (a schedule, a
mode). On a GPU, a replay that draws no random numbers is one CUDA graph (:mod:`fedlightning.oracle.graphs`).

A function is not recorded if it reads a tensor's value in Python, draws from a generator of its own, or writes into a
tensor that existed before the call, because its next call may run other operations or find other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import cache, cached_property
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.utils._python_dispatch import TorchDispatchMode

from fedlightning.oracle.base import ROUNDED_ALIKE
from fedlightning.oracle.graphs import Graphed
from fedlightning.oracle.lines import Name
from fedlightning.oracle.own_memory import LARGE_FOR_THREADS
from fedlightning.oracle.program import Program, Steps
from fedlightning.oracle.randomness import ClientNoise, Noise, PerClient, is_random

Recordable = Callable[..., tuple[Sequence[Tensor], Any]]
"""A function of tensors without side effects. The first result is a sequence of tensors; the second result is the same
in all calls with the same shapes."""

aten = torch.ops.aten


LARGE = 2**14
"""Numbers in a matrix from which on it pays to subtract a product from it while it is computed."""


class Recording:
    """Calls a function of tensors, and replays the function from the second call with the same shapes on."""

    def __init__(self, function: Recordable, noise: Noise | None = None) -> None:
        """Wrap ``function``, whose random numbers come from ``noise``."""
        self._function = function
        self._noise: Noise = ClientNoise() if noise is None else noise
        self._replays: dict[Any, _Replay | None] = {}

    @property
    def replays(self) -> bool:
        """Whether everything called so far is replayed when it is called again."""
        return all(known is not None for known in self._replays.values())

    def is_replayed(self, *inputs: Tensor) -> bool | None:
        """Return whether a call with such arguments would be replayed; None if it would be the first."""
        key = key_of(inputs)
        return None if key not in self._replays else self._replays[key] is not None

    def __call__(self, *inputs: Tensor, room: Tensor | None = None) -> tuple[Sequence[Tensor], Any]:
        """Return what the function returns.

        Args:
            inputs: Arguments of the function.
            room: Where a replay may put the function's first result: a tensor of its shape and dtype. It is the first
                result then, or has not been used.
        """
        key = key_of(inputs)
        if key not in self._replays:
            return self._record(key, inputs)
        known = self._replays[key]
        if known is None:
            with PerClient(self._noise):
                return self._function(*inputs)
        with torch.no_grad():
            return known.run(*inputs, room=room), known.constant

    def can_step(self, *inputs: Tensor) -> bool:
        """Return whether :meth:`steps` can replay a call with such arguments."""
        known = self._replays.get(key_of(inputs))
        return known is not None and known.steps is not None

    def steps(self, *inputs: Tensor, lr: float) -> tuple[Steps, Any] | None:
        """Begin steps along what would be the function's first result, in place.

        Every step subtracts ``lr`` times that result from the first argument, as does
        ``point.sub_(result, alpha=lr)``. The result is the parts that the function joins into it, which are not put
        together. On a CPU, large matrix products are subtracted while they are computed, which leaves out a rounding;
        all other bits are the same.

        Args:
            inputs: Arguments of the first step.
            lr: Step size.

        Returns:
            What is sent, for every step, all arguments but the first, each as it is here but for the numbers, and gives
            all results but the first; and the function's second result. The first argument holds what the steps made of
            it once they are closed. None if :meth:`can_step` says so.
        """
        known = self._replays.get(key_of(inputs))
        if known is None or known.steps is None:
            return None
        with torch.no_grad():
            steps = known.steps(inputs[0], lr)
            next(steps)
        return steps, known.constant

    def step(self, *inputs: Tensor, lr: float) -> tuple[list[Tensor], Any]:
        """Take a single step of :meth:`steps`, which must be possible.

        Returns:
            What the function returns, without its first result.
        """
        begun = self.steps(*inputs, lr=lr)
        assert begun is not None
        steps, constant = begun
        with torch.no_grad(), closing(steps):
            return steps.send(inputs[1:]), constant

    def _record(self, key: Any, inputs: Sequence[Tensor]) -> tuple[Sequence[Tensor], Any]:
        recorder = _Recorder(inputs, self._noise)
        with recorder:
            outputs, constant = self._function(*inputs)
        self._replays[key] = recorder.replay(outputs, constant)
        return outputs, constant


_MAKING = Lock()
"""Held while a program is compiled, because threads that replay side by side may come to a program at once."""


class _Replay:
    """Runs a program, as it was recorded or with steps along its first output; what is not used is not compiled.

    Attributes:
        constant: The second result of the recorded function.
    """

    def __init__(
        self,
        program: Program,
        outputs: Sequence[Name],
        constant: Any,
        is_apart: bool,
        is_of_one: bool,
        is_of_gpu: bool,
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
        """
        self._program, self._outputs = program, outputs
        self.constant = constant
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
        with _MAKING:
            return self._program.function(self._outputs)


class _Recorder(TorchDispatchMode):
    """Writes every operation that reaches the device into a program, as long as replays would be right."""

    def __init__(self, inputs: Sequence[Tensor], noise: Noise) -> None:
        super().__init__()
        self._noise = noise
        self._given_up = False
        self._draws = False
        self._program = Program(len(inputs))
        self._held: set[Name] = set()  # tensors from before the call, and views of them
        self._names: dict[int, Name] = {}
        self._alive: list[Tensor] = []  # because ids of freed tensors are used again
        self._empty: list[Tensor] = []  # used again by every replay
        self._point = inputs[0].untyped_storage().data_ptr() if inputs else 0
        self._parts_are_apart = True
        for place, tensor in enumerate(inputs):
            self._call(tensor, self._program.input(place))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, traits = kwargs or {}, _traits(func)
        random = traits.may_draw and is_random(func, args, kwargs)
        if traits.reads_values or (traits.indexes and _by_mask(args[1])) or kwargs.get("generator") is not None:
            self._given_up = True
        if not self._given_up and traits.is_made_in_python:
            return self._made_in_python(func, args[0])
        output = self._noise(func, *args, **kwargs) if random else func(*args, **kwargs)
        if self._given_up:
            return output
        self._draws |= random
        if isinstance(output, (bool, int, float)):  # e.g. from torch.equal: what Python does next may depend on it
            self._given_up = True
            return output
        if not (random or traits.writes) and _changes_nothing(args, output):
            self._call(output, self._name_of(args[0]))
            return output
        if func is aten.cat.default and _are_alike(args[0], output):
            self._parts_are_apart = self._parts_are_apart and not any(map(self._is_in_point, args[0]))
            self._call(output, self._program.join(args[0], _dim(args, kwargs), self._name_of, output))
            return output
        if not (random or traits.writes) and isinstance(output, Tensor) and _is_empty(output):
            self._call(output, self._program.hold(output))
            self._empty.append(output)
            return output
        function, arguments = (self._noise, (func, *args)) if random else (traits.as_recorded, args)
        acts = random or traits.writes
        makes = self._program.add(function, arguments, kwargs, self._name_of, output, acts, traits.makes_views)
        if self._held:
            self._follow_views(func, args, kwargs, makes)
        for result, name in zip((output,) if isinstance(output, Tensor) else output or (), makes, strict=True):
            if name is not None:
                self._call(result, name)
        return output

    def replay(self, outputs: Sequence[Tensor], constant: Any) -> _Replay | None:
        """Return what runs the program; None if a replay would not be right."""
        if self._given_up or not all(map(_is_empty, self._empty)):  # one has grown to hold a result, by out=
            return None
        is_apart = self._parts_are_apart and not any(map(self._is_in_point, outputs))
        is_apart = is_apart and outputs[0].numel() == self._alive[0].numel()
        is_apart = is_apart and self._alive[0].dtype in ROUNDED_ALIKE
        names = [self._name_of(output) for output in outputs]
        device = self._alive[0].device
        is_of_gpu = device.type == "cuda" and not self._draws and all(each.device == device for each in self._alive)
        return _Replay(self._program, names, constant, is_apart, len(self._alive[0]) == 1, is_of_gpu)

    def _made_in_python(self, func: Any, value: Tensor) -> Tensor:
        """Note ``torch.tensor(...)``, which every replay makes anew because the function may write into the tensor."""
        constant = value.clone()
        self._call(constant, self._program.hold(constant))
        output: Tensor = func(value)
        (name,) = self._program.add(aten.clone.default, (constant,), {}, self._name_of, output, acts=False)
        assert name is not None
        self._call(output, name)
        return output

    def _follow_views(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], makes: Iterable[Name | None]
    ) -> None:
        """Give up if a tensor from before the call is written into, be it through a view."""
        for argument in func._schema.arguments:
            if argument.alias_info is None:
                continue
            place = func._schema.arguments.index(argument)
            value = kwargs.get(argument.name, args[place] if place < len(args) else None)
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, Tensor) and self._names.get(id(item)) in self._held:
                    self._given_up = self._given_up or argument.alias_info.is_write
                    self._held.update(name for name in makes if name is not None)

    def _is_in_point(self, tensor: Tensor) -> bool:
        """Return whether a tensor shares memory with the first input, or may do so."""
        if tensor.numel() == 0:
            return False
        return tensor.layout != torch.strided or tensor.untyped_storage().data_ptr() == self._point

    def _call(self, tensor: Tensor, name: Name) -> None:
        self._names[id(tensor)] = name
        self._alive.append(tensor)

    def _name_of(self, tensor: Tensor) -> Name:
        name = self._names.get(id(tensor))
        if name is None:  # held by the module, or from NumPy: a constant of the round
            name = self._program.hold(tensor)
            self._held.add(name)
            self._call(tensor, name)
        return name


def key_of(inputs: Sequence[Tensor]) -> Any:
    """Return what calls must agree in to run the same operations."""
    return tuple([(t.shape, t.stride() if t.numel() else (), t.dtype) for t in inputs])


def _recurrent_layer(*args: Any, **kwargs: Any) -> Any:
    """Keep what the backward pass needs, which oneDNN's recurrent layer leaves out where no gradients are recorded."""
    with torch.enable_grad():
        return aten.mkldnn_rnn_layer.default(*args, **kwargs)


_AS_RECORDED = {aten.mkldnn_rnn_layer.default: _recurrent_layer}
"""Operations that compute something else below ``no_grad``, under which programs run."""


def _dim(args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """Return the dimension along which ``torch.cat`` joins."""
    return args[1] if len(args) > 1 else kwargs.get("dim", 0)  # type: ignore[no-any-return]


def _are_alike(parts: Sequence[Tensor], whole: Tensor) -> bool:
    """Return whether tensors of one dtype were joined in memory in the usual order, so that each has its place."""
    alike = all(part.dtype == whole.dtype and part.dim() == whole.dim() for part in parts)
    return alike and whole.is_contiguous()


def _changes_nothing(args: Sequence[Any], output: Any) -> bool:
    """Return whether a view (detach, expand, ...) equals its argument, as far as replaying is concerned.

    A lazy conjugate or negative lies in the same memory with the same strides, but is another tensor.
    """
    if not isinstance(output, Tensor) or not args or not isinstance(args[0], Tensor):
        return False
    value = args[0]
    return (
        output.data_ptr() == value.data_ptr()
        and (output.shape, output.stride(), output.dtype) == (value.shape, value.stride(), value.dtype)
        and (output.is_conj(), output.is_neg()) == (value.is_conj(), value.is_neg())
        and output.numel() > 0
    )


def _is_empty(tensor: Tensor) -> bool:
    """Return whether a tensor has no numbers, and no memory that it would keep, so that it may be used again."""
    return tensor.numel() == 0 and tensor.layout == torch.strided and tensor.untyped_storage().nbytes() == 0


def _by_mask(indices: Any) -> bool:
    """Return whether elements are chosen by a mask, so that the shape of the result depends on numbers."""
    return any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in indices)


class _Traits(NamedTuple):
    """Says what an operation does, whatever its arguments are.

    Attributes:
        as_recorded: What computes the same below ``no_grad``, under which programs run.
        may_draw: Whether it may draw random numbers.
        writes: Whether it writes into an argument.
        makes_views: Whether its results are views of an argument, whatever that is; some operations copy at times.
        reads_values: Whether what runs next may depend on the numbers in a tensor: on one read in Python, or on a
            shape.
        indexes: Whether it indexes, which depends on numbers if the index is a mask.
        is_made_in_python: Whether its argument is a tensor made of Python's numbers.
    """

    as_recorded: Callable[..., Any]
    may_draw: bool
    writes: bool
    makes_views: bool
    reads_values: bool
    indexes: bool
    is_made_in_python: bool


@cache
def _traits(func: Any) -> _Traits:
    """Return the traits of an operation, which are looked up once: a recording sees each of them many times."""
    tags = func.tags
    return _Traits(
        as_recorded=_AS_RECORDED.get(func, func),
        may_draw=torch.Tag.nondeterministic_seeded in tags,
        writes=func._schema.is_mutable,
        makes_views=func.is_view and not func.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd),
        reads_values=func not in _INDEXING
        and (
            func is aten._local_scalar_dense.default
            or torch.Tag.dynamic_output_shape in tags
            or torch.Tag.data_dependent_output in tags
            or "pack" in func.name()  # packed sequences are as long as their lengths say
        ),
        indexes=func in _INDEXING,
        is_made_in_python=func in (aten.lift_fresh.default, aten.lift_fresh_copy.default),
    )


_INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)
