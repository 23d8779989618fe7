"""The models that the clients of a task have of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_warn

from fedlightning.algorithms.adaptation import AdaptsInUse
from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import InvalidValueError, UsageError
from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.data.module import FederatedDataModule
from fedlightning.federation.clients.adapting import TrainingData

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule


class ClientModels:
    """Knows what the clients of a task keep, and refuses or warns of uses that need missing models."""

    def __init__(self, task: FederatedLightningModule) -> None:
        """Store the task, whose algorithm and personal parameters may still change."""
        self._task = task
        self._has_warned_of_the_start = False

    @property
    def exist(self) -> bool:
        """Return whether clients have models of their own, in part or whole."""
        task = self._task
        return bool(task.personal_parameters) or task.federation_options.buffers == "local" or self._are_whole

    @property
    def keep_states(self) -> bool:
        """Return whether clients keep something from one round to the next, in the process that holds them."""
        algorithm, channels = self._task.algorithm, self._task.federation_options.channel
        remembers = channels is not None and any(
            channel is not None and channel.remembers for channel in map(channels.of, range(len(algorithm.phases)))
        )
        return self.exist or remembers or type(algorithm).init_client is not Algorithm.init_client

    @property
    def evaluated(self) -> tuple[str, ...]:
        """Return which models are evaluated client by client: ``own``, ``global``, both, or none."""
        own = self.exist or self._task.per_client_evaluation
        both = self._are_whole or isinstance(self._task.algorithm, AdaptsInUse)
        return ("own", "global") if both else ("own",) if own else ()

    def adapt_on(self, data: Any, places: Mapping[int, int] | None = None) -> None:
        """Take the training data on which clients adapt the global model, where the algorithm has them do so.

        Args:
            data: A data module; one without samples of clients leaves those taken before.
            places: Number of each client in ``data``, by the client's id in the federation; None if they are the same.
        """
        task, algorithm = self._task, self._task.algorithm
        if not isinstance(algorithm, AdaptsInUse) or not isinstance(data, FederatedDataModule):
            return
        known = task.run.training_data
        if known is None or known.data is not data:
            steps, architecture = algorithm.adaptation_steps, TaskArchitectures(task).of
            task.run.training_data = TrainingData(data, places, architecture, steps)

    def require_states(self, asked: str) -> None:
        """Make sure that client states exist, from which clients' own models are made.

        Args:
            asked: The call or option that needs the states, for the message.

        Raises:
            RuntimeError: If there are no client states.
        """
        name, run = type(self._task).__name__, self._task.run
        if not run.has_client_states:
            why = " load_state_dict brought the global model alone." if run.holds_weights_alone else ""
            raise UsageError(
                f"{name}: {asked} asks for a client's own model, but there are no client states.{why} "
                f"Fit the task, or load a checkpoint with {name}.load_from_checkpoint(path)."
            )

    def require_data_of_same_clients(self, data: Any, resuming: bool = False) -> None:
        """Make sure that clients' own models and a data module belong together.

        A global model may be evaluated on any data; the model of a client belongs to the data of that client.

        Args:
            data: A data module.
            resuming: Whether a fit goes on from a checkpoint. Then all client states count, such as duals and control
                variates; otherwise models alone do.

        Raises:
            ValueError: If such models or states were trained on another federation.
        """
        run = self._task.run
        counts = self.exist or (resuming and run.restores_client_states)
        known = counts and run.exists and isinstance(data, FederatedDataModule)
        difference = data.differs_from(run.trained_on) if known else None
        if difference is not None:
            raise InvalidValueError(difference)

    def warn_if_not_adapted(self) -> None:
        """Warn if clients would adapt the global model before it is used, but there is no server to ask for it yet."""
        task = self._task
        if isinstance(task.algorithm, AdaptsInUse) and not task.run.exists:
            rank_zero_warn(
                f"{type(task).__name__}: before the first round clients use the model as it is, without the personal "
                f"steps of {type(task.algorithm).__name__}. Fit the task, or load a checkpoint with "
                "load_from_checkpoint; load_state_dict brings weights alone."
            )

    def warn_of_the_start(self) -> None:
        """Warn once if the task answers with personal parameters of the start, which no client has trained.

        It does so outside of evaluation and prediction, which put clients' models into the task.
        """
        if self._has_warned_of_the_start or not self._task_answers_with_the_start:
            return
        self._has_warned_of_the_start = True
        rank_zero_warn(
            f"{type(self._task).__name__} answers with the shared parameters and the personal ones of the start, which "
            "no client has trained. Use task.personalize(i) for client i's own model."
        )

    @property
    def _are_whole(self) -> bool:
        """Return whether the algorithm keeps a whole model for every client beside the global one."""
        return type(self._task.algorithm).personal_model is not Algorithm.personal_model

    @property
    def _task_answers_with_the_start(self) -> bool:
        """Return whether the task was trained, and holds no client's model."""
        run = self._task.run
        if self._task.rounds.running or run.is_of_one_client:
            return False
        return run.has_client_states or run.holds_weights_alone
