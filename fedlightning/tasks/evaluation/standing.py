"""What a task holds where it was changed after the last round, for evaluations of clients' models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fedlightning.core.parameter_space import Layout, read, write
from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.federation.protocol import EvaluationRequest

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule


class Standing:
    """Keeps the model of a task that is no more where the last round left it: averaged, pruned or loaded since.

    The server's point is then not what the user means by the global model, so clients' models are made from this one,
    and it is put back as it was. Of several architectures a task shows one, which is no global model: there clients'
    models are the server's, and what the task shows is put back alone.
    """

    def __init__(self, blocks: Sequence[tuple[Layout, Tensor]], task: FederatedLightningModule) -> None:
        """Store the shared parameters, the personal ones of the start and the buffers, each with its values."""
        (_, self._point), _, (_, self._buffers) = self._blocks = blocks
        self._task, self._architectures = task, TaskArchitectures(task)
        self._architecture = self._architectures.active

    @classmethod
    def of(cls, task: FederatedLightningModule) -> Standing | None:
        """Return what a task holds, and say so, if it was changed since the last round; None if it was not."""
        what = task.run.changed
        if what is None:
            return None
        changed = f"{type(task).__name__}: {what} was changed since the last round."
        architectures = TaskArchitectures(task)
        if architectures:
            rank_zero_warn(f"{changed} Clients' models are those of the rounds.")
        elif task.client_models.exist:
            rank_zero_warn(
                f"{changed} Clients' models are made with the shared parameters as they are now; what clients keep, "
                "whole models among it, is that of the rounds."
            )
        simulation = task.run.simulation
        space, like = simulation.space_of(architectures.active), simulation.server.point
        return cls([(block, read(block, task, like)) for block in (space.shared, space.personal, space.buffers)], task)

    def seen_by(self, request: EvaluationRequest) -> EvaluationRequest:
        """Return a request that has this global model in place of the server's."""
        if self._architectures:
            return request
        return replace(request, point=self._point, buffers=None if request.buffers is None else self._buffers)

    def put_back(self) -> None:
        """Put everything back into the task."""
        self._architectures.activate(self._architecture)
        for block, values in self._blocks:
            write(block, self._task, values)
