"""What a task knows of its clients: their states, and the models that are theirs."""

from __future__ import annotations

from copy import deepcopy
from operator import index
from typing import Any, ClassVar

from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import Self

from fedlightning.algorithms.base import Algorithm
from fedlightning.data.module import FederatedDataModule
from fedlightning.tasks.guards import GuardedModule
from fedlightning.tasks.options import FederationOptions
from fedlightning.tasks.run import FederationRun


class TaskWithClients(GuardedModule):
    """A task whose clients keep states, and perhaps models, of their own.

    Attributes:
        algorithm: What clients and server do.
        personal_parameters: Dotted name prefixes of the parameters that never leave a client.
        per_client_evaluation: Whether validation and test must look at every client by itself.
        predict_client: Whose model predicts; None for the global one.
        run: The states of its rounds.
    """

    algorithm: Algorithm
    personal_parameters: tuple[str, ...] = ()
    per_client_evaluation: ClassVar[bool] = False
    predict_client: int | None
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
        """As ``nn.Module``'s; outside a run, a task with personal parts says whose answer is given."""
        if self.personal_parameters and not self._warned_of_the_start and self._answers_with_the_start:
            self._warned_of_the_start = True
            rank_zero_warn(
                f"{type(self).__name__} answers with the shared parameters and the personal ones of the start, which "
                "no client has trained. Use task.personalize(i) for client i's own model."
            )
        return super().__call__(*args, **kwargs)

    @property
    def _answers_with_the_start(self) -> bool:
        """Whether a trained task is called as a whole, outside a run that puts clients' models in."""
        if self._in_round or self.run.of_one_client:
            return False
        running = self._trainer is not None and self._trainer.state.stage is not None
        return not running and (self.has_client_states or self._weights_loaded)

    @property
    def server_state(self) -> Any:
        """The algorithm's server state, a dataclass of vectors ``[d]`` and numbers."""
        if self._jit_is_scripting:  # it reads every attribute, and there may be no rounds
            return None
        return self.run.simulation.server.state

    @property
    def client_states(self) -> Any:
        """The states of all N clients, a dataclass of tensors ``[N, d]``; None for a stateless algorithm.

        Clients that never took part have the initial state.

        Raises:
            RuntimeError: If they lie in several processes.
        """
        if self._jit_is_scripting or self.run.of_one_client:
            return None
        return self.run.client_states()

    @property
    def has_client_states(self) -> bool:
        """Whether there are states of clients: from the first round on, or from a checkpoint that holds some."""
        return self.run.has_client_states

    @property
    def keeps_client_states(self) -> bool:
        """Whether each client keeps something from one round to the next, in the process that holds it."""
        return self.keeps_models or type(self.algorithm).init_client is not Algorithm.init_client

    @property
    def traffic(self) -> tuple[int, int]:
        """Floats sent so far, all clients together: (upload, download)."""
        if self._jit_is_scripting:
            return 0, 0
        traffic = self.run.simulation.server.traffic
        return traffic.upload, traffic.download

    @property
    def keeps_models(self) -> bool:
        """Whether clients have models of their own, in part or whole."""
        return bool(self.personal_parameters) or self.federation_options.buffers == "local" or self._has_personal_models

    @property
    def evaluated_models(self) -> tuple[str, ...]:
        """Which models validation and test look at client by client; none where the global one is all there is."""
        own = self.keeps_models or self.per_client_evaluation
        return ("own", "global") if self._has_personal_models else ("own",) if own else ()

    def require_its_clients(self, data: Any, resuming: bool = False) -> None:
        """Make sure that clients' own models and a data module belong together.

        Args:
            data: Data module.
            resuming: Whether a fit goes on from a checkpoint: then all that clients keep counts, duals and control
                variates too. The global model alone may be evaluated on any data.

        Raises:
            ValueError: If there are such models or states and they were trained on another federation.
        """
        counts = self.keeps_models or (resuming and self.run.restores_client_states)
        known = counts and self.run.exists and isinstance(data, FederatedDataModule)
        difference = data.differs_from(self.run.trained_on) if known else None
        if difference is not None:
            raise ValueError(difference)

    def evaluated_together(self, stage: str) -> int:
        """How many clients a batch of validation (``val``) or test data may hold side by side; 1 for one by one.

        See :class:`~fedlightning.BatchedEvaluationTask`.
        """
        return 1

    def personalize(self, client: int) -> Self:
        """A copy of the task with one client's own model: personal block, personal model, local buffers.

        In place of :class:`~fedlightning.models.PerArchitecture` it has the client's own module itself.

        Its networks are plain modules: ``torch.save(task.personalize(3).network.state_dict(), path)``.

        Args:
            client: 0 <= client < N.

        Raises:
            IndexError: If there is no such client.
            RuntimeError: If there are no client states yet.
            TypeError: If it is no whole number.
        """
        try:
            client = index(client)
        except TypeError:
            shown = f"{client!r} of type {type(client).__name__}"
            raise TypeError(f"personalize({shown}): expected a client's number, from 0 on.") from None
        self.require_client_states(f"personalize({client})")
        copied: Any = deepcopy(self, {id(self.run): None})
        copied.run = self.run.of_copy(copied)
        copied.predict_client = None
        self.run.personalize(copied, client)
        return copied  # type: ignore[no-any-return]

    def require_client_states(self, asked: str) -> None:
        """Make sure that clients' own models can be asked for.

        Args:
            asked: What asks for them, for the message.

        Raises:
            RuntimeError: If there are no client states.
        """
        if not self.has_client_states:
            why = " load_state_dict brought the global model alone." if self._weights_loaded else ""
            raise RuntimeError(
                f"{type(self).__name__}: {asked} asks for a client's own model, but there are no client states.{why} "
                f"Fit the task, or load a checkpoint with {type(self).__name__}.load_from_checkpoint(path)."
            )

    @property
    def is_safe_to_checkpoint(self) -> bool:
        """True when model, server and clients stand at the same round."""
        return self.run.at_round_boundary

    @property
    def knows_the_global_model_alone(self) -> bool:
        """Whether weights were loaded, but no states of clients."""
        return self._weights_loaded and not self.has_client_states

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As ``nn.Module``'s: the global model alone. ``load_from_checkpoint`` brings clients' models too."""
        result = super().load_state_dict(*args, **kwargs)
        self._weights_loaded = True
        return result

    @property
    def _has_personal_models(self) -> bool:
        """Whether the algorithm keeps a whole model for every client beside the global one."""
        return type(self.algorithm).personal_model is not Algorithm.personal_model
