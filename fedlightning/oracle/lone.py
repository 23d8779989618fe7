"""The operator of one client in operations that can be replayed, without ``vmap``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedlightning.oracle.base import Blocks, Evaluation
from fedlightning.oracle.differentiation import differentiate
from fedlightning.oracle.layers.lone_layers import LoneLayers
from fedlightning.oracle.objective import Objective
from fedlightning.oracle.refused import HIDDEN_READS, SEEN_READS, Refused


def of_one(
    objective: Objective,
    w: Tensor,
    v: Tensor,
    b: Tensor,
    data: Any,
    blocks: Blocks = "both",
    stands_for_others: bool = False,
) -> Evaluation:
    """Compute the operator of one client, ``[1, d]``.

    Args:
        objective: The objective. It must not take numbers out of tensors behind the recorder's back, as ``numpy`` does.
        w: The point, ``[d]``.
        v: The personal block, ``[p]``.
        b: Buffers, ``[b]``.
        data: The client's minibatch.
        blocks: The gradients to compute.
        stands_for_others: Whether the operations will be those of all clients, so that no number may be read at all.

    Raises:
        UsageError: If the objective reads numbers of a tensor.
    """
    refused = HIDDEN_READS | SEEN_READS if stands_for_others else HIDDEN_READS

    def forward(*arguments: Any) -> Any:
        with Refused(refused), LoneLayers(channels_last=objective.autocast.on_cpu):
            return objective(*arguments)

    return differentiate(objective, forward, w, v, b, data, blocks, refused)
