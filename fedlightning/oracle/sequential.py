"""Computation of operators for one client after the other."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from fedlightning.core.seeding import seed_device
from fedlightning.core.tree import map_tensors
from fedlightning.core.validation import require
from fedlightning.oracle.base import Blocks, ClientBatching, Cost, Evaluate, Evaluation, differentiate
from fedlightning.oracle.lone_layers import LoneLayers
from fedlightning.oracle.objective import Objective, ObjectiveError, writes_into
from fedlightning.oracle.randomness import Randomness, seed_python


@dataclass(frozen=True)
class Sequential(ClientBatching):
    """Computes one client after the other, which needs least memory and is fastest for large models on CPUs.

    The objective may contain any Python code, and keep in Python what it likes: every client's evaluation runs by
    itself, with random numbers of ``random`` and NumPy of its own.

    Args:
        threads: Number of threads that compute; null for as many as PyTorch takes.
    """

    threads: int | None = None

    def __post_init__(self) -> None:
        require(self, "threads", at_least=1, optional=True)

    def chunk(self, cost: Cost) -> int:
        """Return 1, because clients are computed one by one."""
        return 1

    def evaluator(self, objective: Objective, calls: int) -> Evaluate:
        """Return a function that applies plain autograd to each client; every failure is the objective's own error."""

        def forward(*arguments: Any) -> Any:
            with LoneLayers(channels_last=objective.autocast.on_cpu):
                return objective(*arguments)

        def evaluate(
            w: Tensor,
            v: Tensor,
            b: Tensor,
            data: Any,
            blocks: Blocks = "both",
            randomness: Randomness | None = None,
        ) -> Evaluation:
            rows = []
            version = w._version, v._version
            seeds = None if randomness is None else randomness.seeds()
            for i in range(len(w)):
                own = map_tensors(itemgetter(i), data)
                if seeds is not None:
                    seed_device(w.device, seeds[i])
                    seed_python(seeds[i])  # it may begin to draw from Python at any time
                try:
                    rows.append(differentiate(objective, forward, w[i], v[i], b[i], own, blocks))
                except ObjectiveError:
                    raise
                except Exception as error:
                    raise ObjectiveError(f"{type(error).__name__}: {error}", place=i) from error
                if (w._version, v._version) != version:
                    raise writes_into(objective.name, None, place=i)
            return rows[0] if len(rows) == 1 else _stack(rows)

        return evaluate


def _stack(rows: list[Evaluation]) -> Evaluation:
    for row in rows:
        if odd := sorted(row.scalars.keys() ^ rows[0].scalars.keys()):
            raise ObjectiveError(
                f"objective returned '{odd[0]}' for some clients of a round only. Return the same keys every time, "
                "e.g. with the value 0."
            )
    return Evaluation(
        torch.cat([row.g for row in rows]),
        torch.cat([row.g_personal for row in rows]),
        torch.cat([row.buffers for row in rows]),
        torch.cat([row.loss for row in rows]),
        {name: torch.cat([row.scalars[name] for row in rows]) for name in rows[0].scalars},
    )
