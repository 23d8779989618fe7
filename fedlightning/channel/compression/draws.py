"""Random draws of clients that no order, chunking or number of processes changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from fedlightning.channel.base import Exchange, Fields


class Draws:
    """Draws for each of S clients from the client's own generator, or for the server at the server.

    Generators are made when something is drawn: the field of an update that comes first draws first.
    """

    def __init__(self, exchange: Exchange, purpose: int, device: torch.device) -> None:
        """Draw for the clients of an exchange, on ``device``; see :meth:`Exchange.generator`."""
        self._exchange, self._purpose, self._device = exchange, purpose, device

    @classmethod
    def of(cls, values: Fields, exchange: Exchange, purpose: int) -> Draws:
        """Return the draws for fields ``[S, n]``, which all lie on one device."""
        return cls(exchange, purpose, next(iter(values.values())).device)

    @cached_property
    def _generators(self) -> list[torch.Generator]:
        who: Sequence[int | None] = self._exchange.client_ids or (None,)
        return [self._exchange.generator(each, self._purpose, self._device) for each in who]

    def uniform(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return ``[S, count]`` numbers in [0, 1)."""
        return torch.stack(
            [torch.rand(count, generator=each, dtype=dtype, device=self._device) for each in self._generators]
        )

    def subsets(self, size: int, of: int) -> Tensor:
        """Return ``[S, size]`` indices below ``of``, those of one client all different; every subset is as likely."""
        return torch.stack(
            [torch.randperm(of, generator=each, device=self._device)[:size] for each in self._generators]
        )
