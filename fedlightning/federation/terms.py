"""What clients have to know of an exchange beside the algorithm's message, if updates pass through a channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Terms:
    """Says what clients have to know of an exchange whose updates pass through a channel.

    Attributes:
        cohort: Number of clients that are asked, over all machines and processes.
        num_clients: Number of all clients, N.
        public: What the server tells the clients' transforms, by name.
        expected: Mean number of clients that are asked, where the number itself is a secret; None where it is not.
    """

    cohort: int
    num_clients: int
    public: Mapping[str, Tensor] = field(default_factory=dict)
    expected: float | None = None

    def to(self, device: torch.device) -> Terms:
        """Return the terms with their tensors on a device."""
        return replace(self, public={name: value.to(device) for name, value in self.public.items()})
