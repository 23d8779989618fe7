"""A metric of how well features hide their domain."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class DomainConfusion(Metric):
    r"""Measures how badly a domain classifier separates the domains, from 0 (perfectly) to 1 (by guessing).

    With the classifier's error rates e_s on source and e_t on target samples, the balanced error is
    e = (e_s + e_t) / 2 and the confusion ``2 * min(e, 1 - e)``: a classifier that is always wrong tells the domains
    apart as well as one that is always right.

    >>> metric = DomainConfusion()
    >>> metric.update(torch.tensor([0.9, 0.2, 0.6, 0.4]), torch.tensor([0, 0, 1, 1]))
    >>> metric.compute()
    tensor(1.)
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = True

    wrong: Tensor
    total: Tensor

    def __init__(self, **kwargs: Any) -> None:
        """Start without samples; ``kwargs`` are passed to ``torchmetrics.Metric``."""
        super().__init__(**kwargs)
        self.add_state("wrong", torch.zeros(2), dist_reduce_fx="sum")
        self.add_state("total", torch.zeros(2), dist_reduce_fx="sum")

    def update(self, source_probability: Tensor, domain: Tensor) -> None:
        """Add the samples of a batch.

        Args:
            source_probability: ``[B]``, the classifier's probability that a sample is from the source.
            domain: ``[B]``, 0 for source and 1 for target.
        """
        wrong = (source_probability < 0.5).long() != domain
        for label in (0, 1):
            members = domain == label
            self.wrong[label] += (wrong & members).sum()
            self.total[label] += members.sum()

    def compute(self) -> Tensor:
        """Return the confusion of all samples so far; NaN unless both domains were seen."""
        error = (self.wrong / self.total).mean()
        return 2 * torch.minimum(error, 1 - error)
