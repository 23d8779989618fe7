"""Options that say, beside the algorithm, how a task is trained over many clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, get_args

import torch
from lightning.pytorch.utilities import rank_zero_info

from fedlightning.channel.channel import Channels
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.federation.buffers import Buffers
from fedlightning.federation.clients.oracle_selection import When
from fedlightning.federation.processes import DistributedProcesses, OneProcess
from fedlightning.federation.server import Weighting
from fedlightning.federation.simulation import Simulation
from fedlightning.oracle import Auto, ClientBatching
from fedlightning.proximal import Composite, Regularizer, compose

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule

Regularizers = Regularizer | dict[str, Regularizer | None] | None
"""One for a whole block, one by name prefix, or none."""


@dataclass(frozen=True)
class FederationOptions:
    """Keeps the options of a task and makes the server and the clients from them.

    The fields are arguments of :class:`~fedlightning.FederatedLightningModule`, which explains them.
    """

    regularizer: Regularizers = None
    max_regularizer: Regularizers = None
    oracle: ClientBatching = field(default_factory=Auto)
    weighting: Weighting = "uniform"
    buffers: Buffers = "average"
    drift_parameters: Sequence[str] = ()
    self_check: When = "first"
    channel: Channels | None = None

    def __post_init__(self) -> None:
        _require_one_of("weighting", self.weighting, get_args(Weighting))
        _require_one_of("buffers", self.buffers, get_args(Buffers))
        if self.self_check not in ("first", "off") and (type(self.self_check) is not int or self.self_check < 1):
            raise InvalidValueError(
                f"self_check={self.self_check!r}: expected 'first', 'off', or a number of rounds from 1 on."
            )
        prefixes = self.drift_parameters
        if isinstance(prefixes, str) or not isinstance(prefixes, Iterable):
            raise InvalidValueError(
                f"drift_parameters={prefixes!r}: expected a list of name prefixes, e.g. [{prefixes}]."
            )
        object.__setattr__(self, "drift_parameters", tuple(prefixes))

    @property
    def regularizes(self) -> bool:
        """Return whether the shared parameters have a regularizer."""
        return self.regularizer is not None or self.max_regularizer is not None

    def composite(self, space: ParameterSpace) -> Composite:
        """Return the regularizers of the shared parameters as one function.

        Raises:
            ValueError: If a name prefix fits no shared parameter.
        """
        return compose(space.shared, self.regularizer, self.max_regularizer, personal=space.personal.names)

    def simulation(self, task: FederatedLightningModule) -> Simulation:
        """Make a server and clients at the task's present parameters."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        space = task.parameter_space()
        return Simulation(
            task.algorithm,
            task,
            space,
            self.oracle,
            weighting=self.weighting,
            buffers=self.buffers,
            storage=task.client_storage,
            processes=DistributedProcesses() if distributed else OneProcess(),
            regularizer=self.composite(space),
            report=rank_zero_info,
            drift_parameters=self.drift_parameters,
            self_check=self.self_check,
            evaluator=task.evaluation_session,
            connect=task.run.connect,
            channels=self.channel,
            training_data=partial(getattr, task.run, "training_data"),
        )


def _require_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, known))}.")
