"""Made-up clients for trial runs of an algorithm: quadratic functions, and minibatches that say nothing of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlightning.core.tree import map_tensors
from fedlightning.federation.clients.rehearsal import Enough
from fedlightning.oracle.base import Blocks, Evaluation
from fedlightning.oracle.minibatch import Minibatch, Rows
from fedlightning.oracle.randomness import Randomness

PERIOD = 1009
"""Coordinates after which curvatures and targets repeat themselves."""

MOST_GRADIENTS, MOST_NUMBERS = 1024, 2**26
"""Gradients after which a trial run ends, and the coordinates of all of them together: a solver may never be done."""

BUFFERS = 0.1
"""What an evaluation adds to a client's buffers, times ``c``: variances stay positive."""

FEW_GRADIENTS = 64
"""Gradients that a trial run may ask for, however large the model is."""


class Quadratic(NamedTuple):
    """Describes ``f(w) = c / 2 * sum_j a_j (w_j - t u_j)^2``, with ``a`` and ``u`` that all functions share.

    No two coordinates are alike, so that a solver does not end by chance, and no two clients are done at once.

    Attributes:
        c: Scales the curvatures, which lie between 0.2 and 0.9.
        t: Scales the minimiser, whose coordinates lie between 0.3 and 1.3.
    """

    c: float
    t: float


class Shapes:
    """Keeps the curvatures ``a [d]`` and minimisers ``u [d]`` that made-up functions share, for as long as it lives."""

    def __init__(self) -> None:
        """Start without any."""
        self.of = lru_cache(maxsize=2)(_shape)  # of shared and of personal blocks


class Quadratics:
    """Computes the operators of made-up clients; see :class:`~fedlightning.oracle.base.Evaluate`."""

    def __init__(self, functions: Sequence[Quadratic], shapes: Shapes) -> None:
        """Take one function a client."""
        self._functions, self._shapes = functions, shapes
        self._calls = 0

    def __call__(
        self, w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both", randomness: Randomness | None = None
    ) -> Evaluation:
        """Compute the operators of those clients whose places ``randomness`` names; see ``Evaluate``.

        Raises:
            Enough: If a run asks for too many.
        """
        self._calls += 1
        if self._calls > min(MOST_GRADIENTS, max(FEW_GRADIENTS, MOST_NUMBERS // max(1, w.shape[1]))):
            raise Enough
        places = range(len(w)) if randomness is None else randomness.places
        scales = torch.tensor([self._functions[place] for place in places], dtype=w.dtype, device=w.device)
        (g, value), (g_v, value_v) = self._of(scales, w), self._of(scales, v)
        return Evaluation(g, g_v, b + BUFFERS * scales[:, :1], value + value_v)

    def _of(self, scales: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients ``[S, d]`` and values ``[S]`` at ``w [S, d]`` of functions with scales ``[S, 2]``."""
        a, u = self._shapes.of(w.shape[1], w.dtype, w.device)
        c, t = scales.T[..., None]
        distance = torch.addcmul(w, t, u, value=-1)
        g = (distance * a).mul_(c)
        return g, torch.linalg.vecdot(g, distance) / 2


class MadeUpData:
    """Gives a client the same samples at every step; see :class:`~fedlightning.oracle.evaluations.ClientData`.

    Attributes:
        steps: Number of minibatches of each client, ``[S]``.
    """

    def __init__(self, steps: Tensor, samples: Any, is_new: Sequence[bool]) -> None:
        """Take the steps of S clients, and samples for them.

        Args:
            steps: Number of minibatches of each client, ``[S]``.
            samples: A minibatch, with leaves ``[B, ...]``.
            is_new: Which clients have it as it is; in that of the others its first sample stands B times.
        """
        self.steps = steps
        self._samples, self._is_new = samples, is_new

    def __len__(self) -> int:
        return len(self.steps)

    def minibatches(self) -> Iterator[Minibatch]:
        """Yield as many minibatches as the longest client has."""
        for k in range(int(self.steps.max())):
            going = self.steps > k
            batch = Minibatch(self._gathered)
            yield batch if going.all() else replace(batch, active=going)

    def full(self) -> Iterator[tuple[Tensor, Any]]:
        """Yield the samples once more, as all that the clients have."""
        yield torch.arange(len(self), device=self.steps.device), self._gathered()

    def _gathered(self, rows: Rows | None = None) -> Any:
        is_new = self._is_new if rows is None else [self._is_new[place] for place in rows.places]
        return map_tensors(
            lambda leaf: torch.stack([leaf if new else leaf[:1].expand(leaf.shape) for new in is_new]), self._samples
        )


def _shape(n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return curvatures ``[n]`` and coordinates ``[n]`` of minimisers, of which no two beside each other are alike."""
    number = torch.arange(PERIOD, dtype=torch.float64)
    a, u = 0.2 + 0.7 * (0.37 + 2**0.5 * number).frac(), 0.3 + (0.618 * number).frac()
    curvature, coordinate = (each.to(device, dtype).repeat(ceil(n / PERIOD))[:n] for each in (a, u))
    return curvature, coordinate
