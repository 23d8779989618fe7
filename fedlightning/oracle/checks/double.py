"""The comparison in float64 beside the one in the precision of training.

In float32 two right ways differ by rounding, under 16-bit autocast by per cents of a gradient, and a wrong way may
hide there: a penalty of weight 1e-5 that vmap drops. In float64 it cannot. Parameters, buffers, constants and batches
are converted for this comparison alone; the task keeps its own, and training goes on in its own precision.

An objective may still compute some parts in float32. Wherever such numbers meet those in float64 the tolerance is that
of float32, as it is where an operation of the user's own may compute in anything. Coarser parts leave nothing to gain,
and an objective that fails in float64 says nothing of the way it is computed: there is no such comparison then.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedlightning.core.tree import map_tensors
from fedlightning.oracle.base import ClientBatching
from fedlightning.oracle.checks.comparison import Comparison, Sample, Tolerance
from fedlightning.oracle.objective import Autocast, Named, Objective
from fedlightning.oracle.vectorized import Vectorized

MOST_CONSTANTS = 2**30
"""Bytes that frozen parameters and buffers may take in float64; a larger frozen network is not copied."""

STEPS = 2
"""The second step begins with the buffers and attributes that the first one leaves behind."""

MOST_NUMBERS = 2**20
"""Of larger points only one client's are compared, in one step: in float64 they would fill the memory."""

_EPS = torch.finfo(torch.float64).eps
_SINGLE_EPS = torch.finfo(torch.float32).eps

_IN_PART_SINGLE = Tolerance(_SINGLE_EPS, relative=10 * _SINGLE_EPS, summed=10 * _SINGLE_EPS)
"""Both ways round the same numbers to float32, so they differ by less than two ways in float32 alone."""


@dataclass(frozen=True)
class DoubleComparison:
    """Compares other ways with plain evaluation, both in float64.

    Attributes:
        comparison: Holds the values of plain evaluation.
        tolerance: As fine as the coarsest numbers that the objective computes with allow.
    """

    comparison: Comparison
    tolerance: Tolerance

    def __call__(self, oracle: ClientBatching) -> str | None:
        """Return one line of what differs in float64; None if nothing does, or ``oracle`` cannot be evaluated so."""
        eager = _eager(oracle)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                difference = self.comparison.difference(eager, self.tolerance)
            except Exception:  # the way is for the precision of training, and there it has been found right
                return None
        return None if difference is None else f"{difference} (in float64)"


def in_double(objective: Objective, sample: Sample) -> DoubleComparison | None:
    """Make the comparison of a sample in float64; None if the objective does not allow for one.

    Args:
        objective: As it is trained.
        sample: What is compared in the precision of training.
    """
    coarsest = _Coarsest()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            own, steps = (sample, STEPS) if sample.w.numel() <= MOST_NUMBERS else (sample.last(), 1)
            comparison = Comparison(DoubleObjective(objective), _sample_in_double(own), steps)
            comparison.watch(coarsest)
        except Exception:  # an objective that was never meant for float64 may fail in any way
            return None
    if coarsest.eps > _SINGLE_EPS or not comparison.is_finite:
        return None
    return DoubleComparison(comparison, Tolerance.of(_EPS) if coarsest.eps <= _EPS else _IN_PART_SINGLE)


class DoubleObjective(Objective):
    """Evaluates an objective in float64 without autocast, with everything that its task holds converted."""

    def __init__(self, objective: Objective) -> None:
        """Convert what is not trained; what is trained comes with every evaluation.

        Raises:
            MemoryError: If that takes more than :data:`MOST_CONSTANTS`.
        """
        super().__init__(objective.task, objective.space, Autocast(objective.autocast.device_type))
        self.dtype = torch.float64
        self.is_for_comparison = True
        self.changes_batch = objective.changes_batch
        self.draws = objective.draws
        self._tied = True  # buffers may be tied, too
        self._constants = self._constants_in_double()

    def _constants_in_double(self) -> dict[str, Tensor]:
        task, space = self.task, self.space
        given = {*space.shared.names, *space.personal.names, *space.buffers.names}
        held = {**dict(task.named_parameters()), **dict(task.named_buffers())}
        constants = {name: tensor for name, tensor in held.items() if name not in given and _is_real_or_complex(tensor)}
        size = sum(tensor.numel() * _wide(tensor.dtype).itemsize for tensor in constants.values())
        if size > MOST_CONSTANTS:
            raise MemoryError(f"the constants of {self.name} take {size} bytes in float64")
        return {f"task.{name}": _widened(tensor.detach()) for name, tensor in constants.items()}

    def _state(self, shared: Named, personal: Named, buffers: Named) -> dict[str, Tensor]:
        state = self._constants | super()._state(shared, personal, {})
        own = dict(self.task.named_buffers())
        for name, tensor in buffers.items():
            state[f"task.{name}"] = tensor.to(_wide(own[name].dtype), copy=True)
        return state


class _Coarsest(TorchDispatchMode):
    """Notes the coarsest numbers that meet those in float64 in any operation.

    What is computed in any such mode is not to be trusted: the gradient of a complex pseudo-inverse is wrong there.

    Attributes:
        eps: Their relative precision.
    """

    def __init__(self) -> None:
        super().__init__()
        self.eps = _EPS

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        found = {torch.finfo(tensor.dtype).eps for tensor in _numbers(*args, *kwargs.values(), output)}
        if _EPS in found:
            self.eps = max(self.eps, *found, _EPS if func.namespace in ("aten", "prims") else _SINGLE_EPS)
        return output


def _numbers(*values: Any) -> list[Tensor]:
    """Return the tensors of real or complex numbers among an operation's arguments and results."""
    items = [item for value in values for item in (value if isinstance(value, list | tuple) else (value,))]
    return [item for item in items if isinstance(item, Tensor) and _is_real_or_complex(item)]


def _sample_in_double(sample: Sample) -> Sample:
    """Return the same points and batches in float64."""
    data = [map_tensors(_widened, batch) for batch in sample.data]
    return replace(sample, w=sample.w.double(), v=sample.v.double(), b=sample.b.double(), data=data)


def _eager(oracle: ClientBatching) -> ClientBatching:
    """Return the way without compiling or recording, which are compared in the precision of training.

    To compile for float64 as well would take as long again, to record would keep a whole step in memory. Replays of one
    client have no form without a recording, and are compared as they are.
    """
    if not isinstance(oracle, Vectorized) or oracle.backward == "each":
        return oracle
    backward = "vmap" if oracle.compile else oracle.backward
    return replace(oracle, compile=False, replay=False, parts=1, backward=backward)


def _is_real_or_complex(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that tensors of ``dtype`` are converted to: integers stay integers."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(_wide(tensor.dtype))
