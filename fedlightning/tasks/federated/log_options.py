"""When a value that a training step logs is reported: after every round, at the end of every epoch, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from fedlightning.core.errors import InvalidValueError

V = TypeVar("V")


@dataclass(frozen=True)
class LogOptions:
    """Holds the options of one ``self.log`` in a training step, where a step is a round.

    Attributes:
        on_step: Whether the value of every round is reported.
        on_epoch: Whether the mean over the rounds of an epoch is reported at its end.
        prog_bar: Whether the progress bar shows what is reported.
        logger: Whether loggers get the mean of an epoch; None for Lightning's default.
        gathers: Whether the value is a metric, which finds its value over an epoch by itself.
    """

    on_step: bool = True
    on_epoch: bool = False
    prog_bar: bool = False
    logger: bool | None = None
    gathers: bool = False

    @classmethod
    def of(cls, name: str, given: Mapping[str, Any]) -> LogOptions:
        """Read the arguments of ``LightningModule.log``; what is None or left out is Lightning's default.

        Args:
            name: Name of the value, for the message.
            given: Arguments by name.

        Raises:
            ValueError: If the value would never be reported.
        """
        known = {field: given[field] for field in cls.__dataclass_fields__ if given.get(field) is not None}
        options = cls(**known)
        if not (options.on_step or options.on_epoch):
            raise InvalidValueError(
                f"training_step logs '{name}' with on_step=False and on_epoch=False, so never. Leave one of them out."
            )
        return options

    def given(self) -> dict[str, bool]:
        """Return the options that :meth:`of` makes these from, in plain types."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def is_forked(self) -> bool:
        """Return whether there are two values, ``name_step`` and ``name_epoch``."""
        return self.on_step and self.on_epoch


def name_of_epoch(name: str, how: LogOptions) -> str:
    """Return the name that Lightning gives to the value of an epoch."""
    return f"{name}_epoch" if how.is_forked else name


def of_rounds(values: Mapping[str, V], options: Mapping[str, LogOptions]) -> dict[str, V]:
    """Return which values of a round are reported after it, under the names that Lightning gives them.

    Args:
        values: By the name that the module gave them.
        options: Of the values that a training step logs.

    Raises:
        ValueError: If two values would have one name.
    """
    kept = {name: options.get(name, LogOptions()) for name in values}
    for name, how in kept.items():
        for made in (f"{name}_step", f"{name}_epoch") if how.is_forked else ():
            if made in values:
                raise InvalidValueError(
                    f"training_step logs '{name}' with on_step=True and on_epoch=True, which gives '{made}'; there is "
                    "another value of that name. Log one of the two under another name."
                )
    return {
        f"{name}_step" if kept[name].is_forked else name: value for name, value in values.items() if kept[name].on_step
    }
