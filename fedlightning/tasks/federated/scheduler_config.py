"""What ``configure_optimizers`` says about one scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.validation import require_argument

_KEYS = ("scheduler", "interval", "frequency", "monitor", "strict", "name", "reduce_on_plateau")


@dataclass(frozen=True)
class SchedulerConfig:
    """Holds a scheduler, and when it is stepped.

    Attributes:
        scheduler: A scheduler of torch.
        interval: Whether it counts the Trainer's epochs, ``epoch``, or rounds, ``step``.
        frequency: Number of epochs or rounds, or of validations if it waits for a metric, between its steps; >= 1.
        monitor: Name of the metric it waits for, if it does.
        strict: Whether a validation without the metric is an error.
    """

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str | None = None
    strict: bool = True

    @classmethod
    def of(cls, given: Any) -> SchedulerConfig:
        """Read what Lightning takes: a scheduler, or a dictionary with one.

        Raises:
            TypeError: If it holds no scheduler.
            ValueError: If a key is unknown, or a value is not supported.
        """
        config = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
        if "scheduler" not in config:
            raise InvalidTypeError(f"configure_optimizers returns {given!r} as a scheduler: expected one of torch.")
        if unknown := [key for key in config if key not in _KEYS]:
            raise InvalidValueError(
                f"configure_optimizers returns a scheduler with {unknown[0]!r}: there are {', '.join(_KEYS)}."
            )
        waits = isinstance(config["scheduler"], ReduceLROnPlateau)
        if config.pop("reduce_on_plateau", waits) != waits:
            raise InvalidValueError(
                f"{type(config['scheduler']).__name__}: reduce_on_plateau={not waits}: ReduceLROnPlateau alone waits "
                "for a metric. Leave it out."
            )
        config.pop("name", None)  # of logs of Lightning's LearningRateMonitor
        return cls(**config)

    def __post_init__(self) -> None:
        name = type(self.scheduler).__name__
        if self.interval not in ("epoch", "step"):
            raise InvalidValueError(f"{name}: interval={self.interval!r}: expected 'epoch' or 'step'.")
        if self.waits and self.interval == "step":
            raise InvalidValueError(
                f"{name}: interval='step': it waits for a metric of the validation, so it is stepped after "
                "validations. Leave the interval out, and set val_check_interval of the Trainer."
            )
        require_argument(self.scheduler, "frequency", self.frequency, whole=True, at_least=1)

    @property
    def waits(self) -> bool:
        """True if the scheduler waits for a metric."""
        return isinstance(self.scheduler, ReduceLROnPlateau)
