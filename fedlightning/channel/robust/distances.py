"""Distances between rows, from one matrix of inner products."""

from __future__ import annotations

from torch import Tensor

from fedlightning.channel.base import Rows
from fedlightning.channel.robust.median import Median


def squared_distances(rows: Rows) -> Tensor:
    """Return the squared distances between rows, ``[S, S]`` float64.

    Inner products are taken about the coordinatewise median. There, honest rows keep their digits whatever a minority
    sends: about the mean, a single row of 1e12 would leave no digit of distances of 1e-3.
    """
    gram = rows.gram(about=Median().aggregate(rows))
    own = gram.diagonal()
    return (own[:, None] + own[None, :] - 2 * gram).clamp(min=0).fill_diagonal_(0)


def distances_from(weights: Tensor, gram: Tensor) -> Tensor:
    """Return the distances of the rows from ``weights @ rows``, ``[S]``.

    Args:
        weights: ``[S]``.
        gram: Inner products of the rows, ``[S, S]``, about a point p; the distances are those from
            ``p + weights @ (rows - p)``.
    """
    towards = gram @ weights
    return (gram.diagonal() - 2 * towards + weights @ towards).clamp(min=0).sqrt()
