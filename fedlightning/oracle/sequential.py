"""One client after the other."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from fedlightning.nested import map_tensors
from fedlightning.oracle.base import Blocks, Cost, Evaluate, Evaluation, Oracle, differentiate
from fedlightning.oracle.layers import ChannelsLast
from fedlightning.oracle.objective import Objective


@dataclass(frozen=True)
class Sequential(Oracle):
    """Train one client after the other: any Python in the objective, least memory, fastest for large models on CPUs."""

    def chunk(self, cost: Cost) -> int:
        """One client."""
        return 1

    def evaluator(self, objective: Objective, calls: int) -> Evaluate:
        """Plain autograd for each row."""

        def forward(*arguments: Any) -> Any:
            with ChannelsLast() if objective.autocast.on_cpu else nullcontext():
                return objective(*arguments)

        def evaluate(w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both") -> Evaluation:
            rows = []
            for i in range(len(w)):
                own = map_tensors(itemgetter(i), data)
                rows.append(differentiate(objective, forward, w[i], v[i], b[i], own, blocks))
            return rows[0] if len(rows) == 1 else _stack(rows)

        return evaluate


def _stack(rows: list[Evaluation]) -> Evaluation:
    return Evaluation(
        torch.cat([row.g for row in rows]),
        torch.cat([row.g_personal for row in rows]),
        torch.cat([row.buffers for row in rows]),
        torch.cat([row.loss for row in rows]),
        {name: torch.cat([row.scalars[name] for row in rows]) for name in rows[0].scalars},
    )
