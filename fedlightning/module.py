"""The task side of the library: a LightningModule whose training step is one communication round."""

from __future__ import annotations

import inspect
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from operator import index
from pathlib import Path
from types import FrameType
from typing import IO, Any, ClassVar, get_args

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from typing_extensions import Self

from fedlightning.advice import leave_out_inapplicable_advice
from fedlightning.algorithms.base import Algorithm, composite_methods
from fedlightning.callbacks.clients import EvaluateClients
from fedlightning.checkpoint_io import (
    FORMAT,
    AtomicCheckpointIO,
    read_checkpoint,
    read_hyper_parameters,
    require_federation,
)
from fedlightning.clients import MemoryMapped, Storage
from fedlightning.config import CheckpointError, NotPlainError, class_path, rebuild, to_config
from fedlightning.data.cohort import RoundBatch
from fedlightning.data.module import FederatedDataModule
from fedlightning.histograms import log_histogram
from fedlightning.loop import Buffers, RoundLoop, RoundRejectedError, RoundResult, Weighting, When
from fedlightning.oracle import Auto, Autocast, Oracle
from fedlightning.processes import Distributed, OneProcess
from fedlightning.proximal import Composite, Regularizer, compose
from fedlightning.ranges import require_argument, require_instance
from fedlightning.space import ParameterSpace, PerBlock, read, write
from fedlightning.surface import (
    never_made,
    refuse_synchronised_statistics,
    require_a_federated_fit,
    say_if_never_validated,
    warn_of_single_samples,
)
from fedlightning.variants import VariantChoice, settle

OptimizerCallable = Callable[[Iterable[Tensor]], Optimizer]
LRSchedulerCallable = Callable[[Optimizer], LRScheduler]

CHECKPOINT_KEY = "federation"
_RUNAWAY = 1e6


