"""The state of a task while clients' models are evaluated in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_warn

from fedlightning.core.errors import UsageError
from fedlightning.federation.protocol import ClientValues, EvaluationAnswer, EvaluationRequest, Moment, Precision
from fedlightning.tasks.checks.nodes_measure import require_measurable_at_nodes
from fedlightning.tasks.evaluation.client_evaluation import ClientEvaluation
from fedlightning.tasks.evaluation.side_by_side import SideBySide
from fedlightning.tasks.evaluation.standing import Standing
from fedlightning.tasks.evaluation.unnumbered import UnnumberedLoaders
from fedlightning.tasks.fit.precision import RoundPrecision
from fedlightning.tasks.fit.run import require_client

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule


class EvaluationSession:
    """Puts clients' models into the task one after the other, and records what is logged meanwhile.

    It is the :class:`~fedlightning.federation.transport.Evaluator` of clients in this process. They measure while the
    evaluation loop runs, and the server asks for their answers afterwards.

    Attributes:
        found: What the clients of all processes measured in the last evaluation client by client, by metric.
        reported: Models whose values the evaluation that ends has reported; empty before.
        is_in_every_process: Whether each of several processes goes through all of the data that are evaluated now.
        loaders: Tells the loaders of pooled data apart where the task's step does not.
    """

    def __init__(self, task: FederatedLightningModule) -> None:
        """Start with the global model in the task."""
        self._task = task
        self._side_by_side = SideBySide()
        self._evaluation: ClientEvaluation | None = None
        self._shows_a_client = False
        self._standing: Standing | None = None
        self.found: dict[str, ClientValues] = {}
        self.reported: tuple[str, ...] = ()
        self.is_in_every_process = False
        self.loaders = UnnumberedLoaders()

    @property
    def evaluation(self) -> ClientEvaluation | None:
        """Return the client-by-client evaluation that runs now; None if none does."""
        return self._evaluation

    def look(self) -> None:
        """Take note of what was changed in the task since the last round; for evaluations of clients' models."""
        self._standing = Standing.of(self._task)

    def begin(self, request: EvaluationRequest) -> ClientEvaluation:
        """Begin an evaluation client by client, which answers the given request."""
        self._evaluation = ClientEvaluation(self._task, self._present(request), self._side_by_side)
        return self._evaluation

    def end(self) -> None:
        """End the evaluation that runs, if one does, and drop what was prepared for it."""
        self._evaluation = self._standing = None
        self.found = {}
        self.reported = ()
        self._side_by_side.forget_models()

    def close(self) -> None:
        """End an evaluation wherever it stands, and leave the global model in the task."""
        self.restore()
        self.end()

    def show(self, client: int, own: bool = True) -> None:
        """Put a client's model into the task.

        Args:
            client: Id of the client.
            own: Whether to take the client's personal model; else the global one, beside the client's personal block
                and local buffers.
        """
        self._shows_a_client = True
        request = None if self._evaluation is None else self._evaluation.request
        if request is None and self._standing is not None:
            require_client(self._task.run.simulation, client)
            request = self._present(self._task.run.evaluation_request("test"))
        self._task.run.put_in(client, own, request)

    def restore(self) -> None:
        """Put the global model back into the task, if it holds a client's."""
        if self._shows_a_client:
            self._shows_a_client = False
            self._task.run.put_in(None)
            if self._standing is not None:
                self._standing.put_back()

    def hears(self, name: str, value: Any, *args: Any, **options: Any) -> bool:
        """Record what the task logs, as ``self.log`` does, while a client is measured.

        Returns:
            Whether a client is measured; otherwise the value is Lightning's to log.
        """
        return self._evaluation is not None and self._evaluation.hears(name, value, *args, **options)

    def warn_if_mixed(self, name: str) -> None:
        """Warn of a value that is logged for several clients at once, or for clients' own models and the global one."""
        if self._evaluation is not None and self._evaluation.is_of_several:
            rank_zero_warn(
                f"'{name}' is logged by a hook for a batch of several clients, and mixes what it takes from them. Log "
                "it in evaluate(stage, batch, predictions), which is called for each of them."
            )
        if len(self.reported) > 1:
            rank_zero_warn(
                f"'{name}' is logged at the end of an evaluation of clients' own models and of the global one. What "
                "steps gathered for it is of both. Log it in the step, which tells them apart: the mean over clients "
                f"as '{name}', the global model's beside it."
            )
        if self.loaders.are_mixed:
            rank_zero_warn(
                f"'{name}' is logged at the end of a validation with validate_train. What steps gathered for it is of "
                "validation and training data together, as validation_step takes no dataloader_idx. Log it in the "
                "step, or take dataloader_idx there."
            )

    def takes_over(self, stage: str, batch: Any) -> bool:
        """Evaluate a batch of several clients side by side.

        Returns:
            Whether the batch was one of several clients; otherwise the task has it to evaluate.
        """
        return self._evaluation is not None and self._evaluation.takes_over(stage, batch)

    def answers(self, request: EvaluationRequest, client_ids: Sequence[int]) -> Iterator[EvaluationAnswer]:
        """Yield what clients of this process measured.

        Raises:
            RuntimeError: If the evaluation that ran was for another request.
        """
        if self._evaluation is None or self._evaluation.request is not request:
            raise UsageError("Clients answer the request that their evaluation began with; it was for another one.")
        yield from self._evaluation.answers(client_ids)

    def ask_nodes(self, stage: str, num_clients: int) -> dict[str, ClientValues]:
        """Ask clients at nodes to measure the present models, and return what they measured, by metric.

        Args:
            stage: ``val`` or ``test``: the data to evaluate on.
            num_clients: N.
        """
        self.end()
        self.look()
        require_measurable_at_nodes(self._task, stage)
        simulation, trainer = self._task.run.present, self._task.trainer
        with trainer.precision_plugin.val_step_context():
            precision = Precision(RoundPrecision.of(self._task).autocast.dtype)
        moment = Moment(trainer.current_epoch, step=trainer.global_step)
        asked = self._present(simulation.server.evaluation_request(stage))
        request = replace(asked, precision=precision, moment=moment)
        self.found = simulation.loop.evaluate(request, range(num_clients))
        return self.found

    def collect(self, num_clients: int) -> dict[str, ClientValues]:
        """End the evaluation that runs, and return what the clients of all processes measured, by metric.

        Args:
            num_clients: N.

        Raises:
            RuntimeError: If no evaluation runs.
        """
        if self._evaluation is None:
            raise UsageError("No evaluation client by client runs, so nothing was measured.")
        found = self._task.run.loop.evaluate(self._evaluation.request, range(num_clients))
        self.end()
        self.found = found
        return found

    def _present(self, request: EvaluationRequest) -> EvaluationRequest:
        """Return a request that has the task's global model, which may have been changed since the last round."""
        return request if self._standing is None else self._standing.seen_by(request)
