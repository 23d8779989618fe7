"""A LightningModule that reports mistakes which would otherwise go wrong in silence."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from fedlightning.callbacks.advice import leave_out_advice_to_synchronise
from fedlightning.callbacks.every_process import EvaluateInEveryProcess
from fedlightning.callbacks.termination import EndTogether
from fedlightning.core.errors import InvalidAttributeError, InvalidTypeError, UsageError
from fedlightning.federation.protocol import Moment
from fedlightning.tasks.checkpoints.hyper_parameters import leave_out_what_cannot_be_copied
from fedlightning.tasks.checks.arguments import require_known_attributes
from fedlightning.tasks.checks.lightning_surface import never_made, require_a_federated_fit
from fedlightning.tasks.evaluation.client_models import ClientModels
from fedlightning.tasks.evaluation.session import EvaluationSession
from fedlightning.tasks.fit.axis import log_axis
from fedlightning.tasks.fit.rounds import TrainingRounds

_LOGS_ROUND = "logs_round"
_OF_PROCESSES = "has_callbacks_of_processes"
_OPTIONS = tuple(inspect.signature(LightningModule.log).parameters)[3:]
"""Names of the options of ``self.log``, which may be given by position."""


class GuardedModule(LightningModule):
    """Refuses habits of ordinary training that no round would carry out, and says what to do instead.

    Attributes:
        personal_parameters: Dotted name prefixes of the parameters that never leave a client.
        client_models: What clients keep, and whether it is there when it is needed.
        rounds: Carries out the rounds of a fit.
        evaluation_session: The state of the task while clients' models are evaluated in its place.
        logs_axis: Whether values of single rounds have been logged in this epoch, and the axis of loggers beside them.
        moment: When clients compute at a node, where there is no Trainer.
        taken_out: Names of hyper-parameters that cannot be stored, and were taken out when a Trainer was attached.
    """

    personal_parameters: tuple[str, ...] = ()
    client_models: ClientModels
    rounds: TrainingRounds
    evaluation_session: EvaluationSession
    _waits_for_epoch = False
    logs_axis = False
    _trains_on_own_axis = False
    _validates_on_own_axis = False
    moment: Moment = Moment()
    taken_out: tuple[str, ...] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Let values of an epoch have their round also where the end of an epoch is a task's own.

        Raises:
            TypeError: If the class has an attribute that is nearly one by which tasks are trained.
        """
        super().__init_subclass__(**options)
        require_known_attributes(cls)
        if not getattr(cls.configure_callbacks, _OF_PROCESSES, False):
            cls.configure_callbacks = _with_those_of_processes(cls.configure_callbacks)  # type: ignore[method-assign]
        if not getattr(cls.on_train_epoch_end, _LOGS_ROUND, False):
            cls.on_train_epoch_end = _with_round(cls.on_train_epoch_end)  # type: ignore[method-assign]
        if not getattr(cls.on_validation_epoch_end, _LOGS_ROUND, False):
            cls.on_validation_epoch_end = _with_validated_round(cls.on_validation_epoch_end)  # type: ignore[method-assign]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``forward``, and warn once if the answer is that of personal parameters which no client has trained."""
        if self.personal_parameters and (self._trainer is None or self._trainer.state.stage is None):
            self.client_models.warn_of_the_start()
        return super().__call__(*args, **kwargs)

    def save_hyperparameters(self, *args: Any, frame: FrameType | None = None, **kwargs: Any) -> None:
        """Save hyper-parameters as Lightning does, without its advice to leave networks out.

        Networks from the command line are saved as class paths, which take no room.
        """
        caller = inspect.currentframe()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Attribute .* is an instance of `nn.Module`")
            super().save_hyperparameters(*args, frame=frame or (caller and caller.f_back), **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Look an attribute up as ``nn.Module`` does, and say so if ``super().__init__()`` was never called."""
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if "rounds" in vars(self):
                raise
            raise InvalidAttributeError(f"{error}. {never_made(self)}") from None

    @property
    def current_epoch(self) -> int:
        """Return the number of the epoch as Lightning does; at a node, that of the server."""
        return self.moment.epoch if self._trainer is None else super().current_epoch

    @property
    def global_step(self) -> int:
        """Return the number of rounds as Lightning does; at a node, that of the server."""
        return self.moment.step if self._trainer is None else super().global_step

    @property
    def trainer(self) -> Trainer:
        """Return the trainer; Lightning sets it before anything else, so this is where impossible fits are refused.

        Raises:
            RuntimeError: If the task is not attached to a trainer.
        """
        if not self._jit_is_scripting and self._trainer is None and self._fabric is None:
            raise UsageError(
                f"{type(self).__name__} is not attached to a Trainer. (torch.jit reads every attribute of a module: "
                "use task.personalize(i).to_torchscript(), or trace its networks.)"
            )
        return super().trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | None) -> None:
        from fedlightning.tasks.base import FederatedLightningModule

        if "rounds" not in vars(self):
            raise InvalidTypeError(never_made(self))
        attach: Any = LightningModule.trainer
        attach.fset(self, trainer)
        if trainer is not None:
            require_a_federated_fit(self, FederatedLightningModule, trainer)
            self.taken_out += leave_out_what_cannot_be_copied(self)

    def optimizers(self, *args: Any, **kwargs: Any) -> Any:
        """Return the optimizers as Lightning does; inside ``objective`` there is none to step.

        Raises:
            RuntimeError: If ``objective`` asks for them.
        """
        if self.rounds.running:
            raise UsageError(
                f"{type(self).__name__}.objective called self.optimizers(). Return the loss: the algorithm steps the "
                "clients' models, server_optimizer the global one."
            )
        return super().optimizers(*args, **kwargs)

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Log a value as Lightning does, or as the present client's during an evaluation client by client.

        Raises:
            RuntimeError: If ``objective`` logs; the message says what to do instead.
        """
        if self.rounds.running:
            raise UsageError(
                f"{type(self).__name__}.objective called self.log('{name}', ...). It runs for many clients at once: "
                f"return a dict instead, {{'loss': loss, '{name}': value}}; the mean over clients is logged."
            )
        kwargs = {**dict(zip(_OPTIONS, args, strict=False)), **kwargs}
        if self.evaluation_session.hears(name, value, **kwargs):
            return
        name, kwargs = self.evaluation_session.loaders.named(name, value, kwargs)
        trainer: Any = self._trainer
        if trainer is not None and name == "step":
            self._trains_on_own_axis |= trainer.training
            self._validates_on_own_axis |= trainer.validating
        elif trainer is not None and (trainer.validating or trainer.testing):
            self.evaluation_session.warn_if_mixed(name)
        if self.evaluation_session.is_in_every_process:
            kwargs["sync_dist"] = False
            leave_out_advice_to_synchronise(name)
        if trainer is not None and trainer.training and not trainer.barebones:
            if kwargs.get("batch_size") is None:
                kwargs["batch_size"] = 1  # the batch is a round
            if kwargs.get("logger") is not False and not self._trains_on_own_axis:
                on_step, on_epoch = kwargs.get("on_step"), kwargs.get("on_epoch")
                of_an_epoch = self._current_fx_name in _OF_AN_EPOCH  # by which Lightning's own defaults go
                self._waits_for_epoch |= of_an_epoch if on_epoch is None else on_epoch
                is_of_a_round = not of_an_epoch if on_step is None else on_step
                if is_of_a_round:  # else loggers would get a row without a value
                    log_axis(self)
        super().log(name, value, **kwargs)


_OF_AN_EPOCH = ("on_train_start", "on_train_epoch_start", "on_train_epoch_end")
"""Hooks whose values Lightning logs once an epoch, unless it is told otherwise."""


def _with_those_of_processes(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that adds the callbacks without which several processes would not be one, also to a task's own."""

    @wraps(hook)
    def configure_callbacks(self: GuardedModule) -> list[Callback]:
        found = hook(self)
        found = [*found] if isinstance(found, Sequence) else [found]
        present = {type(each) for each in (*self.trainer.callbacks, *found)}  # type: ignore[attr-defined]
        return [*(kind() for kind in (EndTogether, EvaluateInEveryProcess) if kind not in present), *found]

    setattr(configure_callbacks, _OF_PROCESSES, True)
    return configure_callbacks


def _with_round(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that logs values of an epoch at the round they belong to; Lightning would count one less."""

    @wraps(hook)
    def on_train_epoch_end(self: GuardedModule) -> None:
        hook(self)
        if self._waits_for_epoch and not self._trains_on_own_axis:
            _log_round(self)
        self._waits_for_epoch = self.logs_axis = False  # Lightning forgets what was logged

    setattr(on_train_epoch_end, _LOGS_ROUND, True)
    return on_train_epoch_end


def _with_validated_round(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that logs values of a validation at the round they belong to; Lightning would count one less."""

    @wraps(hook)
    def on_validation_epoch_end(self: GuardedModule) -> None:
        hook(self)
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking and not self._validates_on_own_axis:
            _log_round(self)
        self._validates_on_own_axis = False

    setattr(on_validation_epoch_end, _LOGS_ROUND, True)
    return on_validation_epoch_end


def _log_round(task: GuardedModule) -> None:
    """Log the axis of loggers."""
    LightningModule.log(task, "step", float(task.trainer.global_step))
