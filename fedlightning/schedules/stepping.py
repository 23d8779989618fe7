"""The options that PyTorch's schedulers set, round by round."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Options = dict[str, Any]
"""What schedulers may set in one parameter group, by name: numbers, or tuples of them."""

_VARYING = ("lr", "momentum", "betas", "weight_decay")
"""Options that schedulers of torch set; the learning rate, and momentum in cycles."""


@dataclass(frozen=True)
class Turn:
    """Describes when a scheduler is stepped.

    Attributes:
        scheduler: A scheduler of torch.
        every: Number of rounds between its steps.
        epoch: Rounds after which they are counted anew; None for never.
    """

    scheduler: Any
    every: int = 1
    epoch: int | None = None

    def is_due(self, done: int) -> bool:
        """Return whether the scheduler is stepped after so many rounds, at least 1."""
        return (done if self.epoch is None else (done - 1) % self.epoch + 1) % self.every == 0


def options_over_rounds(optimizer: Optimizer, turns: Sequence[Turn]) -> Iterator[list[Options]]:
    """Yield the options of each parameter group in every round, by stepping the schedulers and never the optimizer.

    Gradients that lie in the parameters therefore move nothing.

    Args:
        optimizer: Of the schedulers; its options change from round to round.
        turns: The schedulers.

    Raises:
        Exception: What a scheduler raises if it cannot take so many steps.
    """
    for done in itertools.count(1):
        yield options_of(optimizer)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler\.step\(\)` before", UserWarning)
            for turn in turns:
                if turn.is_due(done):
                    turn.scheduler.step()


def options_of(optimizer: Optimizer) -> list[Options]:
    """Return the options of each group that schedulers set, as numbers: a tensor would change with the next step."""
    return [{name: _plain(group[name]) for name in _VARYING if name in group} for group in optimizer.param_groups]


def put_back(optimizer: Optimizer, options: Sequence[Options]) -> None:
    """Set the options of each group to earlier ones; tensors stay the same tensors."""
    for group, earlier in zip(optimizer.param_groups, options, strict=True):
        for name, value in earlier.items():
            if isinstance(group[name], Tensor):
                group[name].fill_(value)
            else:
                group[name] = value


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)
    return float(value) if isinstance(value, Tensor) else value
