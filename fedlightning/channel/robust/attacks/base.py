"""The contract of simulated adversaries.

Adversaries know everything that honest clients of the cohort send: rules are to be tried on the worst that a client can
do. They act on every field of an update by itself, before the aggregation, where all clients are simulated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedlightning.channel.base import Exchange
from fedlightning.channel.robust.attacks.honest import HonestRows
from fedlightning.channel.robust.rows import Peers


class Attack(ABC):
    """Serves as the base class of what adversarial clients send.

    Subclasses are frozen dataclasses; those that derive from :class:`~fedlightning.core.some_clients.SomeClients` too
    have options that say which clients are adversarial.
    """

    @abstractmethod
    def among(self, num_clients: int) -> frozenset[int]:
        """Return the ids of the adversarial clients in a federation of N clients, the same in every round."""

    @abstractmethod
    def forge(
        self, own: Tensor, client_ids: Sequence[int], honest: HonestRows, exchange: Exchange, purpose: int
    ) -> Tensor:
        """Return what adversaries send in place of one field of their updates, ``[M, n]``.

        Where several processes hold clients, all of them call this in every exchange in which one of the clients is
        adversarial.

        Args:
            own: The updates of the adversarial clients of this process, ``[M, n]``; M may be 0.
            client_ids: Their ids.
            honest: What the honest clients of the cohort send.
            exchange: Between whom updates pass, and when; its cohort is that of the clients whose updates count.
            purpose: Distinguishes the field, for :meth:`Exchange.generator`.
        """

    def act(
        self,
        parts: Sequence[Tensor],
        client_ids: Sequence[int],
        exchange: Exchange,
        purpose: int,
        processes: Peers | None = None,
    ) -> list[Tensor]:
        """Return the rows of a cohort with those of adversarial clients replaced.

        Args:
            parts: Chunks ``[C, n]`` of one field of the updates of this process's clients, one or more; not written to.
            client_ids: Ids of the clients, chunk after chunk.
            exchange: Between whom updates pass, and when.
            purpose: Distinguishes the field, for :meth:`Exchange.generator`.
            processes: All processes that hold rows of this field, which must all call this; None for this one alone.
        """
        among = self.among(exchange.num_clients)
        ids = [client for client in client_ids if client in among]
        acts = torch.tensor([client in among for client in client_ids], dtype=torch.bool)
        masks = [mask.to(part.device) for mask, part in zip(acts.split([*map(len, parts)]), parts, strict=True)]
        present = torch.tensor(len(ids), device=parts[0].device)
        adversaries = int(present if processes is None else processes.sum(present))
        if not adversaries:
            return list(parts)
        own = torch.cat([part[mask] for mask, part in zip(masks, parts, strict=True)])
        honest = HonestRows([part[~mask] for mask, part in zip(masks, parts, strict=True)], processes)
        forged = self.forge(own, ids, honest, replace(exchange, cohort=honest.count + adversaries), purpose)
        limits = torch.finfo(own.dtype)
        sent = forged.clamp(limits.min, limits.max).to(own.dtype).split([int(mask.sum()) for mask in masks])
        return [part.masked_scatter(mask[:, None], new) for part, mask, new in zip(parts, masks, sent, strict=True)]
