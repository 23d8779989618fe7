"""A word on clients' steps that move parameters without a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.parameter_space import Layout, ParameterSpace
from fedlightning.local.optimizers import LocalOptimizer
from fedlightning.local.torch_optimizers import OptimizerCallable, last_move
from fedlightning.oracle.effects.rest import Rest


class AtRest:
    """Looks, chunk by chunk, whether local steps move parameters that a client's losses do not depend on.

    An optimizer of torch steps over a parameter that has no gradient. A client's operator is a vector of all
    parameters, zero where the loss does not depend on them; weight decay acts there as everywhere, and so does what an
    optimizer remembers of the same client's earlier gradients.
    """

    def __init__(self, objective: str, space: ParameterSpace) -> None:
        """Begin before the first round.

        Args:
            objective: What messages call the objective.
            space: The parameters of the task.
        """
        self._objective, self._space = objective, space
        self._of_client: dict[int, Rest] = {}  # of optimizers whose memory goes on from round to round
        self._faults: list[_Fault] | None = None  # of the optimizer, once it is asked
        self._told: set[str] = set()

    def look(self, algorithm: Algorithm, rest: Rest, clients: Iterable[int], z: Tensor) -> None:
        """Warn if steps move parameters at rest, and begin anew with what the next chunk shows.

        Args:
            algorithm: Bound to the task's parameters.
            rest: Of which parameters the losses of these clients have depended.
            clients: Computed by the same operations; one alone where they may differ.
            z: Shared parameters, ``[d]``.
        """
        optimizer = _optimizer_of(algorithm)
        if optimizer is not None:
            for each in self._with_memory(rest, clients) if _keeps_memory(algorithm) else [rest]:
                if each.without:
                    self._warn(each, optimizer, algorithm, z)
        rest.forget()

    def _with_memory(self, rest: Rest, clients: Iterable[int]) -> list[Rest]:
        """Return what is known of each client since its optimizer's memory began, now that this is seen, too."""
        known = [self._of_client.setdefault(client, Rest()) for client in clients]
        for each in known:
            each.include(rest)
        return known

    def _warn(self, rest: Rest, optimizer: OptimizerCallable | LocalOptimizer, algorithm: Algorithm, z: Tensor) -> None:
        """Warn of parameters at rest that no warning has named yet."""
        shared, personal = self._space.shared, self._space.personal
        if self._faults is None:
            self._faults = list(_faults_of(optimizer, z, shared))
            own = optimizer.personal if isinstance(optimizer, LocalOptimizer) else None  # others leave that block alone
            if own is not None and personal.dim and not _is_zero(getattr(algorithm, "personal_lr", 0.0)):
                self._faults += _faults_of(own, z.new_ones(personal.dim), personal)
        for fault in self._faults:
            found = fault.names & rest.without
            if fault.needs_motion:
                found &= rest.having
            if new := [name for name in (*shared.names, *personal.names) if name in found - self._told]:
                self._told |= found
                _tell(self._objective, new, fault)


def _is_zero(lr: float | Tensor) -> bool:
    return not isinstance(lr, Tensor) and lr == 0.0


@dataclass(frozen=True)
class _Fault:
    """Describes what an optimizer does to parameters at rest.

    Attributes:
        what: The beginning of a sentence about them.
        remedy: What to do.
        names: The parameters.
        needs_motion: Whether it does so only after they have had gradients.
    """

    what: str
    remedy: str
    names: set[str]
    needs_motion: bool


def _faults_of(optimizer: OptimizerCallable | LocalOptimizer, z: Tensor, layout: Layout) -> Iterator[_Fault]:
    """Yield what an optimizer does to parameters at rest, by trial steps."""
    at_once, later, again, after_rest = (
        layout.views(last_move(optimizer, z, gradients))
        for gradients in ([0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 0.0, 1.0])
    )
    decayed = {name for name in layout.names if at_once[name].any()}
    moved = {name for name in layout.names if later[name].any()}
    faded = {name for name in layout.names if not torch.allclose(after_rest[name], again[name])}
    without = "take SGD without momentum"
    yield _Fault("the weight decay of the clients' steps moves", "give them no weight decay", decayed, False)
    yield _Fault("the momentum of the clients' steps moves", without, moved, True)
    yield _Fault("what the clients' optimizer remembers fades for", without, faded, True)


def _optimizer_of(algorithm: Algorithm) -> OptimizerCallable | LocalOptimizer | None:
    """Return what takes the clients' steps in place of plain ones, the algorithm's own or its solver's."""
    own = getattr(algorithm, "local_optimizer", None)
    return getattr(getattr(algorithm, "solver", None), "optimizer", None) if own is None else own


def _keeps_memory(algorithm: Algorithm) -> bool:
    """Return whether what the optimizers of clients remember goes on from round to round."""
    return "local_optimizer" in algorithm.state_depends_on


def _tell(objective: str, names: Sequence[str], fault: _Fault) -> None:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    rank_zero_warn(
        f"{objective}: the loss does not always depend on '{names[0]}'{more}, and {fault.what} such "
        "parameters all the same; an optimizer of torch leaves them as they are while they have no gradient. Freeze "
        f"them with requires_grad_(False), or {fault.remedy}."
    )
