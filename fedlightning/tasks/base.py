"""The base of all federated tasks, a LightningModule whose training step is one communication round."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Callback
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from typing_extensions import Self

from fedlightning.algorithms.base import Algorithm
from fedlightning.callbacks.advice import leave_out_inapplicable_advice
from fedlightning.callbacks.clients import EvaluateClients
from fedlightning.channel.channel import Channels
from fedlightning.core.parameter_space import ParameterSpace, read
from fedlightning.federation.buffers import Buffers
from fedlightning.federation.client_states import Storage
from fedlightning.federation.clients.oracle_selection import When
from fedlightning.federation.files.checkpoint_io import AtomicCheckpointIO
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.federation.server import Weighting
from fedlightning.oracle import Auto, ClientBatching
from fedlightning.proximal import Regularizer
from fedlightning.tasks.checkpoints.checkpointed import CheckpointedTask
from fedlightning.tasks.checks.arguments import (
    require_algorithm,
    require_channel,
    require_client_number,
    require_client_options,
    require_compatible,
    require_server_step,
)
from fedlightning.tasks.checks.fit_checks import evaluates_clients
from fedlightning.tasks.checks.lightning_surface import say_if_never_validated
from fedlightning.tasks.evaluation.client_models import ClientModels
from fedlightning.tasks.evaluation.session import EvaluationSession
from fedlightning.tasks.evaluation.standing import Standing
from fedlightning.tasks.fit.rounds import TrainingRounds
from fedlightning.tasks.fit.run import FederationRun
from fedlightning.tasks.fit.server_step import LRSchedulerCallable, OptimizerCallable, ServerStep
from fedlightning.tasks.options import FederationOptions


class FederatedLightningModule(CheckpointedTask):
    """Brings together a model, the objective of each client, and the algorithm that trains over many clients.

    Subclass it for a new task: build the networks, name the blocks, write :meth:`objective`; validation, test and
    prediction are ordinary Lightning on the global model. One training step is one communication round and one
    ``global_step``. A whole task::

        class Regression(FederatedLightningModule):
            def __init__(self, algorithm: Algorithm, features: int = 8, **federation) -> None:
                super().__init__(algorithm, **federation)
                self.save_hyperparameters()
                self.line = nn.Linear(features, 1)

            def objective(self, batch):
                x, y = batch
                return (self.line(x).squeeze(1) - y).square().mean()

    Attributes:
        max_parameters: Dotted name prefixes of the parameters that are maximised; empty for plain minimisation.
        personal_parameters: Dotted name prefixes of the parameters that never leave a client.
        per_client_evaluation: Whether validation and test look at every client by itself even if all use the global
            model. Where clients have models of their own, they always do.
        higher_is_better: Whether larger values of a metric are better, by the name it is logged under, with or without
            ``val_`` or ``test_``: ``{"accuracy": True, "loss": False}``. It decides which client is logged as
            ``<name>_worst``; without it ``<name>_min`` and ``<name>_max`` are logged. Only metrics logged as plain
            numbers need it, as metrics of torchmetrics say it themselves.
        made_with: The algorithm that the task was made with; another one may be set between two fits.
        client_metrics: Every client's values in the last validation or test client by client, ``[N]`` for each metric;
            NaN for clients that were not evaluated.
        predicted_clients: The client of each batch of the last prediction, where clients' own models predicted.
        round_metrics: What the last round of this fit reported, logged or not.
        federation_options: How the task is trained over clients, beside its algorithm.
    """

    max_parameters: tuple[str, ...] = ()
    per_client_evaluation: bool = False
    higher_is_better: ClassVar[Mapping[str, bool]] = {}

    __jit_unused_properties__: list[str] = [  # noqa: RUF012  # as in Lightning; TorchScript would compile these
        *CheckpointedTask.__jit_unused_properties__,
        "server_state",
        "client_states",
        "traffic",
        "evaluated_models",
    ]

    def __init__(
        self,
        algorithm: Algorithm,
        regularizer: Regularizer | dict[str, Regularizer | None] | None = None,
        max_regularizer: Regularizer | dict[str, Regularizer | None] | None = None,
        oracle: ClientBatching | None = None,
        server_optimizer: OptimizerCallable | None = None,
        server_scheduler: LRSchedulerCallable | None = None,
        server_clip: float | None = None,
        weighting: Weighting = "uniform",
        buffers: Buffers = "average",
        client_storage: Storage | None = None,
        predict_client: int | None = None,
        drift_parameters: Sequence[str] = (),
        self_check: When = "first",
        channel: Channels | None = None,
    ) -> None:
        """Choose how the task is trained.

        Args:
            algorithm: What clients and server do.
            regularizer: ψ₁, added to the mean of the objectives: one regularizer for every shared tensor of the min
                block, or one by name prefix (None for none there). Personal parameters have none.
            max_regularizer: ψ₂, subtracted from the mean of the objectives: the same for the max block.
            oracle: How operators are computed; null measures in the first round which oracle is faster.
            server_optimizer: Moves the global model along the algorithm's proposal (FedAvg with Adam is FedAdam);
                null takes the proposal as it is.
            server_scheduler: Schedule of the server optimizer's learning rate, stepped once a round.
            server_clip: Largest norm of the move that the algorithm proposes for the global model in a round, above 0;
                a server optimizer comes after it.
            weighting: ``uniform`` minimises the mean of f_i; ``samples`` weighs clients by their numbers of samples.
            buffers: ``average`` treats BatchNorm statistics like the parameters of their layer, so those of personal
                layers stay on the client (FedBN: name such layers in ``personal_parameters``); ``local`` leaves all
                there. Clients with a model of their own beside the global one (APFL, Ditto, pFedMe, FedALA, LpProj)
                have one set of statistics for both: normalise by groups.
            client_storage: Where client states lie; null keeps them beside the model.
            predict_client: Client whose own model predicts; null for the global model or, where test data come client
                by client, each client's own.
            drift_parameters: Name prefixes of the shared parameters over which ``drift``, the mean distance of local
                points from the global one, is taken, to compare methods that share different parts. Empty for all.
            self_check: When a batched, replayed or compiled oracle is compared with evaluation client by client, and
                given up for a slower one if they differ: in the ``first`` round of a fit, with the first and the last
                client of its cohort; in every n-th, each time with two other clients; or never (``off``). The first
                round cannot show what an objective begins to do later. Beside the precision of training they are
                compared in float64 where the objective allows it. Unless it is ``off``, the first round also refuses
                an algorithm whose clients depend on those that are computed beside them.
            channel: What happens to updates on their way to the server: clipping, compression, robust means, noise; a
                :class:`~fedlightning.channel.Channel`, or one for each phase. Null for nothing.

        Raises:
            TypeError: If an argument is of another kind than expected.
            ValueError: If a value is out of range, a regularizer is given to an algorithm that takes none, or a server
                optimizer to an algorithm whose server computes the point.
        """
        super().__init__()
        require_algorithm(self, algorithm)
        require_client_options(self, oracle, client_storage, predict_client)
        how = Auto() if oracle is None else oracle
        options = FederationOptions(
            regularizer, max_regularizer, how, weighting, buffers, drift_parameters, self_check, channel
        )
        server_step = ServerStep(server_optimizer, server_scheduler, server_clip)
        require_server_step(self, server_step)
        require_compatible(algorithm, options, server_step)
        require_channel(self, algorithm, options)
        self.automatic_optimization = False
        self.algorithm = self.made_with = algorithm
        self.predict_client = predict_client
        self.client_storage = client_storage
        self.federation_options = options
        self.client_metrics: dict[str, Tensor] = {}
        self.predicted_clients: list[int] = []
        self.round_metrics: Mapping[str, Tensor | float] = {}
        self.run = FederationRun(self, options.simulation)
        self.client_models = ClientModels(self)
        self.evaluation_session = EvaluationSession(self)
        self.rounds = TrainingRounds(self, server_step)

    @abstractmethod
    def objective(self, batch: Any) -> Tensor | dict[str, Tensor]:
        """Compute f_i on a minibatch of one client; it is minimised over the min block, maximised over the max block.

        It is evaluated for many clients at once where that is possible (``torch.func.vmap``). For that, leave out
        ``.item()``, ``if`` on tensors and boolean indexing; masks do the same. Whatever cannot be batched, or comes out
        differently, is evaluated one client after the other, which takes longer; a line at the start of a fit says so.
        Python code in it may run once for all clients, for one of them, or a few times a round. No ``self.log``: return
        a dict instead.

        Args:
            batch: One client's minibatch in the data set's own structure, leaves ``[B, ...]``.

        Returns:
            A scalar, or ``{"loss": scalar, name: scalar to log, ...}`` with the same keys in every evaluation, of every
            client and at every step: what is logged is a mean over all of them.
        """

    def training_step(self, batch: RoundBatch, batch_idx: int) -> None:
        """Carry out one communication round.

        Raises:
            RoundRejectedError: If no client returned finite numbers; the state before the round is saved.
            TypeError: If the data are no rounds of a federation.
        """
        start = time.perf_counter()
        result = self.rounds.carry_out(batch)
        self.round_metrics = self.rounds.reported(result)
        self.rounds.report(result, time.perf_counter() - start)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Begin a fit, and return the server's optimizer of the shared parameters, which steps once a round."""
        self.run.begin_again(self.trainer.datamodule)  # type: ignore[attr-defined]
        self.round_metrics = {}
        return self.rounds.begin_fit()

    def configure_callbacks(self) -> list[Callback]:
        """Add evaluation client by client, which does nothing where clients have no models of their own."""
        leave_out_inapplicable_advice()
        if type(self.trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            self.trainer.strategy.checkpoint_io = AtomicCheckpointIO()  # before any checkpoint is read or written
        return [] if evaluates_clients(self) else [EvaluateClients()]

    def on_train_start(self) -> None:
        """Tell the user of a fit in which nothing will be validated."""
        say_if_never_validated(self.trainer)

    def parameter_space(self) -> ParameterSpace:
        """Return the parameters of the task by block: shared or personal, minimised or maximised.

        Raises:
            ValueError: If a prefix in ``max_parameters`` or ``personal_parameters`` fits no parameter.
        """
        return ParameterSpace(self, self.max_parameters, self.personal_parameters)

    def regularization(self) -> Tensor | None:
        """Return the regularizer ψ at the present shared parameters, a scalar; None without regularizers."""
        if not self.federation_options.regularizes:
            return None
        space = self.parameter_space()
        return self.federation_options.composite(space).value(read(space.shared, self))

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
        if self._jit_is_scripting or self.run.is_of_one_client:
            return None
        return self.run.client_states()

    @property
    def traffic(self) -> tuple[int, int]:
        """Return how many floats all clients together have sent and received so far: (upload, download)."""
        if self._jit_is_scripting:
            return 0, 0
        traffic = self.run.simulation.server.traffic
        return traffic.upload, traffic.download

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
        number = require_client_number("personalize", client)
        self.client_models.require_states(f"personalize({number})")
        standing = Standing.of(self)
        request = None if standing is None else standing.seen_by(self.run.evaluation_request("test"))
        copied: Any = self.run.personalized(number, request)
        return copied  # type: ignore[no-any-return]

    @property
    def evaluated_models(self) -> tuple[str, ...]:
        """Return which models are evaluated client by client: ``own``, ``global``, both, or none.

        There are none where all clients use the global model, which is then evaluated on pooled data.
        """
        return self.client_models.evaluated

    def evaluated_together(self, stage: str) -> int:
        """Return how many clients a batch of ``val`` or ``test`` data may hold, at least 1.

        More than one is for tasks that evaluate clients side by side; see
        :class:`~fedlightning.BatchedEvaluationTask`.
        """
        return 1
