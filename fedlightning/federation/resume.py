"""The rules by which a run with other hyper-parameters may continue from the states of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.in_force import scheduled
from fedlightning.core.serialisation import NotPlainError, UntrustedClassError, from_config, shown, to_config
from fedlightning.core.validation import numbers_of_a_round
from fedlightning.federation.validation import shapes_of

START_ANEW = (
    "start anew without ckpt_path (from Python also from the weights alone, "
    "task.load_state_dict(checkpoint['state_dict']))"
)
"""The remedy that is left where states do not fit: what to do without the file."""

_NAMES = {"regularizer": "regularizers"}


@dataclass(frozen=True)
class Dependencies:
    """Knows the hyper-parameters without which the states of a run cannot be interpreted.

    Most hyper-parameters may change from one round to the next, so a run may resume with other values. Hyper-parameters
    that went into what the server has accumulated may not change, unless the algorithm can make the state fit.

    Attributes:
        given: The algorithm as the user gave it, with numbers in place of schedules.
        bound: The same algorithm, bound to the task's parameters.
        weighting: How clients are weighted in means.
    """

    given: Algorithm
    bound: Algorithm
    weighting: str

    @property
    def values(self) -> dict[str, Any]:
        """Names and values of these hyper-parameters in plain types, for a checkpoint."""
        values: dict[str, Any] = {"weighting": self.weighting} if self.bound.accumulates else {}
        for name in self.bound.state_depends_on:
            with suppress(NotPlainError):  # a user's own regularizer may have no plain form
                values[name] = to_config(getattr(self.bound if name == "regularizer" else self.given, name))
        return values

    def algorithm_of(self, stored: Mapping[str, Any], bind: Callable[[Algorithm], Algorithm], z: Tensor) -> Algorithm:
        """Return the algorithm bound with a checkpoint's hyper-parameters; ``bound`` itself if these mean the same.

        Args:
            stored: :attr:`values` of the checkpoint; empty for checkpoints of older versions.
            bind: Binds an algorithm to the task's parameters.
            z: ``[d]``, the task's initial parameters.

        Raises:
            ValueError: If the weighting, the regularizer or the shapes of the client states differ, so that the states
                cannot be made to fit.
        """
        differing = self._differing(stored)
        if not differing:
            return self.bound
        if differing.keys() & {"weighting", "regularizer"}:
            raise self.refusal(stored)
        with numbers_of_a_round():
            try:
                values = from_config(differing, place="federation.depends_on")
            except UntrustedClassError:
                raise self.refusal(stored) from None
            before = bind(replace(self.given, **values))  # type: ignore[type-var]
        if all(_alike(getattr(before, name), getattr(self.bound, name)) for name in differing):
            return self.bound  # one value, spelt in two ways
        if shapes_of(before.init_client(z)) != shapes_of(self.bound.init_client(z)):
            raise self.refusal(stored)
        return before

    def vary(self, stored: Mapping[str, Any]) -> bool:
        """Return whether all hyper-parameters that a checkpoint has other values of have a schedule in this run.

        If so, rounds make the state fit anyway, from one value to the next.
        """
        binding = self.bound.binding
        return binding is not None and self._differing(stored).keys() <= scheduled(binding.given).keys()

    def refusal(self, stored: Mapping[str, Any]) -> InvalidValueError:
        """Build the error for a run that resumes with hyper-parameters that do not fit the states."""
        then, now = self.compared(stored)
        return InvalidValueError(
            f"The checkpoint's states were computed with {then}, this run has {now}: "
            f"{type(self.bound).__name__} cannot go on from them, it would end at a wrong point. Resume with {then}, "
            f"or {START_ANEW}."
        )

    def compared(self, stored: Mapping[str, Any]) -> tuple[str, str]:
        """Return the differing hyper-parameters as text, with the checkpoint's values and with this run's values."""
        names, present = self._differing(stored), self.values
        then, now = (
            ", ".join(f"{_NAMES.get(name, name)}={shown(values[name])}" for name in names)
            for values in (stored, present)
        )
        return then, now

    def _differing(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        return {name: stored[name] for name, value in self.values.items() if stored.get(name, value) != value}


def require_same_shared(stored: Sequence[str] | None, names: Sequence[str]) -> None:
    """Make sure that the numbers of a checkpoint's vectors are of the parameters that this run takes them for.

    Args:
        stored: Names of the shared parameters there, in order; None in files written before these were noted.
        names: Names of the shared parameters here, in order.

    Raises:
        ValueError: If they differ.
    """
    if stored is None or [*stored] == [*names]:
        return
    moved = next((name for name in (*stored, *names) if (name in stored) != (name in names)), None)
    if moved is None:
        was, now = next(pair for pair in zip(stored, names, strict=True) if pair[0] != pair[1])
        what = f"with its shared parameters in another order, '{was}' where this run has '{now}'"
        remedy = "the same max_parameters and layers defined in the same order"
    else:
        was, now = ("among", "not among") if moved in stored else ("not among", "among")
        what = f"with '{moved}' {was} the shared parameters that are trained, now it is {now} them"
        remedy = "the same model and the same parameters in optimizers and requires_grad"
    raise InvalidValueError(f"The checkpoint was trained {what}. Resume with {remedy}, or {START_ANEW}.")


def _alike(one: Any, other: Any) -> bool:
    """Return whether two bound algorithms have equal values of a hyper-parameter, a number or a vector."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return one is not None and other is not None and bool((torch.as_tensor(one) == torch.as_tensor(other)).all())
    return bool(one == other)
