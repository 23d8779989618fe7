"""Federated data: partitioners, cohorts, data modules, data sets."""

from fedlightning.data.module import ClientDatasets, FederatedDataModule, Federation, RoundLoader, TensorData
from fedlightning.data.partition import IID, ByGroup, Dirichlet, Partition, Partitioner, Shards, SourceTargetShare

__all__ = [
    "IID",
    "ByGroup",
    "ClientDatasets",
    "Dirichlet",
    "FederatedDataModule",
    "Federation",
    "Partition",
    "Partitioner",
    "RoundLoader",
    "Shards",
    "SourceTargetShare",
    "TensorData",
]
