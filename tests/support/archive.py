"""What a hospital has installed to validate and to predict: data of all kinds, and a task with a personal part."""

from __future__ import annotations

from typing import Any

from fedlightning import FederatedDataModule
from fedlightning.algorithms import Algorithm
from fedlightning.data.client_datasets import ClientDatasets
from tests.support.evaluated import Own
from tests.support.small import clients


class Archive(FederatedDataModule):
    """Four clients with data of their own to train, validate and test."""

    def __init__(self, batch_size: int = 4, local_steps: int = 3, **options: Any) -> None:
        super().__init__(batch_size, local_steps, **options)

    def build(self):
        return ClientDatasets(clients(), clients(seed=7), clients(seed=8)).build()


class Dose(Own):
    """Regression with a personal offset, which predicts."""

    def __init__(self, algorithm: Algorithm, **federation: Any) -> None:
        super().__init__(algorithm, **federation)
