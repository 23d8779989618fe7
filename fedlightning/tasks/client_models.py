"""The side of a task that knows its clients: what each of them keeps, and the model it has of its own."""

from __future__ import annotations

from copy import deepcopy
from operator import index
from typing import Any, ClassVar

from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import Self

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import InvalidTypeError, InvalidValueError, UsageError
from fedlightning.data.module import FederatedDataModule
from fedlightning.federation.client_states import Storage
from fedlightning.tasks.guards import GuardedModule
from fedlightning.tasks.options import FederationOptions
from fedlightning.tasks.run import FederationRun


class TaskWithClients(GuardedModule):
    """Gives access to what the clients of a task keep: states of the algorithm and models of their own.

    Attributes:
        algorithm: What clients and server do.
        personal_parameters: Dotted name prefixes of the parameters that never leave a client.
        per_client_evaluation: Whether validation and test must look at every client by itself.
        predict_client: Client whose own model predicts; None for the global model.
        client_storage: Where client states lie; None for beside the model.
        run: The states of the task's rounds.
        federation_options: How the task is trained over clients, beside its algorithm.
    """

    algorithm: Algorithm
    personal_parameters: tuple[str, ...] = ()
    per_client_evaluation: ClassVar[bool] = False
    predict_client: int | None
    client_storage: Storage | None
    run: FederationRun
    federation_options: FederationOptions
    _weights_loaded: bool
    _warned_of_the_start: bool

    __jit_unused_properties__: list[str] = [  # noqa: RUF012  # as in Lightning; TorchScript would compile these
        *GuardedModule.__jit_unused_properties__,
        "server_state",
        "client_states",
        "has_client_states",
        "traffic",
        "keeps_models",
        "evaluated_models",
        "keeps_client_states",
        "is_safe_to_checkpoint",
        "knows_the_global_model_alone",
        "_answers_with_the_start",
        "_has_personal_models",
    ]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``forward``, and warn once if the answer is that of personal parameters which no client has trained."""
        if self.personal_parameters and not self._warned_of_the_start and self._answers_with_the_start:
            self._warned_of_the_start = True
            rank_zero_warn(
                f"{type(self).__name__} answers with the shared parameters and the personal ones of the start, which "
                "no client has trained. Use task.personalize(i) for client i's own model."
            )
        return super().__call__(*args, **kwargs)

    @property
    def _answers_with_the_start(self) -> bool:
        """Return whether a trained task is called outside a run, in which no client's model is put into it."""
        if self._in_round or self.run.of_one_client:
            return False
        running = self._trainer is not None and self._trainer.state.stage is not None
        return not running and (self.has_client_states or self._weights_loaded)

    @property
    def server_state(self) -> Any:
        """Return the algorithm's server state, a dataclass of vectors ``[d]`` and numbers."""
        if self._jit_is_scripting:  # it reads every attribute, and there may be no rounds
            return None
        return self.run.simulation.server.state

    @property
    def client_states(self) -> Any:
        """Return the states of all N clients, a dataclass of tensors ``[N, d]``; None for a stateless algorithm.

        Clients that never took part have the initial state.

        Raises:
            RuntimeError: If the client states lie in several processes, or before the first round.
        """
        if self._jit_is_scripting or self.run.of_one_client:
            return None
        return self.run.client_states()

    @property
    def has_client_states(self) -> bool:
        """Return whether client states exist: from the first round on, or from a checkpoint that holds some."""
        return self.run.has_client_states

    @property
    def keeps_client_states(self) -> bool:
        """Return whether clients keep something from one round to the next, in the process that holds them."""
        return self.keeps_models or type(self.algorithm).init_client is not Algorithm.init_client

    @property
    def traffic(self) -> tuple[int, int]:
        """Return how many floats all clients together have sent and received so far: (upload, download)."""
        if self._jit_is_scripting:
            return 0, 0
        traffic = self.run.simulation.server.traffic
        return traffic.upload, traffic.download

    @property
    def keeps_models(self) -> bool:
        """Return whether clients have models of their own, in part or whole."""
        return bool(self.personal_parameters) or self.federation_options.buffers == "local" or self._has_personal_models

    @property
    def evaluated_models(self) -> tuple[str, ...]:
        """Return which models are evaluated client by client: ``own``, ``global``, both, or none.

        There are none where all clients use the global model, which is then evaluated on pooled data.
        """
        own = self.keeps_models or self.per_client_evaluation
        return ("own", "global") if self._has_personal_models else ("own",) if own else ()

    def require_its_clients(self, data: Any, resuming: bool = False) -> None:
        """Make sure that clients' own models and a data module belong together.

        A global model may be evaluated on any data; the model of a client belongs to the data of that client.

        Args:
            data: A data module.
            resuming: Whether a fit goes on from a checkpoint. Then all client states count, such as duals and control
                variates; otherwise models alone do.

        Raises:
            ValueError: If such models or states were trained on another federation.
        """
        counts = self.keeps_models or (resuming and self.run.restores_client_states)
        known = counts and self.run.exists and isinstance(data, FederatedDataModule)
        difference = data.differs_from(self.run.trained_on) if known else None
        if difference is not None:
            raise InvalidValueError(difference)

    def evaluated_together(self, stage: str) -> int:
        """Return how many clients a batch of ``val`` or ``test`` data may hold, at least 1.

        More than one is for tasks that evaluate clients side by side; see
        :class:`~fedlightning.BatchedEvaluationTask`.
        """
        return 1

    def personalize(self, client: int) -> Self:
        """Return a copy of the task with one client's own model: personal block, personal model, local buffers.

        The copy has the client's own module in place of each :class:`~fedlightning.models.PerArchitecture`, so that its
        networks are plain modules: ``torch.save(task.personalize(3).network.state_dict(), path)``.

        Args:
            client: Id of the client, 0 <= client < N.

        Raises:
            IndexError: If there is no such client.
            RuntimeError: If there are no client states yet.
            TypeError: If the id is no whole number.
        """
        try:
            client = index(client)
        except TypeError:
            shown = f"{client!r} of type {type(client).__name__}"
            raise InvalidTypeError(f"personalize({shown}): expected a client's number, from 0 on.") from None
        self.require_client_states(f"personalize({client})")
        copied: Any = deepcopy(self, {id(self.run): None})
        copied.run = self.run.of_copy(copied)
        copied.predict_client = None
        self.run.personalize(copied, client)
        return copied  # type: ignore[no-any-return]

    def require_client_states(self, asked: str) -> None:
        """Make sure that client states exist, from which clients' own models are made.

        Args:
            asked: The call or option that needs the states, for the message.

        Raises:
            RuntimeError: If there are no client states.
        """
        if not self.has_client_states:
            why = " load_state_dict brought the global model alone." if self._weights_loaded else ""
            raise UsageError(
                f"{type(self).__name__}: {asked} asks for a client's own model, but there are no client states.{why} "
                f"Fit the task, or load a checkpoint with {type(self).__name__}.load_from_checkpoint(path)."
            )

    @property
    def is_safe_to_checkpoint(self) -> bool:
        """Return whether model, server and client states belong to the same round."""
        return self.run.at_round_boundary

    @property
    def knows_the_global_model_alone(self) -> bool:
        """Return whether weights were loaded, but no client states."""
        return self._weights_loaded and not self.has_client_states

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the weights of the global model alone; ``load_from_checkpoint`` restores clients' models too."""
        result = super().load_state_dict(*args, **kwargs)
        self._weights_loaded = True
        return result

    @property
    def _has_personal_models(self) -> bool:
        """Return whether the algorithm keeps a whole model for every client beside the global one."""
        return type(self.algorithm).personal_model is not Algorithm.personal_model
