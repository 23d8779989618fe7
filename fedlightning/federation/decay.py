"""A warning of weight decay that moves parameters without a gradient."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.parameter_space import Layout
from fedlightning.local.descent import step_at_rest


def warn_of_decay(task: str, algorithm: Algorithm, without_gradient: Sequence[str], z: Tensor, layout: Layout) -> None:
    """Warn if local steps move parameters that the loss does not depend on.

    An optimizer of torch steps over a parameter that has no gradient. A client's operator is a vector of all
    parameters, zero where the loss does not depend on them, and decay acts there as everywhere.

    Args:
        task: Name of the task.
        algorithm: Bound to the task's parameters.
        without_gradient: Names of the parameters.
        z: Shared parameters, ``[d]``.
        layout: Where each of them lies in ``z``.
    """
    optimizer = getattr(algorithm, "local_optimizer", None)
    if not without_gradient or optimizer is None:
        return
    moves = layout.views(step_at_rest(optimizer, z))
    moved = [name for name in without_gradient if moves[name].any()]
    if not moved:
        return
    more = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
    rank_zero_warn(
        f"{task}: the loss of the first minibatch does not depend on '{moved[0]}'{more}, on which the weight decay of "
        "the clients' steps acts all the same; an optimizer of torch leaves such parameters as they are. Freeze them "
        "with requires_grad_(False), or give them no weight decay."
    )
