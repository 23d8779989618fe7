"""The base of all federated tasks, a LightningModule whose training step is one communication round."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Callback
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

from fedlightning.algorithms.base import Algorithm
from fedlightning.callbacks.clients import EvaluateClients
from fedlightning.core.parameter_space import ParameterSpace, read
from fedlightning.core.validation import require_argument, require_instance
from fedlightning.federation.checkpoint_io import AtomicCheckpointIO
from fedlightning.federation.client_states import Storage
from fedlightning.federation.client_table import Buffers
from fedlightning.federation.cohort import RoundBatch
from fedlightning.federation.oracle_selection import When
from fedlightning.federation.server import RoundRejectedError, Weighting
from fedlightning.oracle import Auto, ClientBatching
from fedlightning.proximal import Regularizer
from fedlightning.tasks import checkpoint as codec
from fedlightning.tasks.advice import leave_out_inapplicable_advice
from fedlightning.tasks.arguments import require_algorithm, require_compatible, require_server_step
from fedlightning.tasks.checkpointed import CheckpointedTask
from fedlightning.tasks.fit_checks import check_fit, evaluates_clients, require_round
from fedlightning.tasks.lightning_surface import say_if_never_validated
from fedlightning.tasks.options import FederationOptions
from fedlightning.tasks.precision import RoundPrecision
from fedlightning.tasks.round_report import RoundReport, client_step_sizes
from fedlightning.tasks.run import FederationRun
from fedlightning.tasks.server_step import LRSchedulerCallable, OptimizerCallable, ServerStep
from fedlightning.tasks.session import EvaluationSession


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
        client_metrics: Every client's values in the last validation or test client by client, ``[N]`` for each metric;
            NaN for clients that were not evaluated.
        predicted_clients: The client of each batch of the last prediction, where clients' own models predicted.
        round_metrics: What the last round of this fit reported, logged or not.
        federation_options: How the task is trained over clients, beside its algorithm.
    """

    max_parameters: ClassVar[tuple[str, ...]] = ()
    higher_is_better: ClassVar[Mapping[str, bool]] = {}

    __jit_unused_properties__: list[str] = [*CheckpointedTask.__jit_unused_properties__, "_trainable"]  # noqa: RUF012

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
    ) -> None:
        """Choose how the task is trained.

        Args:
            algorithm: What clients and server do.
            regularizer: ψ₁, added to the mean of the objectives: one regularizer for every shared tensor of the min
                block, or one by name prefix (None for none there). Personal parameters have none.
            max_regularizer: ψ₂, subtracted from the mean of the objectives: the same for the max block.
            oracle: How operators are computed; null measures in the first round which way is faster.
            server_optimizer: Moves the global model along the algorithm's proposal (FedAvg with Adam is FedAdam);
                null takes the proposal as it is.
            server_scheduler: Schedule of the server optimizer's learning rate, stepped once a round.
            server_clip: Largest norm of the global model's move in a round, above 0.
            weighting: ``uniform`` minimises the mean of f_i; ``samples`` weighs clients by their numbers of samples.
            buffers: ``average`` treats BatchNorm statistics like the parameters of their layer, so those of personal
                layers stay on the client (FedBN: name such layers in ``personal_parameters``); ``local`` leaves all
                there. Averaged statistics suit averaged models: where clients keep models of their own beside it
                (Ditto, pFedMe, FedALA, LpProj), normalise by groups, or choose ``local``.
            client_storage: Where client states lie; null keeps them beside the model.
            predict_client: Client whose own model predicts; null for the global model or, where test data come client
                by client, each client's own.
            drift_parameters: Name prefixes of the shared parameters over which ``drift``, the mean distance of local
                points from the global one, is taken, to compare methods that share different parts. Empty for all.
            self_check: When a batched, replayed or compiled oracle is compared with evaluation client by client, and
                given up for a slower one if they differ: in the ``first`` round of a fit, with the first and the last
                client of its cohort; in every n-th, each time with two other clients; or never (``off``). The first
                round cannot show what an objective begins to do later. Beside the precision of training they are
                compared in float64 where the objective allows it.

        Raises:
            TypeError: If an argument is of another kind than expected.
            ValueError: If a value is out of range, a regularizer is given to an algorithm that takes none, or a server
                optimizer to an algorithm whose server computes the point.
        """
        super().__init__()
        require_algorithm(self, algorithm)
        for name, given, kind, example in (
            ("oracle", oracle, ClientBatching, "Sequential()"),
            ("client_storage", client_storage, Storage, "MemoryMapped('rows')"),
        ):
            if given is not None:
                require_instance(f"{type(self).__name__}({name}", given, kind, example)
        require_argument(self, "predict_client", predict_client, optional=True, whole=True, at_least=0)
        batching = Auto() if oracle is None else oracle
        options = FederationOptions(
            regularizer, max_regularizer, batching, weighting, buffers, drift_parameters, self_check
        )
        server_step = ServerStep(server_optimizer, server_scheduler, server_clip)
        require_server_step(self, server_step)
        require_compatible(algorithm, options, server_step)
        self.automatic_optimization = False
        self.algorithm = algorithm
        self.predict_client = predict_client
        self.client_storage = client_storage
        self.federation_options = options
        self.client_metrics: dict[str, Tensor] = {}
        self.predicted_clients: list[int] = []
        self.round_metrics: Mapping[str, Tensor | float] = {}
        self.run = FederationRun(self, options.simulation)
        self.evaluation_session = EvaluationSession(self)
        self._server_step = server_step
        self._round_report = RoundReport()
        self._weights_loaded = False
        self._warned_of_the_start = False
        self._in_round = False

    @abstractmethod
    def objective(self, batch: Any) -> Tensor | dict[str, Tensor]:
        """Compute f_i on a minibatch of one client; it is minimised over the min block, maximised over the max block.

        It is evaluated for many clients at once where that is possible (``torch.func.vmap``). For that, leave out
        ``.item()``, ``if`` on tensors and boolean indexing; masks do the same. Whatever cannot be batched, or comes out
        differently, is evaluated one client after the other, which takes longer; a line at the start of a fit says so.
        Python code in it may run once for all clients, or once a round. No ``self.log``: return a dict instead.

        Args:
            batch: One client's minibatch in the data set's own structure, leaves ``[B, ...]``.

        Returns:
            A scalar, or ``{"loss": scalar, name: scalar to log, ...}`` with the same keys in every evaluation, of every
            client and at every step: what is logged is a mean over all of them.
        """

    # ---- training ----------------------------------------------------------------------------------------------------

    def training_step(self, batch: RoundBatch, batch_idx: int) -> None:
        """Carry out one communication round.

        Raises:
            RoundRejectedError: If no client returned finite numbers; the state before the round is saved.
            TypeError: If the data are no rounds of a federation.
        """
        start = time.perf_counter()
        require_round(batch)
        simulation = self.run.simulation
        self.run.release_loaded()
        step_sizes = client_step_sizes(self.algorithm, simulation.server.state)
        precision = RoundPrecision.of(self)
        self._in_round = True
        try:
            with torch.autocast(self.device.type, enabled=False):
                placed = batch.place(self.device, self._trainable.dtype)
                result = simulation.run(placed, precision.autocast, precision.undoes_overflow)
        except RoundRejectedError as error:
            raise RoundRejectedError(f"Round {batch.index + 1}: {error}{codec.rescue(self.trainer)}") from None
        finally:
            self._in_round = False
        self._server_step.take(self, simulation, precision.scaler, result.undone)
        simulation.loop.follow()
        self.round_metrics = {**result.metrics, **step_sizes}
        self._round_report.publish(self, result, {**self.round_metrics, "round_time": time.perf_counter() - start})

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Begin a fit, and return the server's optimizer of the shared parameters, which steps once a round."""
        self.run.begin_again(self.trainer.datamodule)  # type: ignore[attr-defined]
        self.round_metrics = {}
        self._round_report = RoundReport()
        self._weights_loaded = False
        space, options = self.parameter_space(), self.federation_options
        self.algorithm.bind(space, self._trainable, options.composite(space))  # names wrong prefixes and shapes now
        space.shared.columns(options.drift_parameters, "drift_parameters")
        check_fit(self, space)
        named = dict(self.named_parameters())
        return self._server_step.configure([named[name] for name in space.shared.names])

    def configure_callbacks(self) -> list[Callback]:
        """Add evaluation client by client, which does nothing where clients have no models of their own."""
        leave_out_inapplicable_advice()
        if type(self.trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            self.trainer.strategy.checkpoint_io = AtomicCheckpointIO()  # before any checkpoint is read or written
        return [] if evaluates_clients(self) else [EvaluateClients()]

    def on_train_start(self) -> None:
        """Tell the user of a fit in which nothing will be validated."""
        say_if_never_validated(self.trainer)

    def on_validation_epoch_end(self) -> None:
        """Log validation metrics at the round they belong to; Lightning would count one less."""
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self.log("step", float(self.trainer.global_step))

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
    def _trainable(self) -> Tensor:
        """Return the first parameter that is trained; frozen ones may be of another dtype."""
        return next((p for p in self.parameters() if p.requires_grad), next(self.parameters()))
