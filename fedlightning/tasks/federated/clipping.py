"""Limits of clients' gradients that were given to a task, or to its Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

from lightning.pytorch.trainer.states import TrainerFn

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.validation import require_argument, spoken_name
from fedlightning.local.clipping import ByValue, Clip

ClipBy = Literal["norm", "value"]


class GradientClipping:
    """Knows how far clients' gradients may go, and takes the Trainer's limit over for the time of a fit.

    Lightning refuses a limit beside rounds, which it takes for manual optimization. So the Trainer has none while it
    fits, and gets it back afterwards.
    """

    SPOKEN_NAME: ClassVar[str] = "federate"

    def __init__(self, value: float | None, algorithm: str | None) -> None:
        """Keep the limit and its kind that were given to the task; None leaves them to the Trainer.

        Raises:
            TypeError: If the limit is no number.
            ValueError: If it is not above 0, or ``algorithm`` is neither ``norm`` nor ``value``.
        """
        require_argument(self, "gradient_clip_val", value, optional=True, above=0.0)
        if algorithm not in ("norm", "value", None):
            raise InvalidValueError(
                f"{spoken_name(self)}(gradient_clip_algorithm={algorithm!r}): expected 'norm', 'value' or null."
            )
        self._own = value, algorithm
        self._of_trainer: tuple[Any, Any] = (None, None)

    @property
    def limit(self) -> Clip | None:
        """Return the limit of one client's gradient, the task's own before the Trainer's; None for none."""
        algorithm = next((each for _, each in (self._own, self._of_trainer) if each is not None), "norm")
        if not self._value:
            return None
        return ByValue(float(self._value)) if algorithm == "value" else float(self._value)

    @property
    def is_of_trainer(self) -> bool:
        """Return whether the Trainer has a say in the limit."""
        return self._of_trainer != (None, None)

    @property
    def given(self) -> str:
        """Return what the user wrote to set the limit, for messages."""
        owner = "Trainer" if self._own[0] is None else spoken_name(self)
        return f"{owner}(gradient_clip_val={self._value!r})"

    @property
    def _value(self) -> Any:
        return next((each for each, _ in (self._own, self._of_trainer) if each is not None), None)

    @contextmanager
    def taken(self, trainer: Any) -> Iterator[None]:
        """Take the limit of a trainer that is about to fit; it gets the limit back if something is refused.

        Raises:
            TypeError: If the limit is no number.
            ValueError: If it is below 0, or not finite; 0 is none, as in Lightning.
        """
        given = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
        if trainer.state.fn == TrainerFn.FITTING and given != (None, None):
            require_argument(trainer, "gradient_clip_val", given[0], optional=True, at_least=0.0)
            self._of_trainer = given
            trainer.gradient_clip_val = trainer.gradient_clip_algorithm = None
        try:
            yield
        except Exception:
            self.give_back(trainer)
            raise

    def give_back(self, trainer: Any) -> None:
        """Give the trainer its limit back."""
        if self._of_trainer != (None, None):
            trainer.gradient_clip_val, trainer.gradient_clip_algorithm = self._of_trainer
            self._of_trainer = (None, None)
