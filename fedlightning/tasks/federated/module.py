"""Any LightningModule as a federated task, without a line of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import InvalidAttributeError, UsageError
from fedlightning.core.misspelt import require_arguments
from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.federation.protocol import Moment
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.tasks.base import FederatedLightningModule
from fedlightning.tasks.federated.algorithms import (
    AlgorithmCallable,
    takes_step_size,
    with_clip,
    with_open_step_size,
    with_steps,
    with_steps_left_open,
    with_steps_of,
)
from fedlightning.tasks.federated.clipping import ClipBy, GradientClipping
from fedlightning.tasks.federated.frozen import FrozenParameters
from fedlightning.tasks.federated.give_back import GiveBack
from fedlightning.tasks.federated.hooks import PREFIX, adopt
from fedlightning.tasks.federated.naming import ModuleNames
from fedlightning.tasks.federated.node_trainer import NodeTrainer, require_known_at_nodes
from fedlightning.tasks.federated.optimizers import Configured, Settled, require_steps_in_all_blocks, steps_of
from fedlightning.tasks.federated.plateau import Plateau, StepOnPlateau
from fedlightning.tasks.federated.requirements import overrides, require_trainable_by_clients
from fedlightning.tasks.federated.rounds import ModuleRounds
from fedlightning.tasks.federated.schedules import (
    plateau_of,
    scheduled_groups,
    warn_of_kept,
    warn_of_other_epochs,
    without_clock,
    without_step_size,
)
from fedlightning.tasks.federated.step import ModuleStep
from fedlightning.tasks.federated.stored import (
    ALGORITHM_KEY,
    FROZEN_KEY,
    PLATEAU_KEY,
    algorithm_of,
    describe,
    stored_algorithm,
)
from fedlightning.tasks.fit.server_step import LRSchedulerCallable, OptimizerCallable, ServerStep


class Federated(FederatedLightningModule):
    """Trains a LightningModule over many clients as it is; :func:`federate` does the same in Python.

    The module's ``training_step`` is the objective of a client, its optimizer takes the local steps, and what it logs
    is averaged over clients. Validation, test, prediction, hooks and metrics are its own. After a fit ``module`` holds
    the global model: ``torch.save(task.module.state_dict(), path)`` is read by the module without this package.

    Attributes:
        module: The LightningModule.
        objective_name: What messages call the objective: the module's own method.
        plateau: Decides on step sizes after validation, if the module's scheduler waits for a metric.
    """

    def __init__(
        self,
        module: nn.Module,
        algorithm: Algorithm | AlgorithmCallable,
        max_parameters: Sequence[str] = (),
        personal_parameters: Sequence[str] = (),
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: ClipBy | None = None,
        per_client_evaluation: bool = False,
        without_hooks: Sequence[str] = (),
        server_optimizer: OptimizerCallable | None = None,
        server_scheduler: LRSchedulerCallable | None = None,
        server_clip: float | None = None,
        **federation: Any,
    ) -> None:
        """Take a module over.

        Args:
            module: A LightningModule with automatic optimization and at most one optimizer.
            algorithm: What clients and server do. An object's own step size is used; a class such as ``FedAvg``, or a
                ``functools.partial`` of it that names no ``lr``, takes that of the module's optimizer.
            max_parameters: Dotted name prefixes, as in the module, of the parameters that are maximised.
            personal_parameters: Dotted name prefixes, as in the module, of the parameters that never leave a client.
            gradient_clip_val: Limit > 0 of every client's gradients; null for that of the Trainer, if it has one.
            gradient_clip_algorithm: Whether the limit is one of the ``norm`` or of every ``value``; null for what the
                Trainer says, or the norm.
            per_client_evaluation: Whether validation and test look at every client by itself even if all use the global
                model. Where clients have models of their own, they always do.
            without_hooks: Hooks of the module that training does without, because no round can call them.
            server_optimizer: As for :class:`FederatedLightningModule`.
            server_scheduler: Likewise.
            server_clip: Likewise.
            federation: Further arguments of :class:`FederatedLightningModule`. Name prefixes are those of the module.

        Raises:
            TypeError: If the module is none, or cannot be trained by clients.
            ValueError: If a value is out of range.
        """
        require_trainable_by_clients(module, without_hooks)
        require_arguments("federate", federation, [Federated.__init__, FederatedLightningModule.__init__])
        names = ModuleNames(module)
        chosen, lr_is_open = with_open_step_size(algorithm)
        given: Any = names.hyper_parameters(chosen)
        federation = names.options(federation)  # reassigned, as the command line finds its options by `**federation`
        super().__init__(
            given,
            server_optimizer=server_optimizer,
            server_scheduler=server_scheduler,
            server_clip=server_clip,
            **federation,
        )
        self.save_hyperparameters(ignore=["module"])
        self.save_hyperparameters(describe(module))
        self.max_parameters = names.prefixes(max_parameters, "max_parameters")
        self.personal_parameters = names.prefixes(personal_parameters, "personal_parameters")
        self.per_client_evaluation = per_client_evaluation
        self.module: Any = module
        self.objective_name = f"{type(module).__name__}.training_step"
        self._names = names
        self._chosen = self._made = given
        self._lr_is_open = lr_is_open
        self.plateau: Plateau | None = None
        self._stored_plateau: Any = None
        self._node_trainer: NodeTrainer | None = None
        self._settled = Settled()
        self._schedulers: Sequence[Any] = ()
        self._frozen = FrozenParameters()
        self._clipping = GradientClipping(gradient_clip_val, gradient_clip_algorithm)
        self._step = ModuleStep(module, self)
        server_step = ServerStep(server_optimizer, server_scheduler, server_clip)
        self.rounds: ModuleRounds = ModuleRounds(self, server_step, self._step)
        adopt(self, module)

    @property
    def trainer(self) -> Trainer:
        """Return the trainer, which is the module's as well."""
        return super().trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | None) -> None:
        attach: Any = FederatedLightningModule.trainer
        with nullcontext() if trainer is None else self._clipping.taken(trainer):
            attach.fset(self, trainer)
        self._step.answer()  # also in a copy of the task
        self.module.trainer = trainer  # also one of the package pytorch_lightning

    def __getattr__(self, name: str) -> Any:
        """Look an attribute up as ``nn.Module`` does, and say so if the module has it."""
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name in dir(self.__dict__.get("_modules", {}).get("module")):
                raise InvalidAttributeError(f"{error}: it is in .module.{name}") from None
            raise

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*args, **kwargs)

    def objective(self, batch: Any) -> Tensor | dict[str, Tensor]:
        """Return the loss of the module's training step, and what it logs.

        The step's ``batch_idx`` is the number of the round in its epoch.
        """
        trainer = self._trainer
        return self._step(batch, self.moment.batch_idx if trainer is None else trainer.fit_loop.batch_idx)

    @property
    def moment(self) -> Moment:
        """Return when clients compute at a node, where there is no Trainer."""
        return Moment() if self._node_trainer is None else self._node_trainer.moment

    @moment.setter
    def moment(self, moment: Moment) -> None:
        if self._node_trainer is None:
            raise UsageError(
                f"{type(self.module).__name__}'s optimizer is not known at this node: call task.configure_at_node() "
                "before the task's simulation is made."
            )
        self._node_trainer.moment = moment

    @property
    def log_options(self) -> Mapping[str, Mapping[str, bool]]:
        """Return how the values that the module's training step has logged are reported, by name."""
        return {name: how.given() for name, how in self._step.options.items()}

    def parameter_space(self) -> ParameterSpace:
        """Return the parameters of the task by block, without those that the optimizer of the last fit left out.

        Raises:
            ValueError: If a prefix in ``max_parameters`` or ``personal_parameters`` fits no parameter.
        """
        constants = [f"{PREFIX}{name}" for name in self._frozen.names]
        return ParameterSpace(self, self.max_parameters, self.personal_parameters, constants)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Let clients step as the module's optimizer does, and begin a fit.

        Raises:
            ValueError: If clients cannot step so; the message says why.
        """
        configured = self._configured()
        if self.run.connect is not None:
            require_known_at_nodes(configured, self._clipping, self.module)
        self._step_as(configured)
        self._settled = Settled.now(self.module, None if self.plateau is not None else configured.optimizer)
        return super().configure_optimizers()

    def training_step(self, batch: RoundBatch, batch_idx: int) -> None:
        """Carry out one communication round, with steps as the module's optimizer was configured.

        Raises:
            UsageError: If its options were changed since: clients would not step by them.
        """
        self._settled.require_unchanged()
        if self.rounds.last is None:
            warn_of_other_epochs(self.trainer, self._schedulers)
            warn_of_kept(self.module, self._settled.optimizer, self._schedulers)
        super().training_step(batch, batch_idx)
        self._settled.require_unchanged()

    def configure_at_node(self) -> None:
        """Let clients step as the module's optimizer does at a node, which calls this before its first round.

        Raises:
            ValueError: If clients cannot step so; the message says why.
        """
        configured = self._configured()
        require_known_at_nodes(configured, self._clipping, self.module)
        self._step_as(configured)
        self._node_trainer = self.module.trainer = NodeTrainer(self)
        self._step.answer()

    def _configured(self) -> Configured:
        self._frozen.names = ()
        if self.algorithm is not self._made:  # the user has given it another one
            given = self._names.hyper_parameters(self.algorithm)
            self._chosen, self._lr_is_open = with_steps_left_open(given, self._made, self._chosen, self._lr_is_open)
        asks = overrides(self.module, "configure_optimizers")
        configured = Configured.by(self.module) if asks else Configured(None)
        return configured if takes_step_size(self._chosen, self._lr_is_open) else without_step_size(configured)

    def _step_as(self, configured: Configured) -> None:
        """Let clients step as an optimizer does."""
        steps = None
        self._schedulers = configured.schedulers
        if configured.optimizer is not None:
            self._frozen.freeze(self.module, configured.optimizer)
            self.plateau = plateau_of(configured.schedulers)
            if self.plateau is not None and self._stored_plateau is not None:
                self.plateau.load_state_dict(self._stored_plateau)
            self._stored_plateau = None
            with without_clock(self.module):
                groups = scheduled_groups(configured.optimizer, configured.schedulers, self._length, self.plateau)
            steps = steps_of(configured.optimizer, groups, self)
        require_steps_in_all_blocks(self.parameter_space(), steps)
        stepping = with_steps(self._chosen, steps, self._lr_is_open, configured.ignores_schedule)
        self.algorithm = self._made = self.made_with = with_clip(stepping, self._clipping.limit, self._clipping.given)

    def on_train_epoch_end(self) -> None:
        """Have values over the epoch logged, and reset the metrics that the module's training step logs."""
        self.rounds.end_epoch()
        super().on_train_epoch_end()

    def configure_callbacks(self) -> list[Callback]:
        """Add what a fit does between rounds, and what gives the Trainer back what was taken over."""
        return [*super().configure_callbacks(), StepOnPlateau(), GiveBack([self._clipping, self._frozen])]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the states of server and clients, and the algorithm with the steps of the module's optimizer."""
        checkpoint[ALGORITHM_KEY] = stored_algorithm(self.algorithm)
        checkpoint[FROZEN_KEY] = list(self._frozen.names)
        checkpoint[PLATEAU_KEY] = None if self.plateau is None else self.plateau.state_dict()
        super().on_save_checkpoint(checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the states of server and clients; a fit asks the module anew for its optimizer."""
        stepped = algorithm_of(checkpoint.get(ALGORITHM_KEY), self._chosen)
        self.algorithm = self._made = self.made_with = with_steps_of(self._chosen, stepped, self._lr_is_open)
        self._frozen.names = tuple(checkpoint.get(FROZEN_KEY, ()))
        resumes = self._trainer is not None and self._trainer.state.fn == "fit"
        self._stored_plateau = checkpoint.get(PLATEAU_KEY) if resumes else None
        self._frozen.stored = checkpoint.get(FROZEN_KEY) if resumes else None
        super().on_load_checkpoint(checkpoint)

    def _length(self) -> tuple[float, float]:
        """Return the number of rounds of the fit and of an epoch."""
        self.trainer.fit_loop.setup_data()
        return self.trainer.estimated_stepping_batches, self.trainer.num_training_batches


def federate(module: nn.Module, algorithm: Algorithm | AlgorithmCallable, **options: Any) -> Federated:
    """Return a task that trains a LightningModule over many clients as it is.

    Fit it with a :class:`~fedlightning.FederatedDataModule`::

        task = federate(LitModel(), FedAvg)
        Trainer(max_epochs=10).fit(task, FederatedDataModule.from_datasets(train=[...], val=...))

    Args:
        module: The LightningModule.
        algorithm: What clients and server do; a class takes the step size of the module's optimizer.
        options: Further arguments of :class:`Federated`.

    Raises:
        TypeError: If the module is none, or cannot be trained by clients.
        ValueError: If a value is out of range.
    """
    return Federated(module, algorithm, **options)
