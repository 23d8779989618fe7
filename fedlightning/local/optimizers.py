"""Local optimizers of many clients at once, on the matrix ``[S, d]`` of a chunk, with a memory for every client.

An optimizer turns a client's directions into moves, ``w <- w - lr * move``. Its hyper-parameters may differ by block or
name prefix, as those of torch's parameter groups do. What the optimizer of a client remembers is a value and no
attribute: it starts anew in every round, as in FedAvg, or goes on from one round of the client to the next, as in
StatefulFedAvg.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.parameter_space import ParameterSpace, PerBlock
from fedlightning.core.per_block import per_block, per_block_fields
from fedlightning.core.validation import require

OptimizerT = TypeVar("OptimizerT", bound="LocalOptimizer")


@dataclass(frozen=True)
class Moments:
    """Holds what the optimizers of a chunk of S clients remember; for a single client without the leading S.

    Attributes:
        steps: Number of steps taken, ``[S]``.
        first: Running mean of directions, ``[S, d]``; ``[S, 0]`` if the optimizer needs none.
        second: Running mean of their squares, ``[S, d]``; ``[S, 0]`` if the optimizer needs none.
    """

    steps: Tensor
    first: Tensor
    second: Tensor

    def keep(self, old: Moments, active: Tensor) -> Moments:
        """Return these moments, but the ``old`` ones for clients that are not ``active [S]``."""
        rows = active[:, None]
        return Moments(
            torch.where(active, self.steps, old.steps),
            torch.where(rows, self.first, old.first),
            torch.where(rows, self.second, old.second),
        )

    def columns(self, columns: slice) -> Moments:
        """Return the moments of some columns; moments that are not needed stay empty."""
        return Moments(self.steps, self.first[:, columns], self.second[:, columns])

    def beside(self, others: Moments) -> Moments:
        """Return these moments with those of further columns, of the same clients after as many steps."""
        first = torch.cat([self.first, others.first], dim=1)
        return Moments(self.steps, first, torch.cat([self.second, others.second], dim=1))


class LocalOptimizer(ABC):
    """Steps of many clients, each with moments of its own; subclasses are frozen dataclasses.

    Attributes:
        moments: Number of vectors ``[d]`` that a client remembers, 0 to 2.
        personal: This optimizer with the hyper-parameters of the personal block, set by :meth:`bind`.
    """

    moments: ClassVar[int]
    personal: Any = None

    def bind(self: OptimizerT, space: ParameterSpace, like: Tensor) -> OptimizerT:
        """Return a copy whose hyper-parameters are numbers or vectors, for the shared and for the personal block.

        Args:
            space: Names and blocks of the parameters.
            like: Gives dtype and device of the vectors.

        Raises:
            ValueError: If a hyper-parameter names an unknown prefix or leaves a parameter uncovered.
        """
        shared, personal = copy(self), copy(self)
        for name in per_block_fields(type(self)):
            for bound, value in zip((shared, personal), space.spread(getattr(self, name), name, like), strict=True):
                object.__setattr__(bound, name, value)
        object.__setattr__(shared, "personal", personal)
        return shared

    def start(self, w: Tensor) -> Moments:
        """Return the moments before the first step at ``w [S, d]``, or ``[d]`` for one client: zeros."""
        none, zeros = w.new_empty((*w.shape[:-1], 0)), torch.zeros_like(w)
        first, second = (zeros if self.moments > number else none for number in range(2))
        return Moments(w.new_zeros(w.shape[:-1]), first, second)

    @abstractmethod
    def move(self, w: Tensor, direction: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        """Turn directions into moves.

        Args:
            w: Points, ``[S, d]``.
            direction: What plain steps would subtract, ``[S, d]``.
            moments: What the clients remember.

        Returns:
            The moves ``[S, d]``, which are subtracted ``lr`` times, and the new moments.
        """


@dataclass(frozen=True, eq=False)
class SGD(LocalOptimizer):
    """Steps along a running mean of directions, as ``torch.optim.SGD`` does for one client.

    With the direction g and the first moment b::

        g <- g + weight_decay * w
        b <- momentum * b + (1 - dampening) * g,  at the first step b <- g
        w <- w - lr * b,  with nesterov  w <- w - lr * (g + momentum * b)

    Args:
        momentum: Weight >= 0 of the past: one number, ``[min, max]`` or by name prefix.
        dampening: Share of a direction, below 1, that is left out of the mean, likewise.
        weight_decay: Weight >= 0 of the penalty ``|w|^2 / 2``, likewise.
        nesterov: Whether steps look ahead.
    """

    moments: ClassVar[int] = 1

    momentum: PerBlock = per_block(0.0)
    dampening: PerBlock = per_block(0.0)
    weight_decay: PerBlock = per_block(0.0)
    nesterov: bool = False

    def __post_init__(self) -> None:
        require(self, "momentum", "weight_decay", at_least=0.0)
        require(self, "dampening", below=1.0)
        if self.nesterov and (self.momentum == 0.0 or self.dampening != 0.0):
            raise InvalidValueError(
                f"SGD(nesterov=True, momentum={self.momentum!r}, dampening={self.dampening!r}): nesterov needs a "
                "momentum above 0 and no dampening."
            )

    def move(self, w: Tensor, direction: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        """Return the running mean of directions."""
        g = direction + self.weight_decay * w
        mean = self.momentum * moments.first + (1 - self.dampening) * g
        forgets = torch.as_tensor(self.momentum == 0, device=g.device)  # there torch leaves dampening out
        mean = torch.where((moments.steps == 0)[:, None] | forgets, g, mean)
        move = g + self.momentum * mean if self.nesterov else mean
        return move, Moments(moments.steps + 1, mean, moments.second)


@dataclass(frozen=True, eq=False)
class Adam(LocalOptimizer):
    """Steps along means of directions over the root of means of their squares, as ``torch.optim.Adam`` for one client.

    At the t-th step of a client, with the direction g and the moments m and s::

        g <- g + weight_decay * w,  unless the decay is decoupled
        m <- beta1 * m + (1 - beta1) * g
        s <- beta2 * s + (1 - beta2) * g^2
        w <- w - lr * (m / (1 - beta1^t)) / (sqrt(s / (1 - beta2^t)) + eps)

    A decoupled decay subtracts ``lr * weight_decay * w`` beside it: that is AdamW (Loshchilov and Hutter, ICLR 2019).

    Args:
        beta1: Weight of the past in m, 0 <= beta1 < 1: one number, ``[min, max]`` or by name prefix.
        beta2: Weight of the past in s, 0 <= beta2 < 1, likewise.
        eps: Number > 0 that keeps steps finite where directions vanish, likewise.
        weight_decay: Weight >= 0 of the decay, likewise.
        decoupled: Whether the decay is that of AdamW.
    """

    moments: ClassVar[int] = 2

    beta1: PerBlock = per_block(0.9)
    beta2: PerBlock = per_block(0.999)
    eps: PerBlock = per_block(1e-8)
    weight_decay: PerBlock = per_block(0.0)
    decoupled: bool = False

    def __post_init__(self) -> None:
        require(self, "beta1", "beta2", at_least=0.0, below=1.0)
        require(self, "eps", above=0.0)
        require(self, "weight_decay", at_least=0.0)

    def move(self, w: Tensor, direction: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        """Return the means over the roots, with the decay."""
        decay = self.weight_decay * w
        g = direction if self.decoupled else direction + decay
        steps = moments.steps + 1
        first = moments.first + (1 - self.beta1) * (g - moments.first)
        second = self.beta2 * moments.second + (1 - self.beta2) * g * g
        known_first, known_second = (-torch.expm1(steps[:, None] * _log(beta)) for beta in (self.beta1, self.beta2))
        move = first / known_first / ((second / known_second).sqrt() + self.eps)
        return move + decay if self.decoupled else move, Moments(steps, first, second)


def _log(beta: Any) -> Any:
    """Return the logarithm of numbers in [0, 1), by which ``1 - beta^t`` keeps its digits where they are close to 1."""
    if isinstance(beta, Tensor):
        return beta.log()
    return math.log(beta) if beta > 0 else -math.inf


class OptimizerSteps:
    """Takes the steps of a round with a local optimizer, as a :data:`~fedlightning.local.torch_optimizers.Step`.

    Attributes:
        moments: What the clients remember after the steps taken so far; None before the first.
        personal: Steps of the personal block; None where this is it, or there is none.
    """

    def __init__(
        self,
        optimizer: LocalOptimizer,
        lr: float | Tensor,
        moments: Moments | None = None,
        personal: OptimizerSteps | None = None,
    ) -> None:
        """Start a round.

        Args:
            optimizer: Bound to the task's parameters.
            lr: Step size, a number or a vector ``[d]``.
            moments: What the clients remember of earlier rounds; None for nothing.
            personal: Steps of the personal block; None where this is it, or there is none.
        """
        self.moments = moments
        self.personal = personal
        self._optimizer = optimizer
        self._lr = lr

    def __call__(self, w: Tensor, direction: Tensor, active: Tensor | None) -> Tensor:
        """Step from ``w [S, d]`` along ``direction``; only clients ``active [S]``, or all if it is None."""
        before = self._optimizer.start(w) if self.moments is None else self.moments
        move, after = self._optimizer.move(w, direction, before)
        if active is None:
            self.moments = after
            return w - self._lr * move
        self.moments = after.keep(before, active)
        return torch.where(active[:, None], w - self._lr * move, w)
