"""A warning of clients' steps that move parameters without a gradient."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.parameter_space import Layout
from fedlightning.local.descent import step_at_rest
from fedlightning.oracle.rest import Rest


def warn_of_steps_at_rest(task: str, algorithm: Algorithm, rest: Rest, z: Tensor, layout: Layout) -> None:
    """Warn if local steps move shared parameters while the loss does not depend on them.

    An optimizer of torch steps over a parameter that has no gradient. A client's operator is a vector of all
    parameters, zero where the loss does not depend on them; weight decay acts there as everywhere, and so does what an
    optimizer remembers of earlier gradients.

    Args:
        task: Name of the task.
        algorithm: Bound to the task's parameters.
        rest: Of which parameters losses have depended since the optimizer's memory began.
        z: Shared parameters, ``[d]``.
        layout: Where each of them lies in ``z``.
    """
    optimizer = getattr(algorithm, "local_optimizer", None)
    without = [name for name in layout.names if name in rest.without]
    if not without or optimizer is None:
        return
    decays, remembers = (layout.views(step_at_rest(optimizer, z, after_motion)) for after_motion in (False, True))
    if decayed := [name for name in without if decays[name].any()]:
        _warn(task, decayed, "the weight decay", "give them no weight decay")
    elif kept := [name for name in without if name in rest.having and remembers[name].any()]:
        _warn(task, kept, "the momentum", "take SGD without momentum")


def keeps_memory(algorithm: Algorithm) -> bool:
    """Return whether what the optimizers of clients remember goes on from round to round."""
    return "local_optimizer" in algorithm.state_depends_on


def _warn(task: str, names: Sequence[str], what: str, remedy: str) -> None:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    rank_zero_warn(
        f"{task}: the loss does not always depend on '{names[0]}'{more}, and {what} of the clients' steps moves such "
        "parameters all the same; an optimizer of torch leaves them as they are while they have no gradient. Freeze "
        f"them with requires_grad_(False), or {remedy}."
    )
