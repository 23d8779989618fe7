"""What a hospital has installed: its data, its tasks, and names that a run must not reach."""

from __future__ import annotations

from subprocess import Popen  # noqa: F401
from threading import Event
from typing import Any

from fedlightning import FederatedDataModule
from fedlightning.algorithms import Algorithm
from fedlightning.data.client_datasets import ClientDatasets
from tests.support.small import Line, Personal, clients

CLIENTS = clients()


class Records(FederatedDataModule):
    """Four clients, of which a node's config takes its own."""

    def __init__(self, batch_size: int = 4, local_steps: int = 3, **options: Any) -> None:
        super().__init__(batch_size, local_steps, **options)

    def build(self):
        return ClientDatasets(CLIENTS).build()


class Tumour(Line):
    """A task whose argument is of any kind, as arguments without annotations are."""

    def __init__(self, algorithm: Algorithm, marker=None, activation: Any = None, **federation: Any) -> None:
        super().__init__(algorithm, **federation)
        self.marker, self.activation = marker, activation


class Endless(Tumour):
    """A task whose objective never returns."""

    def objective(self, batch):
        Event().wait()


class Offset(Personal):
    """A task with a personal parameter that begins at random numbers."""

    def __init__(self, algorithm: Algorithm, **federation: Any) -> None:
        super().__init__(algorithm, **federation)
        self.offset.data.normal_()


def negative(x):
    """A function that a run may name if the node allows it."""
    return -x
