"""Step sizes that shrink when a metric of the validation has stopped improving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fedlightning.core.errors import InvalidValueError, UsageError
from fedlightning.core.schedule import Schedule


class Followed(Schedule):
    """Takes the values that were decided on so far; the last one holds until the next decision."""

    def __init__(self, changes: Sequence[tuple[int, float]]) -> None:
        """Follow a list of decisions.

        Args:
            changes: Number of rounds done and the value from then on, in order; the first is for 0 rounds.
        """
        self.changes = changes

    def __repr__(self) -> str:
        return f"Followed({list(self.changes)!r})"

    def __call__(self, rounds: int) -> float:
        """Return the last value decided on before the round that follows ``rounds`` others."""
        return next(value for since, value in reversed(self.changes) if since <= rounds)


class Plateau:
    """Steps a ``ReduceLROnPlateau`` after every validation, and notes the step sizes from the next round on.

    The server validates, so it decides; its decisions are part of the checkpoint.
    """

    def __init__(
        self, scheduler: ReduceLROnPlateau, monitor: str | None, strict: bool = True, frequency: int = 1
    ) -> None:
        """Take a scheduler over.

        Args:
            scheduler: Of the module's optimizer.
            monitor: Name of the metric.
            strict: Whether a validation without the metric is an error.
            frequency: Number of validations between looks at the metric, >= 1.

        Raises:
            ValueError: If no metric is named.
        """
        if not monitor:
            raise InvalidValueError(
                "configure_optimizers returns ReduceLROnPlateau without the metric it waits for. Return "
                "{'optimizer': ..., 'lr_scheduler': {'scheduler': ..., 'monitor': 'val_loss'}}."
            )
        self._scheduler = scheduler
        self.monitor = monitor
        self._strict = strict
        self._frequency = frequency
        self._validations = 0
        self._changes = [[(0, lr)] for lr in self._rates]

    @property
    def schedules(self) -> list[Followed]:
        """Return the step size of each parameter group over rounds."""
        return [Followed(changes) for changes in self._changes]

    def step(self, trainer: Any) -> None:
        """Look at the metric after a validation.

        Args:
            trainer: Has validated after the last round.

        Raises:
            RuntimeError: If the metric is missing.
        """
        self._validations += 1
        if self._validations % self._frequency:
            return
        value = trainer.callback_metrics.get(self.monitor)
        if value is None:
            if self._strict:
                known = ", ".join(sorted(trainer.callback_metrics))
                raise UsageError(
                    f"ReduceLROnPlateau waits for '{self.monitor}', which the validation did not log. There are: "
                    f"{known}."
                )
            return
        self._scheduler.step(trainer.strategy.broadcast(float(value)))  # all processes decide alike
        now = int(trainer.global_step)
        for changes, lr in zip(self._changes, self._rates, strict=True):
            changes[:] = [change for change in changes if change[0] < now]  # later ones are of rounds that come again
            if not changes or lr != changes[-1][1]:
                changes.append((now, lr))

    def state_dict(self) -> dict[str, Any]:
        """Return what the scheduler remembers, and its decisions, in plain types."""
        own = self._scheduler.state_dict()
        plain = {name: _plain(value) for name, value in own.items() if _is_plain(value)}
        changes = [[list(change) for change in group] for group in self._changes]
        return {"scheduler": plain, "changes": changes, "validations": self._validations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state_dict`."""
        self._scheduler.load_state_dict(dict(state["scheduler"]))
        self._validations = int(state.get("validations", 0))
        for changes, stored in zip(self._changes, state["changes"], strict=True):
            changes[:] = [(int(since), float(value)) for since, value in stored]
        for group, changes in zip(self._scheduler.optimizer.param_groups, self._changes, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(changes[-1][1])
            else:
                group["lr"] = changes[-1][1]

    @property
    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self._scheduler.optimizer.param_groups]


class StepOnPlateau(Callback):
    """Lets a task look at its metric after every validation of a fit, before checkpoints are written."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make sure that there are validations.

        Raises:
            UsageError: If the fit has none.
        """
        plateau = getattr(pl_module, "plateau", None)  # the Trainer may fit other tasks afterwards
        batches: Any = trainer.num_val_batches
        if plateau is not None and not sum(batches if isinstance(batches, list) else [batches]):
            raise UsageError(
                f"ReduceLROnPlateau waits for {plateau.monitor!r} and looks at it after each validation, but this "
                "fit validates nothing. Give the data module val data, or take a scheduler that waits for nothing."
            )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the metric."""
        plateau = getattr(pl_module, "plateau", None)
        if trainer.state.fn == "fit" and not trainer.sanity_checking and plateau is not None:
            plateau.step(trainer)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _is_plain(value: Any) -> bool:
    entries = value if isinstance(value, list) else [value]
    return all(entry is None or isinstance(entry, bool | int | float | str | Tensor) for entry in entries)
