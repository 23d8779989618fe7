"""Notes the operations that reach the device while a function runs, as long as replays of them would be right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import DispatchKey
from torch.utils._python_dispatch import TorchDispatchMode

from fedlightning.oracle.base import ROUNDED_ALIKE
from fedlightning.oracle.randomness import Noise, is_random
from fedlightning.oracle.recording.direct import runs_python, with_overrides
from fedlightning.oracle.recording.lines import Name
from fedlightning.oracle.recording.names import Names
from fedlightning.oracle.recording.outline import Draft, flat
from fedlightning.oracle.recording.program import Program
from fedlightning.oracle.recording.replay import Replay
from fedlightning.oracle.recording.results import Results

aten = torch.ops.aten


class Recorder(TorchDispatchMode):
    """Writes every operation that reaches the device into a program, as long as replays would be right.

    Large tensors that the function has no use for any more are freed meanwhile, as without a recorder.
    """

    def __init__(self, inputs: Sequence[Tensor], noise: Noise, draft: Draft | None = None) -> None:
        """Begin before the first operation.

        Args:
            inputs: Arguments of the function.
            noise: Draws the function's random numbers.
            draft: Is told of every operation, too.
        """
        super().__init__()
        self._noise, self._draft = noise, draft
        self._given_up = False
        self._draws = False
        self._makes_tensors = False  # of Python's numbers, which an outline cannot compare
        self._program = Program(len(inputs))
        self._held: set[Name] = set()  # tensors from before the call, and views of them
        self._names: Names[Name] = Names()
        self._results = Results()  # all others
        self._inputs = inputs
        self._devices: set[torch.device] = set()
        self._empty: list[Tensor] = []  # used again by every replay
        self._lent: list[Tensor] = []  # those that were empty and took memory of others; views of these, too
        self._point = inputs[0].untyped_storage().data_ptr() if inputs else 0
        self._joined_of_point: set[Name] = set()  # tensors that were joined from parts in the first input's memory
        for place, tensor in enumerate(inputs):
            self._call(tensor, self._program.input(place))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = self._noted(func, args, kwargs := kwargs or {})
        if self._draft is not None:
            self._draft.note(func, args, kwargs, output)
        return output

    def _noted(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation, and write it into the program."""
        traits = _traits(func)
        random = traits.may_draw and is_random(func, args, kwargs)
        depends_on_numbers = traits.reads_values or (traits.indexes and _by_mask(args[1]))
        draws_elsewhere = kwargs.get("generator") is not None or (random and traits.has_own_state)
        takes_memory = traits.takes_memory and not self._is_known_as_empty(args[0])
        self._given_up = self._given_up or depends_on_numbers or draws_elsewhere or takes_memory
        if not self._given_up and traits.is_made_in_python:
            return self._made_in_python(func, args[0])
        if func is aten._cudnn_rnn.default:
            args = (*args[:_WEIGHTS_IN_ONE_PIECE], None, *args[_WEIGHTS_IN_ONE_PIECE + 1 :])
        output = self._noise(func, *args, **kwargs) if random else func(*args, **kwargs)
        if isinstance(output, (bool, int, float)):  # e.g. from torch.equal: what Python does next may depend on it
            self._given_up = True
        if self._given_up or self._looks_into_memory(func, args, output):
            return output
        self._draws |= random
        if random or traits.writes or not self._needs_a_name_alone(func, args, kwargs, output):
            self._write(func, args, kwargs, output, random)
        return output

    def _needs_a_name_alone(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> bool:
        """Return whether a replay has an operation's result without running it, and name the result if so."""
        if _changes_nothing(args, output):
            self._call(output, self._name_of(args[0]))
        elif func is aten.cat.default and _are_alike(args[0], output):
            joined = self._program.join(args[0], _dim(args, kwargs), self._name_of, output)
            if any(map(self._is_in_point, args[0])):
                self._joined_of_point.add(joined)
            self._call(output, joined)
        elif isinstance(output, Tensor) and _is_empty(output):
            self._call(output, self._program.hold(output))
            self._empty.append(output)
        else:
            return False
        return True

    def _write(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, random: bool) -> None:
        """Write an operation into the program as what replays run in its place, and name its results."""
        traits = _traits(func)
        function, arguments = (self._noise, (func, *args)) if random else (traits.as_recorded, args)
        if func in _FILLED and output.layout == torch.strided and output.is_contiguous():
            function, arguments, kwargs = _filled(_FILLED[func], output), (), {}
        results: Any = output
        if isinstance(output, tuple) and any(isinstance(each, list) for each in output):
            function, results = partial(_flattened, function), flat(output)
        if traits.runs_python:
            function = partial(with_overrides, function)
        acts = random or traits.acts
        makes = self._program.add(
            function, arguments, kwargs, self._name_of, results, acts, traits.makes_views, traits.may_write
        )
        if self._held:
            self._follow_views(func, args, kwargs, makes)
        for result, name in zip((results,) if isinstance(results, Tensor) else results or (), makes, strict=True):
            if name is not None:
                self._call(result, name)

    def replay(self, outputs: Sequence[Tensor], constant: Any) -> Replay | None:
        """Return what runs the program; None if a replay would not be right."""
        names = [] if self._given_up else [self._name_of(output) for output in outputs]
        if self._given_up or not all(map(_is_empty, self._empty)):  # one has grown to hold a result, by out=
            return None
        is_apart = names[0] not in self._joined_of_point and not any(map(self._is_in_point, outputs))
        point = self._inputs[0]
        is_apart = is_apart and outputs[0].numel() == point.numel() and point.dtype in ROUNDED_ALIKE
        is_of_gpu = point.device.type == "cuda" and not self._draws and self._devices == {point.device}
        is_lasting = not (self._draws or self._makes_tensors or is_of_gpu)  # graphs keep memory of their own
        return Replay(self._program, names, constant, is_apart, len(point) == 1, is_of_gpu, is_lasting)

    def _made_in_python(self, func: Any, value: Tensor) -> Tensor:
        """Note ``torch.tensor(...)``, which every replay makes anew because the function may write into the tensor."""
        self._makes_tensors = True
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
                if isinstance(item, Tensor) and self._names.get(item) in self._held:
                    self._given_up = self._given_up or argument.alias_info.is_write
                    self._held.update(name for name in makes if name is not None)

    def _looks_into_memory(self, func: Any, args: tuple[Any, ...], output: Any) -> bool:
        """Return whether an empty tensor has taken the memory of another one, or is looked at since; take note of it.

        cuDNN's layers look in this way whether their weights lie in one piece. If the memory holds more than the
        weights, they take a view of its beginning. If anything reads such a tensor, the recording is given up.
        """
        if _traits(func).takes_memory:
            self._empty = [each for each in self._empty if each is not args[0]]
            self._lent.append(args[0])
            return True
        if _traits(func).makes_views and isinstance(output, Tensor) and self._is_lent(args[0]):
            self._lent.append(output)
            return True
        return False

    def _is_known_as_empty(self, tensor: Tensor) -> bool:
        """Return whether a tensor has neither numbers nor memory."""
        return any(tensor is each for each in self._empty)

    def _is_lent(self, tensor: Any) -> bool:
        """Return whether a tensor was empty and has taken the memory of another one, or is a view of such a tensor."""
        return any(tensor is each for each in self._lent)

    def _is_in_point(self, tensor: Tensor) -> bool:
        """Return whether a tensor shares memory with the first input, or may do so."""
        if tensor.numel() == 0:
            return False
        return tensor.layout != torch.strided or tensor.untyped_storage().data_ptr() == self._point

    def _may_be_known(self, tensor: Tensor) -> bool:
        """Return whether an unknown tensor may be an input or a result in another wrapper, of which no operation tells.

        ``as_subclass`` makes such wrappers. A replay would take the tensor for a constant.
        """
        if type(tensor) not in (Tensor, nn.Parameter):
            return True
        return self._results.may_include(tensor)

    def _call(self, tensor: Tensor, name: Name) -> None:
        self._given_up = self._given_up or _has_parts(tensor)
        self._names[tensor] = name
        self._devices.add(tensor.device)
        if not self._given_up and name not in self._held:
            self._results.add(tensor)

    def _name_of(self, tensor: Tensor) -> Name:
        name = self._names.get(tensor)
        self._given_up = self._given_up or self._is_lent(tensor)
        if name is None:  # held by the module, or from NumPy: a constant of the round
            self._given_up = self._given_up or self._may_be_known(tensor)
            name = self._program.hold(tensor)
            self._held.add(name)
            self._call(tensor, name)
        return name


class Follower(TorchDispatchMode):
    """Drafts the outline of a function, and writes no program."""

    def __init__(self, noise: Noise, draft: Draft) -> None:
        """Begin before the first operation.

        Args:
            noise: Draws random numbers, should the function have begun to draw.
            draft: Is told of every operation.
        """
        super().__init__()
        self._noise, self._draft = noise, draft

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        random = _traits(func).may_draw and is_random(func, args, kwargs)
        output = self._noise(func, *args, **kwargs) if random else func(*args, **kwargs)
        self._draft.note(func, args, kwargs, output)
        return output


def reads_values(func: Any) -> bool:
    """Return whether what runs after an operation may depend on the numbers in a tensor."""
    return _traits(func).reads_values


def _flattened(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Return an operation's results in one list, where some of them are lists."""
    return flat(function(*args, **kwargs))


def _recurrent_layer(*args: Any, **kwargs: Any) -> Any:
    """Keep what the backward pass needs, which oneDNN's recurrent layer leaves out where no gradients are recorded."""
    with torch.enable_grad():
        return torch.mkldnn_rnn_layer(*args, **kwargs)


_AS_RECORDED = {aten.mkldnn_rnn_layer.default: _recurrent_layer}
"""Operations that compute something else below ``no_grad``, under which programs run."""


_FILLED: dict[Any, float] = {aten.ones_like.default: 1, aten.zeros_like.default: 0}
"""Operations that look at nothing but the shape of their argument, with the number that they fill it with."""


def _filled(number: float, like: Tensor) -> Callable[..., Any]:
    """Return what makes the result of such an operation without its argument."""
    return partial(torch.full, tuple(like.shape), number, dtype=like.dtype, device=like.device)


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


def _has_parts(tensor: Tensor) -> bool:
    """Return whether a tensor's class has operations of its own, on tensors that are its attributes, as a rule."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def _by_mask(indices: Any) -> bool:
    """Return whether elements are chosen by a mask, so that the shape of the result depends on numbers."""
    return any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in indices)


class _Traits(NamedTuple):
    """Says what an operation does, whatever its arguments are.

    Attributes:
        as_recorded: What computes the same below ``no_grad``, under which programs run.
        may_draw: Whether it may draw random numbers.
        has_own_state: Whether it draws them from a state of its own, as cuDNN's recurrent layers do, which no client's
            seed reaches.
        takes_memory: Whether it makes a tensor of memory, whose numbers no operation has made.
        writes: Whether it writes into an argument.
        acts: Whether it must run even if nobody reads its results: because it writes, because it is a check, which has
            none, or because it is a user's or another library's, of which nobody knows.
        may_write: Whether it may write into an argument without saying so, as batch normalisation does.
        makes_views: Whether its results are views of an argument, whatever that is; some operations copy at times.
        reads_values: Whether what runs next may depend on the numbers in a tensor: on one read in Python, or on a
            shape.
        indexes: Whether it indexes, which depends on numbers if the index is a mask.
        is_made_in_python: Whether its argument is a tensor made of Python's numbers.
        runs_python: Whether it runs functions that are written in Python, whose overrides are not recorded.
    """

    as_recorded: Callable[..., Any]
    may_draw: bool
    has_own_state: bool
    takes_memory: bool
    writes: bool
    acts: bool
    may_write: bool
    makes_views: bool
    reads_values: bool
    indexes: bool
    is_made_in_python: bool
    runs_python: bool


@cache
def _traits(func: Any) -> _Traits:
    """Return the traits of an operation, which are looked up once: a recording sees each of them many times."""
    tags = func.tags
    return _Traits(
        as_recorded=_AS_RECORDED.get(func, func),
        may_draw=torch.Tag.nondeterministic_seeded in tags,
        has_own_state=any(argument.name == "dropout_state" for argument in func._schema.arguments),
        takes_memory=any(str(argument.type) == "Storage" for argument in func._schema.arguments),
        writes=func._schema.is_mutable,
        acts=func._schema.is_mutable
        or not func._schema.returns
        or (runs_python(func) and func.namespace != "prims"),  # which are PyTorch's, and only compute
        may_write=any(argument.name == "running_mean" for argument in func._schema.arguments),
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
        runs_python=runs_python(func),
    )


_WEIGHTS_IN_ONE_PIECE = 3
"""Place of an argument of cuDNN's recurrent layers: the client's weights, where they happen to lie as cuDNN wants them.
It copies them in every call instead."""

_INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)
