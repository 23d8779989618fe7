"""A task of any size with next to nothing to compute, for the time that messages take."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import Algorithm
from fedlightning.data.client_datasets import ClientDatasets


class Point(FederatedLightningModule):
    """Moves a point of many dimensions towards the clients' numbers."""

    def __init__(self, algorithm: Algorithm, size: int, **federation: Any) -> None:
        """Begin at random numbers: equal pieces of a message would be sent and stored only once.

        Args:
            algorithm: How clients and server work together.
            size: Number of parameters.
            federation: Further arguments of the base class.
        """
        super().__init__(algorithm, **federation)
        self.save_hyperparameters()
        self.point = torch.nn.Parameter(torch.randn(size, generator=torch.Generator().manual_seed(0)))

    def objective(self, batch: Any) -> torch.Tensor:
        """Return half the squared distance."""
        (numbers,) = batch
        return 0.5 * ((self.point - numbers.mean()) ** 2).sum()


class Numbers(FederatedDataModule):
    """Four numbers for each of three clients."""

    def __init__(self, batch_size: int = 4, local_steps: int = 1, **options: Any) -> None:
        super().__init__(batch_size, local_steps, **options)

    def build(self) -> Any:
        """Return the clients' numbers."""
        return ClientDatasets([TensorDataset(torch.full((4, 1), 1.0 + client)) for client in range(3)]).build()
