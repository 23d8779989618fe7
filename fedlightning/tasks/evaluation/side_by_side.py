"""Predictions of several clients' models as one batched operation, for tasks that allow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.data.evaluation import EvaluationPart
from fedlightning.federation.protocol import EvaluationRequest
from fedlightning.oracle.predictions import ClientPredictions, NotBatchableError


class SideBySide:
    """Computes the predictions of several clients at once until a task turns out not to allow it."""

    def __init__(self) -> None:
        self._by_architecture: dict[str, ClientPredictions] = {}
        self._refused = False

    def forget_models(self) -> None:
        """Drop what was prepared for the models of an earlier evaluation."""
        self._by_architecture = {}

    def predict(self, task: Any, request: EvaluationRequest, parts: Sequence[EvaluationPart], batch: Any) -> Any:
        """Compute the predictions of S clients, each with its own model.

        Args:
            task: A :class:`~fedlightning.BatchedEvaluationTask`.
            request: Has the global model.
            parts: Whose samples they are, S clients of one architecture.
            batch: Samples, leaves ``[S, B, ...]``.

        Returns:
            Predictions, leaves ``[S, B, ...]``; None if they have to be computed one client after the other.
        """
        if self._refused or not task.run.exists:
            return None
        simulation = task.run.simulation
        try:
            choice = TaskArchitectures(task)
            architecture = choice.of(parts[0].client)
            with choice.activated(architecture):
                if architecture not in self._by_architecture:
                    self._by_architecture[architecture] = ClientPredictions(task, simulation.space_of(architecture))
                clients, own = [part.client for part in parts], parts[0].model == "own"
                w, v, b = simulation.models(clients, own, request)
                return self._by_architecture[architecture](w, v, b, batch)
        except NotBatchableError as refusal:
            self._refused = True
            rank_zero_info(
                f"{type(task).__name__}.predictions cannot run for many clients at once; they are evaluated one "
                f"after the other: {refusal}"
            )
            return None
