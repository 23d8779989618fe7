"""The rounds of a module that many clients train by its training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from fedlightning.core.errors import InvalidValueError
from fedlightning.federation.loop import RoundResult
from fedlightning.tasks.federated.step import LOGGED
from fedlightning.tasks.rounds import TrainingRounds

V = TypeVar("V")

_TALLIED = f"train_{LOGGED}"
_ALSO_REPORTED = frozenset(
    {"round_time", "regularization", "round", "stage", "client", "samples", "minibatches", "counted"}
)
"""Names that loggers, callbacks and the file of the clients' values have beside the metrics of a round."""


class ModuleRounds(TrainingRounds):
    """Carries out rounds, and reports what training steps log under the module's own names."""

    def named(self, result: RoundResult) -> RoundResult:
        """Return the outcome of a round with logged values under the names that the module gave them.

        Raises:
            ValueError: If the module logs a value under a name that rounds report something else under.
        """
        require_free_names(result.metrics)
        return replace(result, metrics=named_as_logged(result.metrics), columns=named_as_logged(result.columns))


def require_free_names(metrics: Mapping[str, object]) -> None:
    """Make sure that no logged value has the name of another value; ``train_loss`` alone may be the module's own.

    Args:
        metrics: The metrics of a round, with logged values under the names that they have as outputs of the objective.

    Raises:
        ValueError: If a name is taken.
    """
    taken = ({*metrics} | _ALSO_REPORTED) - {"train_loss"}
    logged = (name.removeprefix(_TALLIED) for name in metrics if name.startswith(_TALLIED))
    if clash := next((name for name in logged if name in taken), None):
        raise InvalidValueError(
            f"The module's training_step logs '{clash}', a name under which rounds report a value of their own. Log it "
            f"under another name, such as 'train_{clash}'."
        )


def named_as_logged(values: Mapping[str, V]) -> dict[str, V]:
    """Return values of a round by name, with logged ones under the names that the module gave them."""
    own = {name: value for name, value in values.items() if not name.startswith(_TALLIED)}
    logged = {name.removeprefix(_TALLIED): value for name, value in values.items() if name.startswith(_TALLIED)}
    return {**own, **logged}
