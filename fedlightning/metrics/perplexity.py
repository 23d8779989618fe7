"""Perplexity of a language model over all tokens of a stage."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class TokenPerplexity(Metric):
    """Computes exp of the mean negative log likelihood of all tokens that are predicted.

    The mean is over tokens, not over batches: padding and the size of batches make no difference. With no token to
    judge by it is NaN.
    """

    higher_is_better = False
    is_differentiable = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, **options: Any) -> None:
        """Set up sums over tokens.

        Args:
            options: Arguments of ``torchmetrics.Metric``.
        """
        super().__init__(**options)
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, losses: Tensor, counts: Tensor) -> None:
        """Add tokens.

        Args:
            losses: Negative log likelihood of every token in nats, of any shape.
            counts: Which tokens count, of the same shape, bool.
        """
        # not in place: Lightning validates in inference mode, whose tensors cannot be changed in a later fit
        self.total = self.total + losses.detach().double().masked_fill(~counts, 0.0).sum()
        self.count = self.count + counts.sum()

    def compute(self) -> Tensor:
        """Return the perplexity, at least 1, a scalar."""
        return (self.total / self.count).exp().float()
