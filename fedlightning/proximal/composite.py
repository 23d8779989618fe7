"""ψ over the flat vector of a model's parameters: which regularizer applies to which part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.parameter_space import Layout, is_under, names_under
from fedlightning.proximal.base import Regularizer, Weight

Regularizers = Regularizer | Mapping[str, Regularizer | None] | None
"""One regularizer for a whole block, or one by name prefix (None for no regularizer there); the longest prefix wins,
``default`` covers the rest, and without it parameters under no prefix have none."""


@dataclass(frozen=True)
class Term:
    """Applies one regularizer to one stretch of the vector.

    Attributes:
        start: Where it begins.
        stop: Where it ends.
        shape: What the stretch is viewed as: ``[n]``, or ``[m, n]`` for functions of matrices.
        regularizer: ψ of this stretch.
    """

    start: int
    stop: int
    shape: tuple[int, ...]
    regularizer: Regularizer


@dataclass(frozen=True)
class Composite:
    """Adds ψ(z) = ψ₁(x) + ψ₂(y) for points ``z [..., d]``, or nothing if there are no terms.

    In operator form both blocks are minimised over, so ψ₂ appears with the sign of ψ₁.
    """

    terms: tuple[Term, ...] = ()

    def __bool__(self) -> bool:
        """Return whether anything is regularized."""
        return bool(self.terms)

    def value(self, z: Tensor) -> Tensor:
        """Return ψ(z), a scalar, for ``z [d]``."""
        zero = z.new_zeros(())
        return sum((term.regularizer.value(z[term.start : term.stop].view(term.shape)) for term in self.terms), zero)

    def prox(self, z: Tensor, t: Weight) -> Tensor:
        """Return the minimiser of t * ψ(u) + 1/2 ||u - z||^2.

        Args:
            z: ``[..., d]``.
            t: A number or a vector ``[d]`` (step sizes by block or prefix).
        """
        return self._map(z, lambda term, part: term.regularizer.prox(part, _weight(t, term)))

    def project(self, z: Tensor) -> Tensor:
        """Return the nearest point of the constraint."""
        return self._map(z, lambda term, part: term.regularizer.project(part))

    def start(self, z: Tensor) -> Tensor:
        """Return where methods that step in the dual space start: in the constraint, off inescapable boundaries."""
        return self._map(z, lambda term, part: term.regularizer.start(part))

    def subgradient(self, z: Tensor) -> Tensor:
        """Return a subgradient of ψ, ``[..., d]``, which is zero where nothing is regularized."""
        return self._map(z, lambda term, part: term.regularizer.subgradient(part), rest=torch.zeros_like)

    def to_dual(self, z: Tensor) -> Tensor:
        """Return the dual image of points."""
        return self._map(z, lambda term, part: term.regularizer.to_dual(part))

    def from_dual(self, dual: Tensor, t: Weight) -> Tensor:
        """Return the points whose dual image, with ψ taken t times, is ``dual``."""
        return self._map(dual, lambda term, part: term.regularizer.from_dual(part, _weight(t, term)))

    def _map(
        self, z: Tensor, apply: Callable[[Term, Tensor], Tensor], rest: Callable[[Tensor], Tensor] = torch.clone
    ) -> Tensor:
        if not self.terms:
            return rest(z)
        lead = z.shape[:-1]

        def applied(term: Term) -> Tensor:
            part = z[..., term.start : term.stop]
            if term.regularizer.separable:
                return apply(term, part.reshape(*lead, *term.shape)).reshape(part.shape)
            finite = part.isfinite().all(-1, keepdim=True)  # decompositions and sorts stumble over a client's NaN
            clean = part if bool(finite.all()) else torch.where(finite, part, 0.0)
            value = apply(term, clean.reshape(*lead, *term.shape)).reshape(part.shape)
            return value if clean is part else torch.where(finite, value, torch.nan)

        if len(self.terms) == 1 and self.terms[0].stop - self.terms[0].start == z.shape[-1]:
            return applied(self.terms[0])
        result = rest(z)
        for term in self.terms:
            result[..., term.start : term.stop] = applied(term)
        return result


def compose(
    layout: Layout, regularizer: Regularizers, max_regularizer: Regularizers, personal: Iterable[str] = ()
) -> Composite:
    """Return the ψ of a model.

    Args:
        layout: Names and shapes of the shared parameters.
        regularizer: ψ₁, of the min block.
        max_regularizer: ψ₂, of the max block.
        personal: Names of the personal parameters, which have no regularizer.

    Raises:
        TypeError: If something is no regularizer.
        ValueError: If a prefix matches nothing in its block, the block is empty, or a function of matrices meets a
            vector.
    """
    minimised, maximised = layout.names[: layout.minimised], layout.names[layout.minimised :]
    elsewhere = dict.fromkeys(personal, "is personal: add its penalty in objective()")
    chosen = {
        **_by_name(
            regularizer,
            minimised,
            "regularizer",
            elsewhere | dict.fromkeys(maximised, "is maximised: give it to max_regularizer"),
        ),
        **_by_name(
            max_regularizer,
            maximised,
            "max_regularizer",
            elsewhere | dict.fromkeys(minimised, "is minimised: give it to regularizer"),
        ),
    }
    terms: list[Term] = []
    start = 0
    for name, shape, size in zip(layout.names, layout.shapes, layout.sizes, strict=True):
        regularizer = chosen.get(name)
        if regularizer is not None and size:
            last = terms[-1] if terms else None
            if regularizer.separable and last is not None and last.regularizer is regularizer and last.stop == start:
                terms[-1] = Term(last.start, start + size, (start + size - last.start,), regularizer)
            else:
                terms.append(Term(start, start + size, _shape(regularizer, name, shape), regularizer))
        start += size
    return Composite(tuple(terms))


def _by_name(
    regularizer: Regularizers, names: Iterable[str], argument: str, elsewhere: Mapping[str, str]
) -> dict[str, Regularizer | None]:
    """Return the regularizer of each name, where the longest prefix wins.

    ``elsewhere`` says of names in other blocks where they are and what to do.
    """
    names = list(names)
    if regularizer is None:
        return {}
    given = regularizer.values() if isinstance(regularizer, Mapping) else [regularizer]
    if wrong := [value for value in given if value is not None and not isinstance(value, Regularizer)]:
        raise InvalidTypeError(
            f"{argument}: {wrong[0]!r} is no regulariser. Give one, e.g. L1(0.01), or one by name prefix, "
            "{prefix: L1(0.01)}."
        )
    if not names:
        raise InvalidValueError(
            f"{argument}: the task has no parameters in this block. Remove it, or set max_parameters."
        )
    if isinstance(regularizer, Regularizer):
        return dict.fromkeys(names, regularizer)
    found: dict[str, Regularizer | None] = {}
    for prefix in sorted(regularizer, key=lambda prefix: (prefix != "default", len(prefix))):
        if prefix != "default" and not any(is_under(name, prefix) for name in names):
            for name, reason in elsewhere.items():
                if is_under(name, prefix):
                    raise InvalidValueError(f"{argument}: '{prefix}' {reason}.")
        under = names if prefix == "default" else names_under(prefix, names, argument=argument)
        found |= dict.fromkeys(under, regularizer[prefix])
    return found


def _shape(regularizer: Regularizer, name: str, shape: torch.Size) -> tuple[int, ...]:
    if not regularizer.matrices:
        return (prod(shape),)
    if len(shape) < 2:
        raise InvalidValueError(
            f"{type(regularizer).__name__} is a function of matrices, but parameter '{name}' has shape {list(shape)}. "
            "Name the matrices it is for: {prefix: regulariser}."
        )
    return (shape[0], prod(shape[1:]))


def _weight(t: Weight, term: Term) -> Weight:
    """Return the step size of one stretch, which is one number unless ψ is a sum over elements."""
    if not isinstance(t, Tensor) or t.dim() == 0:
        return t
    return t[term.start : term.stop] if term.regularizer.separable else t[term.start]
