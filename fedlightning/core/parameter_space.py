"""Names and blocks of a model's parameters, and the flat vectors that algorithms compute with.

A federated algorithm sees vectors: the shared point ``z`` of length d and, for a cohort of S clients, matrices
``[S, d]``. A task sees named tensors. Only :class:`ParameterSpace` knows both, and only :class:`ParameterSpace` knows
which parameters are minimised and which maximised: the *operator* of an objective f is
``g = (grad_x f, -grad_y f)``, so that ``z - lr * g`` descends in the min block x and ascends in the max block y.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedlightning.core.errors import InvalidTypeError, InvalidValueError, UsageError
from fedlightning.core.modules import first_trained
from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.core.per_block import PerBlock as PerBlock


@dataclass(frozen=True, eq=False)
class Layout:
    """Maps named tensors to places in a flat vector: minimised tensors first, then maximised tensors.

    Attributes:
        names: Dotted names, in the order of the vector.
        shapes: Shape of each tensor.
        minimised: Number of minimised tensors, which come first.
        sizes: Number of elements of each tensor.
        dim: Length d of the flat vector.
        min_dim: Length of the min block x; the max block y has ``dim - min_dim``.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    minimised: int
    sizes: list[int] = field(init=False)
    dim: int = field(init=False)
    min_dim: int = field(init=False)

    def __post_init__(self) -> None:
        sizes = [prod(shape) for shape in self.shapes]
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "dim", sum(sizes))
        object.__setattr__(self, "min_dim", sum(sizes[: self.minimised]))

    def views(self, vectors: Tensor) -> dict[str, Tensor]:
        """Return views of ``vectors [..., d]`` as ``{name: [..., *shape]}``, without copying."""
        if not self.names:
            return {}
        lead = vectors.shape[:-1]
        pieces = vectors.split_with_sizes(self.sizes, dim=-1)
        return {
            name: piece.view((*lead, *shape))
            for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }

    def flatten(self, tensors: Iterable[Tensor], num_clients: int) -> Tensor:
        """Join the tensors of a cohort into one matrix; the inverse of :meth:`views`.

        Args:
            tensors: One tensor ``[S, *shape]`` for each name, in the order of the names; at least one.
            num_clients: S.

        Returns:
            ``[S, d]``, a new tensor.
        """
        return torch.cat([tensor.reshape(num_clients, -1) for tensor in tensors], dim=1)

    def to_operator(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the operator's parts, which are the gradients, negated for the maximised tensors.

        Args:
            gradients: One tensor for each name, in the order of the names.
        """
        return [*gradients[: self.minimised], *(gradient.neg() for gradient in gradients[self.minimised :])]

    def columns(self, prefixes: Iterable[str], argument: str) -> Tensor:
        """Return the indices in the vector of all parameters below the prefixes, as a tensor of integers.

        Args:
            prefixes: Dotted name prefixes.
            argument: What the message calls the prefixes.

        Raises:
            TypeError: If a prefix is no string.
            ValueError: If a prefix matches no parameter.
        """
        found = set[str]().union(*(names_under(prefix, self.names, argument) for prefix in prefixes))
        kept = torch.tensor([name in found for name in self.names])
        return kept.repeat_interleave(torch.tensor(self.sizes)).nonzero().flatten()

    def positions(self, prefix: str, argument: str, device: torch.device) -> dict[str, Tensor]:
        """Return the indices in the vector of each parameter below a prefix, shaped as the parameter.

        Args:
            prefix: Dotted name prefix.
            argument: What the message calls the prefix.
            device: Where the indices are to lie.

        Returns:
            By what a name has beyond the prefix, sorted, so that equal modules in two layouts correspond.

        Raises:
            TypeError: If the prefix is no string.
            ValueError: If it matches no parameter.
        """
        found = names_under(prefix, self.names, argument)
        places = self.views(torch.arange(self.dim, device=device))
        return {name.removeprefix(prefix): places[name] for name in sorted(found)}

    def blocks(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the min and the max block of ``vectors [..., d]``, as views."""
        return vectors[..., : self.min_dim], vectors[..., self.min_dim :]

    def spread(self, value: PerBlock, name: str, like: Tensor, others: Iterable[str] = ()) -> float | Tensor:
        """Return a hyper-parameter as a number or, if different by block or prefix, as a vector ``[d]``.

        Args:
            value: A number, a pair ``[min, max]`` or a mapping from name prefixes to numbers.
            name: The hyper-parameter's name, for messages.
            like: Gives dtype and device of the vector.
            others: Names of other parameters, outside this layout, that prefixes may match as well.

        Raises:
            ValueError: If a sequence is not a pair, a prefix is unknown, or no prefix covers a parameter.
        """
        if isinstance(value, Mapping):
            numbers = self._by_prefix(value, name, others)
        elif isinstance(value, Sequence):
            if len(value) != 2:
                raise InvalidValueError(f"{name}={list(value)!r}: expected one number or a pair [min, max].")
            if value[0] == value[1] or self.min_dim == self.dim:
                return float(value[0])
            numbers = [value[0]] * self.minimised + [value[1]] * (len(self.names) - self.minimised)
        else:
            return float(value)
        counts = torch.tensor(self.sizes, dtype=torch.long, device=like.device)
        return torch.tensor(numbers, dtype=like.dtype, device=like.device).repeat_interleave(counts)

    def _by_prefix(self, value: Mapping[str, float], name: str, others: Iterable[str]) -> list[float]:
        prefixes = [prefix for prefix in value if prefix != "default"]
        for prefix in prefixes:
            names_under(prefix, (*self.names, *others), argument=name)
        numbers = []
        for parameter in self.names:
            matches = [prefix for prefix in prefixes if is_under(parameter, prefix)]
            if not matches and "default" not in value:
                raise InvalidValueError(
                    f"{name}: no entry covers parameter '{parameter}'. Add its prefix or the key 'default'."
                )
            numbers.append(value[max(matches, key=len)] if matches else value["default"])
        return numbers


class ParameterSpace:
    """Sorts a module's trainable parameters into shared and personal, min and max blocks, and lists the buffers.

    Parameters that do not require gradients belong to no block: they are constants of the objective. In a
    :class:`~fedlightning.models.PerArchitecture` only parameters of the active architecture count. The shared block is
    the same for all architectures.

    Attributes:
        shared: Layout of the point the server holds.
        personal: Layout of the block every client keeps for itself (minimised).
        buffers: Layout of the buffers, in the shared dtype (BatchNorm's statistics among them).
    """

    def __init__(
        self,
        module: nn.Module,
        max_parameters: Iterable[str] = (),
        personal_parameters: Iterable[str] = (),
        constants: Iterable[str] = (),
    ) -> None:
        """Sort the parameters of ``module`` into blocks.

        Args:
            module: The model or task.
            max_parameters: Dotted name prefixes of the parameters that are maximised.
            personal_parameters: Dotted name prefixes of the parameters that stay on the client.
            constants: Names of parameters that are in no block, whether they require gradients or not.

        Raises:
            ValueError: If a prefix matches no trainable parameter, a parameter is named by both, nothing is shared,
                a parameter of a lazy module has no shape yet, the trainable parameters do not have one common real
                dtype, or parts that differ by architecture are not personal.
        """
        left_out = frozenset(constants)
        trainable = {name: p for name, p in module.named_parameters() if p.requires_grad and name not in left_out}
        if lazy := [name for name, p in trainable.items() if is_lazy(p)]:
            raise InvalidValueError(
                f"Parameter '{lazy[0]}' of a lazy module has no shape yet. Pass one sample through the module in "
                "__init__, or give the layer its sizes."
            )
        tied = _other_names(module, trainable)
        frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
        maximised = _match(max_parameters, trainable, tied, frozen, "max_parameters")
        personal = _match(personal_parameters, trainable, tied, frozen, "personal_parameters")
        if both := sorted(maximised & personal):
            raise InvalidValueError(
                f"Parameter '{both[0]}' is named by max_parameters and by personal_parameters: what never leaves a "
                "client is always minimised. Narrow one of the prefixes, or let a personal part ascend by reversing "
                "its gradient in the objective."
            )
        dtypes = {p.dtype for p in trainable.values()}
        if len(dtypes) > 1 or any(not dtype.is_floating_point for dtype in dtypes):
            remedy = "Convert the module, or exclude parameters with requires_grad_(False)"
            if any(dtype.is_complex for dtype in dtypes):
                remedy = "Keep a complex one as torch.view_as_real(it), and read torch.view_as_complex(self.name)"
            have = f"Trainable parameters have dtypes {sorted(map(str, dtypes))}"
            raise InvalidValueError(f"{have}; one real floating dtype is needed. {remedy}.")
        self._prefixes = tuple(max_parameters), tuple(personal_parameters)
        self._constants = left_out
        choice = TaskArchitectures(module)
        for part in choice.parts:
            if travels := sorted(name for name in trainable if is_under(name, part) and name not in personal):
                raise InvalidValueError(
                    f"'{part}' varies between clients, so it cannot be shared, but '{travels[0]}' is not personal. "
                    f"Add '{part}' to personal_parameters."
                )
        absent = choice.inactive()
        self._absent = tuple(name for name in trainable if any(is_under(name, prefix) for prefix in absent))
        minimised = [name for name in trainable if name not in maximised | personal]
        shared = (*minimised, *(name for name in trainable if name in maximised))
        if not shared:
            raise InvalidValueError(
                f"{type(module).__name__} has no shared trainable parameters: there is nothing to federate."
            )
        shapes = {name: p.shape for name, p in trainable.items()}
        self.shared = _layout(shared, shapes, minimised=len(minimised))
        self.personal = _layout(
            tuple(name for name in trainable if name in personal and name not in self._absent), shapes
        )
        buffers = {
            name: buffer
            for name, buffer in module.named_buffers()
            if not any(is_under(name, prefix) for prefix in absent)
        }
        self.buffers = _layout(tuple(buffers), {name: b.shape for name, b in buffers.items()})

    def spread(
        self, value: PerBlock, name: str, like: Tensor, both: bool = True
    ) -> tuple[float | Tensor, float | Tensor]:
        """Return a hyper-parameter for the shared and for the personal block, as :meth:`Layout.spread` does.

        Prefixes may name parameters of either block; those of the personal one need no value unless ``both`` have one.
        """
        shared, personal, absent = self.shared, self.personal, self._absent
        value_there = personal.spread(value, name, like, (*shared.names, *absent)) if both else 0.0
        return shared.spread(value, name, like, (*personal.names, *absent)), value_there

    def of_active(self, module: nn.Module) -> ParameterSpace:
        """Return the space of the architecture that is active in ``module`` now."""
        return ParameterSpace(module, *self._prefixes, self._constants)

    def stay(self) -> Tensor:
        """Return which elements of the buffers belong to layers with personal parameters, ``[b]`` bool."""
        own = [self._stays(name) for name in self.buffers.names]
        return torch.tensor(own, dtype=torch.bool).repeat_interleave(torch.tensor(self.buffers.sizes, dtype=torch.long))

    @property
    def travelling_buffers(self) -> tuple[str, ...]:
        """Names of the buffers outside layers with personal parameters."""
        return tuple(name for name in self.buffers.names if not self._stays(name))

    def _stays(self, buffer: str) -> bool:
        """Return whether a buffer's layer is personal: by its name, or because all its own parameters are."""
        layer = buffer.rpartition(".")[0]
        shared, personal = (
            any(layer and name.rpartition(".")[0] == layer for name in block.names)
            for block in (self.shared, self.personal)
        )
        return any(is_under(buffer, prefix) for prefix in self._prefixes[1]) or (personal and not shared)

    def restrict_buffers(self, names: Iterable[str]) -> None:
        """Keep only the named buffers in :attr:`buffers`, namely the buffers that the objective changes."""
        kept = set(names)
        shapes = dict(zip(self.buffers.names, self.buffers.shapes, strict=True))
        self.buffers = _layout(tuple(name for name in self.buffers.names if name in kept), shapes)


def read(layout: Layout, module: nn.Module, like: Tensor | None = None) -> Tensor:
    """Return the values of a layout's tensors in ``module`` as a new vector ``[d]``.

    Args:
        layout: Names the tensors.
        module: Holds the tensors as parameters or buffers.
        like: Gives dtype and device of the vector (buffers may hold integers); by default a parameter that is trained.
    """
    tensors = _tensors(layout, module)
    like = next(iter(tensors), first_trained(module)) if like is None else like  # frozen ones may differ in dtype
    if not tensors:
        return like.new_empty(0)
    return torch.cat([tensor.detach().reshape(-1).to(like) for tensor in tensors])


def write(layout: Layout, module: nn.Module, vector: Tensor) -> None:
    """Copy ``vector [d]`` into the layout's tensors in ``module``, rounding for integer tensors."""
    if not layout.names:
        return
    views = layout.views(vector)
    with torch.no_grad():
        for name, tensor in zip(layout.names, _tensors(layout, module), strict=True):
            value = views[name]
            tensor.copy_(value if tensor.is_floating_point() else value.round())


def _tensors(layout: Layout, module: nn.Module) -> list[Tensor]:
    known = dict(module.named_parameters()) | dict(module.named_buffers())
    if gone := [name for name in layout.names if name not in known]:
        raise UsageError(
            f"{type(module).__name__} has no '{gone[0]}' any more, which the fit began with: what is trained cannot be "
            "replaced during a fit. Replace it before, and fit anew."
        )
    return [known[name] for name in layout.names]


def _layout(names: tuple[str, ...], shapes: Mapping[str, torch.Size], minimised: int | None = None) -> Layout:
    return Layout(names, tuple(shapes[name] for name in names), len(names) if minimised is None else minimised)


def is_under(name: str, prefix: str) -> bool:
    """Return whether a dotted name equals ``prefix`` or lies below it."""
    return name == prefix or name.startswith(f"{prefix}.")


def _parts(name: str) -> list[str]:
    return name.split(".")


def names_under(prefix: str, names: Iterable[str], argument: str, kind: str = "trainable parameter") -> set[str]:
    """Return the names that equal ``prefix`` or lie below it; ``argument`` and ``kind`` are for messages.

    Raises:
        TypeError: If the prefix is no string.
        ValueError: If no name matches; the message suggests a similar name.
    """
    names = list(names)
    if not isinstance(prefix, str):
        raise InvalidTypeError(
            f"{argument}: {prefix!r} is no name prefix. Give the dotted name of a parameter or module."
        )
    found = {name for name in names if is_under(name, prefix)}
    if not found:
        prefixes = {".".join(parts[:end]) for parts in map(_parts, names) for end in range(1, len(parts) + 1)}
        hint = get_close_matches(prefix, sorted(prefixes), n=1)
        known = ", ".join(f"'{head}'" for head in dict.fromkeys(_parts(name)[0] for name in names)) or "none"
        raise InvalidValueError(
            f"{argument}: '{prefix}' matches no {kind}. "
            + (f"Did you mean '{hint[0]}'? " if hint else "")
            + f"Names begin with: {known}."
        )
    return found


def _other_names(module: nn.Module, trainable: Mapping[str, nn.Parameter]) -> dict[str, str]:
    """Return the further names of tied parameters, each with the name that counts."""
    first = {id(p): name for name, p in trainable.items()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in every if name not in trainable and id(p) in first}


def _match(
    prefixes: Iterable[str],
    parameters: Mapping[str, nn.Parameter],
    tied: Mapping[str, str],
    frozen: Sequence[str],
    argument: str,
) -> set[str]:
    if isinstance(prefixes, str):
        raise InvalidValueError(f"{argument}={prefixes!r}: expected a sequence of name prefixes, e.g. ({prefixes!r},).")
    if not isinstance(prefixes, Iterable):
        raise InvalidValueError(f"{argument}={prefixes!r}: expected a sequence of name prefixes; () for none.")
    found: set[str] = set()
    for prefix in prefixes:
        if isinstance(prefix, str) and not any(is_under(name, prefix) for name in parameters):
            if other := next((name for name in tied if is_under(name, prefix)), None):
                raise InvalidValueError(
                    f"{argument}: '{prefix}' names no parameter of its own: '{other}' is tied to '{tied[other]}'. "
                    "Give that name."
                )
            if other := next((name for name in frozen if is_under(name, prefix)), None):
                raise InvalidValueError(
                    f"{argument}: '{prefix}' names frozen parameters alone, such as '{other}', which are not trained. "
                    "Leave it out, or thaw them with requires_grad_(True)."
                )
        found |= names_under(prefix, parameters, argument)
    for prefix in prefixes:
        if other := next((name for name in tied if is_under(name, prefix) and tied[name] not in found), None):
            raise InvalidValueError(
                f"{argument}: '{other}' under '{prefix}' is tied to '{tied[other]}', which no prefix names, so it "
                "would be left out. Give that name, too."
            )
    return found
