"""The rounds of a module that many clients train by its training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedlightning.federation.loop import RoundResult
from fedlightning.tasks.federated.step import LOGGED
from fedlightning.tasks.rounds import TrainingRounds

_TALLIED = f"train_{LOGGED}"


class ModuleRounds(TrainingRounds):
    """Carries out rounds, and reports what training steps log under the module's own names."""

    def carry_out(self, batch: Any) -> RoundResult:
        """Carry out one communication round; see :meth:`TrainingRounds.carry_out`."""
        result = super().carry_out(batch)
        return replace(result, metrics=named_as_logged(result.metrics))


def named_as_logged(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a round with logged values under the names that the module gave them."""
    own = {name: value for name, value in metrics.items() if not name.startswith(_TALLIED)}
    logged = {name.removeprefix(_TALLIED): value for name, value in metrics.items() if name.startswith(_TALLIED)}
    return {**own, **logged}
