"""The task side of the library: a LightningModule whose training step is one communication round."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, get_args

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from typing_extensions import Self

from fedlightning.algorithms.base import Algorithm, composite_methods
from fedlightning.callbacks.clients import EvaluateClients
from fedlightning.core.parameter_space import ParameterSpace, read
from fedlightning.core.validation import require_argument, require_instance
from fedlightning.data.module import FederatedDataModule
from fedlightning.federation.checkpoint_io import AtomicCheckpointIO
from fedlightning.federation.client_states import Storage
from fedlightning.federation.client_table import Buffers
from fedlightning.federation.cohort import RoundBatch
from fedlightning.federation.oracle_selection import When
from fedlightning.federation.processes import DistributedProcesses, OneProcess
from fedlightning.federation.server import RoundRejectedError, Weighting
from fedlightning.federation.simulation import Simulation
from fedlightning.oracle import Auto, Autocast, ClientBatching
from fedlightning.proximal import Composite, Regularizer, compose
from fedlightning.tasks import checkpoint as codec
from fedlightning.tasks.advice import leave_out_inapplicable_advice
from fedlightning.tasks.client_models import TaskWithClients
from fedlightning.tasks.lightning_surface import (
    refuse_synchronised_statistics,
    say_if_never_validated,
    warn_of_single_samples,
)
from fedlightning.tasks.round_report import RoundReport, client_step_sizes
from fedlightning.tasks.run import FederationRun
from fedlightning.tasks.server_step import EXAMPLES, LRSchedulerCallable, OptimizerCallable, ServerStep
from fedlightning.tasks.session import EvaluationSession


class FederatedLightningModule(TaskWithClients):
    """A model, its per-client objective, and the algorithm that trains it over many clients.

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
        per_client_evaluation: Whether validation and test must look at every client by itself even if all use the
            global model; where clients have models of their own they do anyway.
        higher_is_better: Whether more is better, by the name of a metric that is logged as a plain number, with or
            without its ``val_`` or ``test_``: ``{"accuracy": True, "loss": False}``. Evaluation client by client logs
            the worst client of these as ``<name>_worst``; of other plain numbers ``<name>_min`` and ``<name>_max``.
            Metrics of torchmetrics know it themselves.
        algorithm: As given.
        client_metrics: Every client's values of the last validation or test client by client, ``[N]`` each; NaN for
            clients that were not looked at.
        predict_client: As given.
        predicted_clients: The client of each batch of the last prediction, where clients' own models predicted.
        round_metrics: What the last round of this fit reported, logged or not.
        client_storage: As given.
        run: The states of its rounds.
        evaluation_session: What happens to it while clients' models are evaluated.
    """

    max_parameters: ClassVar[tuple[str, ...]] = ()
    personal_parameters: tuple[str, ...] = ()
    per_client_evaluation: ClassVar[bool] = False
    higher_is_better: ClassVar[Mapping[str, bool]] = {}

    __jit_unused_properties__: list[str] = [*TaskWithClients.__jit_unused_properties__, "_trainable"]  # noqa: RUF012

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
            regularizer: ψ₁, added to the mean of the objectives: one for every shared tensor of the min block, or
                one by name prefix (None for none there). Personal parameters have none.
            max_regularizer: ψ₂, subtracted from it: the same for the max block.
            oracle: How operators are computed; null measures in the first round which way is faster.
            server_optimizer: Moves the global model along the algorithm's proposal (FedAvg with Adam is FedAdam);
                null takes the proposal as it is.
            server_scheduler: Schedule of the server optimizer's learning rate, stepped once a round.
            server_clip: Largest norm of the global model's move in a round.
            weighting: ``uniform`` minimises the mean of f_i; ``samples`` weighs clients by their numbers of samples.
            buffers: ``average`` treats BatchNorm statistics like the parameters of their layer, so those of personal
                layers stay on the client (FedBN: name such layers in ``personal_parameters``); ``local`` leaves all
                there. Averaged statistics suit averaged models: where clients keep models of their own beside it
                (Ditto, pFedMe, FedALA, LpProj), normalise by groups, or choose ``local``.
            client_storage: Where client states lie; null keeps them beside the model.
            predict_client: Predict with this client's own model; null for the global model or, where test data come
                client by client, each client's own.
            drift_parameters: Name prefixes of shared parameters; ``drift``, the mean distance of local points from the
                global one, is taken over these. To compare methods that share different parts. Empty for all.
            self_check: When a batched, replayed or compiled oracle is compared with evaluation client by client, and
                given up for a slower one if they differ: in the ``first`` round of a fit, with the first and the last
                client of its cohort; in every n-th, each time with two other clients; or never (``off``). The first
                round cannot show what an objective begins to do later.

        Raises:
            ValueError: If a regulariser is given to an algorithm that takes none, or a server optimizer is asked of an
                algorithm whose server does not hold the point.
        """
        super().__init__()
        chosen: Any = algorithm
        if not isinstance(chosen, Algorithm) or not hasattr(chosen, "__dataclass_fields__"):
            raise TypeError(
                f"{type(self).__name__}(algorithm={chosen!r}): expected an object of a dataclass derived from "
                "fedlightning.algorithms.Algorithm, e.g. FedAvg(lr=0.1)."
            )
        _require_one_of("weighting", weighting, get_args(Weighting))
        _require_one_of("buffers", buffers, get_args(Buffers))
        if self_check not in ("first", "off") and (type(self_check) is not int or self_check < 1):
            raise ValueError(f"self_check={self_check!r}: expected 'first', 'off', or a number of rounds from 1 on.")
        owner = type(self).__name__
        if oracle is not None:
            require_instance(f"{owner}(oracle", oracle, ClientBatching, "Sequential()")
        if client_storage is not None:
            require_instance(f"{owner}(client_storage", client_storage, Storage, "MemoryMapped('rows')")
        require_argument(self, "server_clip", server_clip, optional=True, above=0.0)
        require_argument(self, "predict_client", predict_client, optional=True, whole=True, at_least=0)
        for name, made in (("server_optimizer", server_optimizer), ("server_scheduler", server_scheduler)):
            if made is not None and not callable(made):
                raise TypeError(f"{owner}({name}={made!r}): expected something that makes it, e.g. {EXAMPLES[name]}.")
        if isinstance(drift_parameters, str) or not isinstance(drift_parameters, Iterable):
            raise ValueError(
                f"drift_parameters={drift_parameters!r}: expected a list of name prefixes, e.g. [{drift_parameters}]."
            )
        self.automatic_optimization = False
        self.algorithm = algorithm
        self.predict_client = predict_client
        self.client_storage = client_storage
        self.client_metrics: dict[str, Tensor] = {}
        self.predicted_clients: list[int] = []
        self.round_metrics: Mapping[str, Tensor | float] = {}
        self.run = FederationRun(self, self._simulation)
        self.evaluation_session = EvaluationSession(self)
        self._regularizers = regularizer, max_regularizer
        self._server_step = ServerStep(server_optimizer, server_scheduler, server_clip)
        self._round_report = RoundReport()
        self._oracle = Auto() if oracle is None else oracle
        self._weighting: Weighting = weighting
        self._buffers_policy: Buffers = buffers
        self._drift_parameters = tuple(drift_parameters)
        self._self_check: When = self_check
        self._weights_loaded = False
        self._warned_of_the_start = False
        self._in_round = False
        given = regularizer is not None or max_regularizer is not None
        if given and not algorithm.regularized:
            raise ValueError(
                f"{type(algorithm).__name__} takes no regularizer or max_regularizer: averaging its local points would "
                "undo what a proximal step did. Composite methods here: "
                f"{', '.join(composite_methods())}. A smooth penalty can be part of objective()."
            )
        if self._server_step.moves_freely and given:
            raise ValueError(
                "server_optimizer, server_scheduler and server_clip would move the model after the proximal step, out "
                "of its constraint and structure. Use either a regularizer or one of these."
            )
        if self._server_step.moves_freely and not algorithm.primal:
            raise ValueError(
                f"{type(algorithm).__name__} computes the point from its server state (a dual, or exact means over all "
                "clients): server_optimizer, server_scheduler and server_clip cannot move it. Leave them out and use "
                "the algorithm's own step sizes."
            )

    @abstractmethod
    def objective(self, batch: Any) -> Tensor | dict[str, Tensor]:
        """f_i of one client's minibatch; minimised over the min block, maximised over the max block.

        It is evaluated for many clients at once where that is possible (``torch.func.vmap``): without ``.item()``,
        ``if`` on tensors and boolean indexing, for which masks stand in. Whatever cannot be batched, or comes out
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
        """One communication round."""
        start = time.perf_counter()
        if not isinstance(batch, RoundBatch):
            raise TypeError(
                f"training_step got a {type(batch).__name__} instead of a round of cohorts: train with a "
                "FederatedDataModule, e.g. FederatedDataModule.from_datasets(train=[one data set a client])."
            )
        simulation = self.run.simulation
        self.run.release_loaded()
        step_sizes = client_step_sizes(self.algorithm, simulation.server.state)
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        autocast = self._autocast(scaler)
        self._in_round = True
        try:
            with torch.autocast(self.device.type, enabled=False):
                placed = batch.place(self.device, self._trainable.dtype)
                result = simulation.run(placed, autocast, undo_overflow=scaler is not None and autocast.scale > 1)
        except RoundRejectedError as error:
            raise RoundRejectedError(f"Round {batch.index}: {error}{self._rescue()}") from None
        finally:
            self._in_round = False
        self._server_step.take(self, simulation, scaler, result.undone)
        simulation.loop.follow()
        self.round_metrics = {**result.metrics, **step_sizes}
        self._round_report.publish(self, result, {**self.round_metrics, "round_time": time.perf_counter() - start})

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """One optimizer, the server's, over the shared parameters; it steps once a round."""
        self._begin_again()
        space = self._space()
        self.algorithm.bind(space, self._trainable, self._composite(space))  # names wrong prefixes and shapes now
        space.shared.columns(self._drift_parameters, "drift_parameters")
        self._check_fit(space)
        named = dict(self.named_parameters())
        return self._server_step.configure([named[name] for name in space.shared.names])

    def _check_fit(self, space: ParameterSpace) -> None:
        """Refuse or warn of what would go on in silence, now that parameters and data are known."""
        refuse_synchronised_statistics(self)
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        if isinstance(data, FederatedDataModule):
            warn_of_single_samples(self, data)
        name = type(self.algorithm).__name__
        if self.algorithm.without_personal and not space.personal.dim:
            rank_zero_warn(
                f"{name} is a method for personal parameters, and {type(self).__name__} has none: it runs as "
                f"{self.algorithm.without_personal}. Name them in personal_parameters, or take that method by its name."
            )
        there = any(isinstance(c, EvaluateClients) for c in self.trainer.callbacks)  # type: ignore[attr-defined]
        if self.evaluated_models and not there:
            raise TypeError(
                f"{type(self).__name__}.configure_callbacks leaves out EvaluateClients, without which clients' own "
                "models are never validated. Return [*super().configure_callbacks(), ...]."
            )

    def _begin_again(self) -> None:
        """A fit begins where a checkpoint stands, else at the present parameters, as Lightning's optimizers do."""
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        self.run.begin_again(data)
        advice = self.algorithm.partial_cohorts if isinstance(data, FederatedDataModule) else None
        if advice and data.participation.fewest(data.num_clients) < data.num_clients:
            rank_zero_info(f"{type(self.algorithm).__name__}: {advice}")
        self.round_metrics = {}
        self._round_report = RoundReport()
        self._weights_loaded = False

    def configure_callbacks(self) -> list[Callback]:
        """Evaluation client by client, where clients have models of their own."""
        leave_out_inapplicable_advice()
        if type(self.trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            self.trainer.strategy.checkpoint_io = AtomicCheckpointIO()  # before any checkpoint is read or written
        there = any(isinstance(callback, EvaluateClients) for callback in self.trainer.callbacks)  # type: ignore[attr-defined]
        return [] if there else [EvaluateClients()]

    def on_train_start(self) -> None:
        """Say so if nothing will be validated."""
        say_if_never_validated(self.trainer)

    def on_validation_epoch_end(self) -> None:
        """Put validation metrics at the round they belong to; Lightning would count one less."""
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self.log("step", float(self.trainer.global_step))

    def _simulation(self) -> Simulation:
        """A server and clients at the task's present parameters."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        space = self._space()
        return Simulation(
            self.algorithm,
            self,
            space,
            self._oracle,
            weighting=self._weighting,
            buffers=self._buffers_policy,
            storage=self.client_storage,
            processes=DistributedProcesses() if distributed else OneProcess(),
            regularizer=self._composite(space),
            report=rank_zero_info,
            drift_parameters=self._drift_parameters,
            self_check=self._self_check,
            evaluator=self.evaluation_session,
        )

    def _space(self) -> ParameterSpace:
        return ParameterSpace(self, self.max_parameters, self.personal_parameters)

    def _composite(self, space: ParameterSpace) -> Composite:
        regularizer, max_regularizer = self._regularizers
        return compose(space.shared, regularizer, max_regularizer, personal=space.personal.names)

    def _autocast(self, scaler: Any) -> Autocast:
        """The precision Lightning runs training steps in."""
        device = self.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return Autocast(device, dtype, scale=1.0 if scaler is None else scaler.get_scale())

    @property
    def _trainable(self) -> Tensor:
        """The first parameter that is trained; frozen ones may be of another dtype."""
        return next((p for p in self.parameters() if p.requires_grad), next(self.parameters()))

    def regularization(self) -> Tensor | None:
        """Psi at the module's present shared parameters, a scalar; None without regularizers."""
        if self._regularizers == (None, None):
            return None
        space = self._space()
        return self._composite(space).value(read(space.shared, self))

    def _rescue(self) -> str:
        """Save the last good state, if this run saves checkpoints at all."""
        callback = self.trainer.checkpoint_callback
        if callback is None:
            return ""
        folder = Path(getattr(callback, "dirpath", None) or self.trainer.default_root_dir)
        path = folder / f"before-rejected-round-{self.trainer.global_step}.ckpt"
        self.trainer.save_checkpoint(path)
        return f" The state before this round was saved to {path}."

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add server and client states, and write hyper-parameters in plain types."""
        codec.save(self, checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over server and client states.

        Raises:
            CheckpointError: If the checkpoint has none, they are damaged, or they belong to another algorithm or model.
        """
        if self._trainer is None:
            codec.load(self, checkpoint, fitting=True)
            return
        self.run.source = str(self.trainer.ckpt_path or self.run.source)
        codec.load(self, checkpoint, fitting=self.trainer.training)
        if type(self).on_load_checkpoint is FederatedLightningModule.on_load_checkpoint:
            codec.require_fitting_weights(self, checkpoint["state_dict"], self.strict_loading)
        if self.trainer.training:
            codec.require_resumable(checkpoint, self.run.source)

    @_restricted_classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | Path | IO[bytes],
        map_location: Any = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        trusted: Iterable[Any] = (),
        **kwargs: Any,
    ) -> Self:
        """The task of a checkpoint, with its weights, the server's and the clients' states.

        Of what the file names, nothing is built but classes of this package, ``torch.optim``'s optimizers and
        schedulers, ``torch.nn``'s layers, classes of the module that defines this task, and those in ``trusted``.

        Args:
            checkpoint_path: A file, a URL, or an open file.
            map_location: As for ``torch.load``.
            hparams_file: YAML or CSV with hyper-parameters in place of those stored.
            strict: Whether the names of the weights must be the same; null for the task's ``strict_loading``.
            weights_only: Null or true: files with more than tensors and plain values are refused. False runs whatever
                is in the file.
            trusted: Classes and functions of yours that hyper-parameters in the file may name.
            kwargs: Hyper-parameters that win over those stored.

        Raises:
            CheckpointError: If the file is no checkpoint of such a task, or asks for a class that is not trusted.
        """
        task: Self = codec.read_task(
            cls, checkpoint_path, map_location, hparams_file, strict, weights_only, trusted, kwargs
        )
        return task


def _require_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, known))}.")