class FederatedLightningModule(LightningModule):
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
    """

    max_parameters: ClassVar[tuple[str, ...]] = ()
    personal_parameters: tuple[str, ...] = ()
    per_client_evaluation: ClassVar[bool] = False
    higher_is_better: ClassVar[Mapping[str, bool]] = {}

    __jit_unused_properties__: list[str] = [  # noqa: RUF012  # as in Lightning; TorchScript would compile these
        *LightningModule.__jit_unused_properties__,
        "server_state",
        "client_states",
        "has_client_states",
        "traffic",
        "keeps_models",
        "evaluated_models",
        "changed_since_its_rounds",
        "between_rounds",
        "_answers_with_the_start",
        "_has_own_points",
        "_has_rounds",
        "_is_last_round",
        "_logs_this_round",
        "_moves_freely",
        "_restores_rows",
        "_trainable",
    ]

    def __init__(
        self,
        algorithm: Algorithm,
        regularizer: Regularizer | dict[str, Regularizer | None] | None = None,
        max_regularizer: Regularizer | dict[str, Regularizer | None] | None = None,
        oracle: Oracle | None = None,
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
            regularizer: psi_1, added to the mean of the objectives: one for every shared tensor of the min block, or
                one by name prefix (None for none there). Personal parameters have none.
            max_regularizer: psi_2, subtracted from it: the same for the max block.
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
            require_instance(f"{owner}(oracle", oracle, Oracle, "Sequential()")
        if client_storage is not None:
            require_instance(f"{owner}(client_storage", client_storage, Storage, "MemoryMapped('rows')")
        require_argument(self, "server_clip", server_clip, optional=True, above=0.0)
        require_argument(self, "predict_client", predict_client, optional=True, whole=True, at_least=0)
        for name, made in (("server_optimizer", server_optimizer), ("server_scheduler", server_scheduler)):
            if made is not None and not callable(made):
                raise TypeError(f"{owner}({name}={made!r}): expected something that makes it, e.g. {_MAKERS[name]}.")
        self.automatic_optimization = False
        self.algorithm = algorithm
        self._regularizer = regularizer
        self._max_regularizer = max_regularizer
        self._oracle = Auto() if oracle is None else oracle
        self._server_optimizer = server_optimizer
        self._server_scheduler = server_scheduler
        self._server_clip = server_clip
        self._weighting: Weighting = weighting
        self._buffers_policy: Buffers = buffers
        self._client_storage = client_storage
        self.predict_client = predict_client
        if isinstance(drift_parameters, str) or not isinstance(drift_parameters, Iterable):
            raise ValueError(
                f"drift_parameters={drift_parameters!r}: expected a list of name prefixes, e.g. [{drift_parameters}]."
            )
        self._drift_parameters = tuple(drift_parameters)
        self._self_check: When = self_check
        self.client_metrics: dict[str, Tensor] = {}
        self.predicted_clients: list[int] = []
        self.round_metrics: Mapping[str, Tensor | float] = {}
        self._note: Callable[..., None] | None = None
        self._side_by_side: Callable[..., None] | None = None
        self._loop: RoundLoop | None = None
        self._restored: Mapping[str, Any] | None = None
        self._restored_from = "The checkpoint"
        self._trained_on: Mapping[str, Any] = {}
        self._in_round = False
        self._first_loss: float | None = None
        self._weights_loaded = False
        self._is_one_clients = False
        self._warned_of_the_start = False
        given = regularizer is not None or max_regularizer is not None
        if given and not algorithm.regularized:
            raise ValueError(
                f"{type(algorithm).__name__} takes no regularizer or max_regularizer: averaging its local points would "
                "undo what a proximal step did. Composite methods here: "
                f"{', '.join(composite_methods())}. A smooth penalty can be part of objective()."
            )
        if self._moves_freely and given:
            raise ValueError(
                "server_optimizer, server_scheduler and server_clip would move the model after the proximal step, out "
                "of its constraint and structure. Use either a regularizer or one of these."
            )
        if self._moves_freely and not algorithm.primal:
            raise ValueError(
                f"{type(algorithm).__name__} computes the point from its server state (a dual, or exact means over all "
                "clients): server_optimizer, server_scheduler and server_clip cannot move it. Leave them out and use "
                "the algorithm's own step sizes."
            )

    def save_hyperparameters(self, *args: Any, frame: FrameType | None = None, **kwargs: Any) -> None:
        """As Lightning's, without its advice to leave networks out: of the command line's, the class paths are kept."""
        caller = inspect.currentframe()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Attribute .* is an instance of `nn.Module`")
            super().save_hyperparameters(*args, frame=frame or (caller and caller.f_back), **kwargs)

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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As ``nn.Module``'s; outside a run, a task with personal parts says whose answer is given."""
        if self.personal_parameters and not self._warned_of_the_start and self._answers_with_the_start:
            self._warned_of_the_start = True
            rank_zero_warn(
                f"{type(self).__name__} answers with the shared parameters and the personal ones of the start, which "
                "no client has trained. Use task.personalize(i) for client i's own model."
            )
        return super().__call__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """As ``nn.Module``'s; of a task whose ``__init__`` left ours out it says so."""
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if "_self_check" in vars(self):
                raise
            raise AttributeError(f"{error}. {never_made(self)}") from None

    @property
    def _answers_with_the_start(self) -> bool:
        """Whether a trained task is called as a whole, outside a run that puts clients' models in."""
        if self._in_round or self._is_one_clients:
            return False
        running = self._trainer is not None and self._trainer.state.stage is not None
        return not running and (self.has_client_states or self._weights_loaded)

    @property
    def trainer(self) -> Trainer:
        """The trainer, as Lightning sets it before anything else; a fit it cannot carry out is refused then."""
        if not self._jit_is_scripting and self._trainer is None and self._fabric is None:
            raise RuntimeError(
                f"{type(self).__name__} is not attached to a Trainer. (torch.jit reads every attribute of a module: "
                "use task.personalize(i).to_torchscript(), or trace its networks.)"
            )
        return super().trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | None) -> None:
        if "_self_check" not in vars(self):
            raise TypeError(never_made(self))
        attach: Any = LightningModule.trainer
        attach.fset(self, trainer)
        if trainer is not None:
            require_a_federated_fit(self, FederatedLightningModule, trainer)

    # ---- state -------------------------------------------------------------------------------------------------------

    @property
    def server_state(self) -> Any:
        """The algorithm's server state, a dataclass of vectors ``[d]`` and numbers."""
        if self._jit_is_scripting:  # it reads every attribute, and there may be no rounds
            return None
        return self._rounds().server

    @property
    def client_states(self) -> Any:
        """The states of all N clients, a dataclass of tensors ``[N, d]``; None for a stateless algorithm.

        Clients that never took part have the initial state.
        """
        if self._jit_is_scripting:
            return None
        loop = self._rounds()
        return loop.client_state(loop.clients.rows(range(loop.clients.clients)))

    @property
    def has_client_states(self) -> bool:
        """Whether there are states of clients: from the first round on, or from a checkpoint that holds some."""
        if self._loop is not None:
            return self._loop.has_clients
        return self._restored is not None and self._restored["clients"] is not None

    @property
    def traffic(self) -> tuple[int, int]:
        """Floats sent so far, all clients together: (upload, download)."""
        if self._jit_is_scripting:
            return 0, 0
        loop = self._rounds()
        return loop.upload, loop.download

    @property
    def keeps_models(self) -> bool:
        """Whether clients have models of their own, in part or whole."""
        return bool(self.personal_parameters) or self._buffers_policy == "local" or self._has_own_points

    @property
    def evaluated_models(self) -> tuple[str, ...]:
        """Which models validation and test look at client by client; none where the global one is all there is."""
        own = self.keeps_models or self.per_client_evaluation
        return ("own", "global") if self._has_own_points else ("own",) if own else ()

    @property
    def changed_since_its_rounds(self) -> bool:
        """Whether somebody else has changed the task's shared parameters since the last round."""
        if self._loop is None:
            return False
        present = read(self._loop.space.shared, self)
        return not torch.allclose(present, self._loop.point.to(present), rtol=1e-5)  # checkpoints may round them

    def require_its_clients(self, data: Any, resuming: bool = False) -> None:
        """Make sure that clients' own models and a data module belong together.

        Args:
            data: Data module.
            resuming: Whether a fit goes on from a checkpoint: then all that clients keep counts, duals and control
                variates too. The global model alone may be evaluated on any data.

        Raises:
            ValueError: If there are such models or states and they were trained on another federation.
        """
        counts = self.keeps_models or (resuming and self._restores_rows)
        known = counts and self._has_rounds and isinstance(data, FederatedDataModule)
        difference = data.differs_from(self._trained_on) if known else None
        if difference is not None:
            raise ValueError(difference)

    def evaluated_together(self, stage: str) -> int:
        """How many clients a batch of validation (``val``) or test data may hold side by side; 1 for one by one.

        See :class:`~fedlightning.ScoredTask`.
        """
        return 1

    def personalize(self, client: int) -> FederatedLightningModule:
        """A copy of the task with one client's own model: personal block, personal model, local buffers.

        In place of :class:`~fedlightning.models.Variants` it has the client's variant itself.

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
        loop = self._rounds()
        copy = deepcopy(self, {id(loop): None, id(self._restored): None})
        copy._trained_on = {}
        copy._is_one_clients = True
        copy.predict_client = None
        copy._adopt(client, loop=loop)
        settle(copy)
        return copy

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

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As ``nn.Module``'s: the global model alone. ``load_from_checkpoint`` brings clients' models too."""
        result = super().load_state_dict(*args, **kwargs)
        self._weights_loaded = True
        return result

    def _adopt(self, client: int | None, own: bool = True, loop: RoundLoop | None = None) -> None:
        """Put a client's own model, or the global one, into the task's parameters and buffers.

        Args:
            client: Client, whose variants come to hand; None for the global model with the first variants.
            own: The client's own model; else the global one, beside its personal block and local buffers.
            loop: Has the models; null for the task's own.
        """
        if loop is None and self._has_rounds:
            loop = self._rounds()
        if client is not None and loop is not None and loop.has_clients and not 0 <= client < loop.clients.clients:
            raise IndexError(f"client={client}: the federation has clients 0 to {loop.clients.clients - 1}.")
        choice = VariantChoice(self)
        variant = choice.first if client is None else choice.of(client)
        if loop is not None and variant != choice.current:
            self._write(loop, choice.current, loop.start(choice.current))  # the one that is left
        choice.choose(variant)
        if loop is None:
            return  # no round yet: all stand at the present parameters
        models = loop.start(variant) if client is None else loop.models([client], own)
        self._write(loop, variant, models)

    def _write(self, loop: RoundLoop, variant: str, models: tuple[Tensor, Tensor, Tensor | None]) -> None:
        """Write the first of the models, one of the variant at hand."""
        points, personal, buffers = models
        space = loop.kind(variant).space
        write(space.shared, self, points[0])
        write(space.personal, self, personal[0])
        if buffers is not None:
            write(space.buffers, self, buffers[0])

    # ---- training ----------------------------------------------------------------------------------------------------

    def training_step(self, batch: RoundBatch, batch_idx: int) -> None:
        """One communication round."""
        start = time.perf_counter()
        if not isinstance(batch, RoundBatch):
            raise TypeError(
                f"training_step got a {type(batch).__name__} instead of a round of cohorts: train with a "
                "FederatedDataModule, e.g. FederatedDataModule.from_datasets(train=[one data set a client])."
            )
        loop = self._rounds()
        self._restored = None  # from here on the loop is ahead of what was loaded
        step_sizes = self._step_sizes(loop)
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        autocast = self._autocast(scaler)
        self._in_round = True
        try:
            with torch.autocast(self.device.type, enabled=False):
                placed = batch.place(self.device, self._trainable.dtype)
                result = loop.run(placed, autocast, undo_overflow=scaler is not None and autocast.scale > 1)
        except RoundRejectedError as error:
            raise RoundRejectedError(f"Round {batch.index}: {error}{self._rescue()}") from None
        finally:
            self._in_round = False
        self._move(loop, scaler, result)
        loop.settled = True
        self.round_metrics = {**result.metrics, **step_sizes}
        self._report(result, {**self.round_metrics, "round_time": time.perf_counter() - start})

    def _report(self, result: RoundResult, metrics: dict[str, Tensor | float]) -> None:
        """Give a round's metrics to callbacks, every round, and to loggers when these are due.

        ``self.log`` takes Lightning more than a quarter of a millisecond a value, which a short round would feel.
        """
        trainer: Any = self.trainer
        if trainer.barebones:
            return
        self.log("step", float(trainer.global_step), batch_size=1, logger=False)  # names of checkpoints
        read = self._logs_this_round
        penalty = self.regularization() if read else None
        if penalty is not None:
            metrics["regularization"] = penalty
        else:
            trainer.callback_metrics.pop("regularization", None)  # that of an earlier round
        trainer.callback_metrics.update({name: torch.as_tensor(value) for name, value in metrics.items()})
        if read or self.device.type == "cpu":  # elsewhere a look would wait for the device
            self._watch(metrics)
        every = trainer.log_every_n_steps
        if not (trainer.should_stop or (every and (trainer.global_step % every == 0 or self._is_last_round))):
            return
        numbers = {name: float(value) for name, value in metrics.items()}
        trainer.logged_metrics.update({name: torch.as_tensor(value) for name, value in numbers.items()})
        for logger in trainer.loggers:
            logger.log_metrics({**numbers, "epoch": trainer.current_epoch}, step=trainer.global_step)
            logger.save()
        for name, values in result.clients.items():
            log_histogram(trainer, f"{name}_clients", values)

    def _watch(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Warn once of a training loss that has grown a million-fold since the first round of the fit."""
        if "train_loss" not in metrics:
            return
        loss = abs(float(metrics["train_loss"]))
        if self._first_loss is None:
            self._first_loss = max(loss, 1e-3)  # an objective of a saddle point may begin near zero
        elif loss > _RUNAWAY * self._first_loss:
            rank_zero_warn(
                f"train_loss has grown more than a million-fold, to {loss:.3g} in round {self.trainer.global_step - 1}:"
                " the run diverges. Lower lr, or set local_clip of the algorithm or server_clip of the task."
            )
            self._first_loss = float("inf")

    def _step_sizes(self, loop: RoundLoop) -> dict[str, float]:
        """The clients' step size in the coming round as ``client_lr``, by block or prefix if it differs."""
        given: PerBlock | None = getattr(self.algorithm, "lr", None)
        if given is None:
            given = getattr(getattr(self.algorithm, "solver", None), "lr", None)
        if given is None:
            return {}
        scale = self.algorithm.step_scale(loop.server)
        if isinstance(given, Mapping):
            return {f"client_lr/{name}": scale * float(lr) for name, lr in given.items()}
        if isinstance(given, list | tuple):
            return {f"client_lr/{name}": scale * float(lr) for name, lr in zip(("min", "max"), given, strict=True)}
        return {"client_lr": scale * float(given)}

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """One optimizer, the server's, over the shared parameters; it steps once a round."""
        self._begin_again()
        space = self._space()
        self.algorithm.bind(space, self._trainable, self._psi(space))  # names wrong prefixes and shapes now
        space.shared.columns(self._drift_parameters, "drift_parameters")
        self._check_fit(space)
        named = dict(self.named_parameters())
        parameters = [named[name] for name in space.shared.names]
        optimizer = (
            torch.optim.SGD(parameters, lr=1.0)
            if self._server_optimizer is None
            else self._server_optimizer(parameters)
        )
        _require_server_optimizer(optimizer, parameters)
        if self._server_scheduler is None:
            return optimizer
        scheduler: Any = self._server_scheduler(optimizer)
        if not isinstance(scheduler, LRScheduler):
            raise TypeError(
                f"server_scheduler made {scheduler!r}: expected a torch.optim.lr_scheduler of the optimizer it is "
                f"given, e.g. {_MAKERS['server_scheduler']}."
            )
        if isinstance(scheduler, ReduceLROnPlateau):
            raise ValueError("server_scheduler=ReduceLROnPlateau: it waits for a metric, but is stepped once a round.")
        return [optimizer], [scheduler]

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
        """A fit begins where a checkpoint stands, else at the present parameters, as Lightning's optimizers do.

        Clients' own models are parameters, too: where there are some, a fit goes on from all states of the one before,
        unless the task's parameters have been changed since, or the data are of other clients.
        """
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        federated = isinstance(data, FederatedDataModule)
        if self._restored is not None:
            self.require_its_clients(data, resuming=True)
        elif self.keeps_models and self._loop is not None and self._loop.has_clients:
            if federated and data.differs_from(self._trained_on) is None and not self.changed_since_its_rounds:
                self._restored = self._loop.state_dict()
            else:
                warnings.warn(
                    "The clients' own models of the fit before are given up: the task's parameters were changed since, "
                    "or the data are of other clients.",
                    stacklevel=2,
                )
        if federated and (advice := self.algorithm.partial_cohorts):
            clients = data.num_clients
            if data.participation.fewest(clients) < clients:
                rank_zero_info(f"{type(self.algorithm).__name__}: {advice}")
        self._loop = None
        self._trained_on = data.identity if federated else {}
        self.round_metrics = {}
        self._first_loss = None
        self._weights_loaded = self._is_one_clients = False

    def optimizers(self, *args: Any, **kwargs: Any) -> Any:
        """As Lightning's; inside :meth:`objective` there is none to step."""
        if self._in_round:
            raise RuntimeError(
                f"{type(self).__name__}.objective called self.optimizers(). Return the loss: the algorithm steps the "
                "clients' models, server_optimizer the global one."
            )
        return super().optimizers(*args, **kwargs)

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """As Lightning's; inside :meth:`objective` it explains what to do instead."""
        if self._in_round:
            raise RuntimeError(
                f"{type(self).__name__}.objective called self.log('{name}', ...). It runs for many clients at once: "
                f"return a dict instead, {{'loss': loss, '{name}': value}}; the mean over clients is logged."
            )
        if self._note is not None:
            self._note(name, value, *args, **kwargs)
            return
        trainer: Any = self._trainer
        if name != "step" and trainer is not None and trainer.training and not trainer.barebones:
            super().log("step", float(trainer.global_step), batch_size=1)  # the axis of loggers is the round
        super().log(name, value, *args, **kwargs)

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

    def _rounds(self) -> RoundLoop:
        """The round loop, from a checkpoint if there is one, else at the present parameters."""
        if self._loop is None:
            distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
            space = self._space()
            loop = RoundLoop(
                self.algorithm,
                self,
                space,
                self._oracle,
                weighting=self._weighting,
                buffers=self._buffers_policy,
                storage=self._client_storage,
                processes=Distributed() if distributed else OneProcess(),
                psi=self._psi(space),
                report=rank_zero_info,
                drift_parameters=self._drift_parameters,
                self_check=self._self_check,
            )
            if self._restored is not None:
                try:
                    loop.load_state_dict(self._restored)
                except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
                    kind = type(error) if isinstance(error, CheckpointError) else CheckpointError
                    raise kind(f"{self._restored_from}: {error}") from error
            self._loop = loop
        return self._loop

    def _space(self) -> ParameterSpace:
        return ParameterSpace(self, self.max_parameters, self.personal_parameters)

    def _psi(self, space: ParameterSpace) -> Composite:
        return compose(space.shared, self._regularizer, self._max_regularizer, personal=space.personal.names)

    def _autocast(self, scaler: Any) -> Autocast:
        """The precision Lightning runs training steps in."""
        device = self.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return Autocast(device, dtype, scale=1.0 if scaler is None else scaler.get_scale())

    @property
    def _trainable(self) -> Tensor:
        """The first parameter that is trained; frozen ones may be of another dtype."""
        return next((p for p in self.parameters() if p.requires_grad), next(self.parameters()))

    @property
    def _has_own_points(self) -> bool:
        """Whether the algorithm keeps a whole model for every client beside the global one."""
        return type(self.algorithm).own_point is not Algorithm.own_point

    @property
    def _restores_rows(self) -> bool:
        """Whether the checkpoint that was loaded holds states of clients."""
        clients = None if self._restored is None else self._restored["clients"]
        return clients is not None and bool(clients["template"])

    @property
    def _has_rounds(self) -> bool:
        """Whether there are states of rounds, in the loop or in a checkpoint that was loaded."""
        return self._loop is not None or self._restored is not None

    @property
    def _logs_this_round(self) -> bool:
        """Logging a value takes Lightning a quarter of a millisecond, so it is done when somebody reads it."""
        trainer: Any = self.trainer
        rounds = trainer.global_step
        read = rounds == 1 or self._is_last_round or rounds % max(1, trainer.log_every_n_steps) == 0
        watched = any(getattr(callback, "monitor", None) for callback in trainer.callbacks)
        return read or watched or bool(trainer.is_last_batch)

    @property
    def _is_last_round(self) -> bool:
        """Whether the fit ends with this round, by its rounds or its epochs: a short one shows its metrics, too."""
        trainer: Any = self.trainer
        last_epoch = trainer.max_epochs is not None and trainer.current_epoch + 1 == trainer.max_epochs
        return bool(trainer.global_step == trainer.max_steps or (last_epoch and trainer.is_last_batch))

    @property
    def between_rounds(self) -> bool:
        """Whether model, server and clients stand at the same round, so that a checkpoint goes on bit for bit."""
        return self._loop is None or self._loop.settled

    @property
    def _moves_freely(self) -> bool:
        """Whether something else than the algorithm has a say in the server's step."""
        return any(o is not None for o in (self._server_optimizer, self._server_scheduler, self._server_clip))

    def _move(self, loop: RoundLoop, scaler: Any, result: RoundResult) -> None:
        """Take the global model to the algorithm's proposal through the server optimizer; stay if it was undone."""
        optimizer: Any = self.optimizers()
        parameters = dict(self.named_parameters())
        with torch.no_grad():
            for name, target in loop.space.shared.views(loop.point).items():
                step = (parameters[name] - target).to(parameters[name].dtype)
                parameters[name].grad = step
                if result.undone:  # no gradient, no step; a scaler wants one, and steps by no infinite one
                    parameters[name].grad = None if scaler is None else torch.full_like(step, torch.inf)
            if self._server_clip is not None and not result.undone:
                self.clip_gradients(optimizer, self._server_clip, "norm")
            if scaler is not None:
                for name in loop.space.shared.names:
                    parameters[name].grad = scaler.scale(parameters[name].grad)
        optimizer.step()
        optimizer.zero_grad()
        scheduler: Any = self.lr_schedulers()
        if scheduler is not None:
            scheduler.step()
        if self._moves_freely:
            moved = torch.cat([parameters[name].detach().flatten() for name in loop.space.shared.names])
            loop.move_to(moved.to(loop.point))
        else:
            write(loop.space.shared, self, loop.point)
        if len(loop.buffers):
            write(loop.space.buffers, self, loop.buffers)

    def regularization(self) -> Tensor | None:
        """Psi at the module's present shared parameters, a scalar; None without regularizers."""
        if self._regularizer is None and self._max_regularizer is None:
            return None
        space = self._space()
        return self._psi(space).value(read(space.shared, self))

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
        checkpoint[CHECKPOINT_KEY] = {
            "format": FORMAT,
            "algorithm": class_path(type(self.algorithm)),
            "data": dict(self._trained_on),
            **self._rounds().state_dict(),
        }
        for key in (self.CHECKPOINT_HYPER_PARAMS_KEY, FederatedDataModule.CHECKPOINT_HYPER_PARAMS_KEY):
            if key in checkpoint:
                checkpoint[key] = _plain_hyper_parameters(checkpoint[key])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over server and client states.

        Without training, those of another algorithm may be passed over, if the global model is all there is.

        Raises:
            CheckpointError: If the checkpoint has none, they are damaged, or they belong to another algorithm or model.
        """
        fitting = self._trainer is None or self.trainer.training
        if self._trainer is not None:
            self._restored_from = str(self.trainer.ckpt_path or self._restored_from)
        name = self._restored_from
        state = checkpoint.get(CHECKPOINT_KEY)
        if state is not None:
            require_federation(state, name)
        mine = class_path(type(self.algorithm))
        fits = state is not None and state["algorithm"] == mine
        if not fits and (fitting or (state is not None and self.keeps_models)):
            theirs = "no federated algorithm" if state is None else state["algorithm"]
            remedy = (
                "Resume with the same algorithm, or start anew from the weights alone "
                "(task.load_state_dict(checkpoint['state_dict'])) without ckpt_path."
                if fitting
                else "The clients' own models are among them: evaluate with the algorithm it was trained with."
            )
            raise CheckpointError(
                f"{name} was written by {theirs}, this run uses {mine}: their states do not fit. {remedy}"
            )
        if self._trainer is not None and type(self).on_load_checkpoint is FederatedLightningModule.on_load_checkpoint:
            self._require_fitting_weights(checkpoint["state_dict"], self.strict_loading)
        if self._trainer is not None and self.trainer.training and (absent := _RESUMED - set(checkpoint)):
            raise CheckpointError(
                f"{name} has no {', '.join(sorted(absent))}: it was saved with "
                "save_weights_only=True. It can be evaluated; training goes on from a whole checkpoint."
            )
        self._loop = None
        self._restored = state if fits else None
        self._trained_on = {} if state is None else state.get("data", {})

    def _require_fitting_weights(self, stored: Mapping[str, Any], strict: bool) -> None:
        """Name the first weights that cannot be taken over; torch's own list of them can be long."""
        own = self.state_dict()
        wrong = [
            f"'{name}' has the shape {tuple(value.shape)} there, {tuple(own[name].shape)} here"
            for name, value in stored.items()
            if isinstance(value, Tensor) and name in own and not is_lazy(own[name]) and value.shape != own[name].shape
        ]
        if strict:
            wrong += [f"'{name}' is missing there" for name in own if name not in stored]
            wrong += [f"'{name}' is missing here" for name in stored if name not in own]
        if wrong:
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise CheckpointError(
                f"{self._restored_from} holds another model than this {type(self).__name__}: {wrong[0]}{more}. "
                "Use the network and the hyper-parameters it was trained with."
            )
        for name, _ in self.named_parameters():
            value = stored.get(name)
            if isinstance(value, Tensor) and value.isnan().any():
                raise CheckpointError(f"{self._restored_from}: the weights '{name}' contain NaN. Use an earlier one.")

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
        checkpoint = read_checkpoint(checkpoint_path, map_location or _where_possible, weights_only)
        name = str(checkpoint_path) if isinstance(checkpoint_path, str | Path) else "The checkpoint"
        stored = checkpoint.get(cls.CHECKPOINT_HYPER_PARAMS_KEY, {})
        if hparams_file is not None:
            stored = read_hyper_parameters(Path(hparams_file))
        wrapped_in = checkpoint.get(cls.CHECKPOINT_HYPER_PARAMS_NAME)
        task = rebuild(cls, stored, kwargs, trusted, wrapped_in, f"{hparams_file or name}: hyper_parameters")
        storage = task._client_storage
        if isinstance(storage, MemoryMapped) and not Path(storage.folder).is_dir() and "client_storage" not in kwargs:
            raise CheckpointError(
                f"{name}: client states were kept in the folder {storage.folder}, which is not there. Give "
                "client_storage=MemoryMapped(folder), or client_storage=None to keep them beside the model."
            )
        strict = task.strict_loading if strict is None else strict
        task.configure_model()
        task._restored_from = name
        task.on_load_checkpoint(checkpoint)
        task._require_fitting_weights(checkpoint["state_dict"], strict)
        task.load_state_dict(checkpoint["state_dict"], strict=strict)
        device = next((t.device for t in checkpoint["state_dict"].values() if isinstance(t, Tensor)), None)
        return task if device is None else task.to(device)


_MAKERS = {
    "server_optimizer": "functools.partial(torch.optim.Adam, lr=0.01)",
    "server_scheduler": "functools.partial(torch.optim.lr_scheduler.StepLR, step_size=10)",
}


def _require_server_optimizer(optimizer: Any, parameters: Sequence[Tensor]) -> None:
    """Refuse what would leave the global model where it is, or asks for the loss that the server does not have."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"server_optimizer made {optimizer!r}: expected a torch.optim.Optimizer of the parameters it is given, "
            f"e.g. {_MAKERS['server_optimizer']}."
        )
    name = type(optimizer).__name__
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"server_optimizer={name}: it evaluates the loss several times a step, which no server can. Use one that "
            f"takes a gradient, e.g. {_MAKERS['server_optimizer']}."
        )
    moved = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if moved != set(map(id, parameters)):
        raise ValueError(
            f"server_optimizer={name} was made for other parameters than the {len(parameters)} shared ones it was "
            "given, so the global model would not move as a whole. Use those, e.g. "
            f"{_MAKERS['server_optimizer']}."
        )


_RESUMED = {"optimizer_states", "lr_schedulers", "loops"}


def _where_possible(storage: Any, location: str) -> Any:
    """Where tensors were when they were saved; in main memory, if there is no such device."""
    cuda = location.startswith("cuda") and not torch.cuda.is_available()
    mps = location.startswith("mps") and not torch.backends.mps.is_available()
    return storage.cpu() if cuda or mps or location.startswith("xla") else None


def _require_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, known))}.")


def _plain_hyper_parameters(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters that ``torch.load(weights_only=True)`` accepts and Lightning's parser turns into objects."""
    plain: dict[str, Any] = {}
    for name, value in stored.items():
        try:
            plain[name] = to_config(value)
        except NotPlainError:
            warnings.warn(
                f"Hyper-parameter '{name}' ({type(value).__name__}) cannot be stored in the checkpoint as plain "
                f"values; give it again to load_from_checkpoint(path, {name}=...).",
                stacklevel=2,
            )
    if any(isinstance(value, Mapping) and "class_path" in value for value in plain.values()):
        plain.setdefault("_instantiator", "lightning.pytorch.cli.instantiate_module")
    return plain
