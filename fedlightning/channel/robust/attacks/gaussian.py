"""Clients that send noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.channel.base import Exchange
from fedlightning.channel.robust.attacks.base import Attack
from fedlightning.channel.robust.attacks.honest import HonestRows
from fedlightning.core.some_clients import SomeClients
from fedlightning.core.validation import require


@dataclass(frozen=True, kw_only=True)
class GaussianAttack(SomeClients, Attack):
    """Sends Gaussian noise in place of the update.

    Args:
        scale: Standard deviation > 0, in units of the root mean square of the update that the client would have sent.
        clients: Ids of the adversarial clients. Give either these or ``share``.
        share: Share 0 < share <= 1 of all N clients that are adversarial in every round, at least one client.
        seed: Seed of the draw of the share.
    """

    scale: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "scale", above=0.0)

    def forge(
        self, own: Tensor, client_ids: Sequence[int], honest: HonestRows, exchange: Exchange, purpose: int
    ) -> Tensor:
        """Return noise of the clients' own generators."""
        noise = torch.empty_like(own, dtype=torch.promote_types(own.dtype, torch.float32))
        for row, update, client in zip(noise, own, client_ids, strict=True):
            spread = self.scale * float(update.to(row).square().mean().sqrt())
            row.normal_(generator=exchange.generator(client, purpose, own.device)).mul_(spread)
        return noise
