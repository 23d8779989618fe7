"""Federated data: partitioners, cohorts, data modules, data sets."""

from fedlightning.data.celeba import CelebA
from fedlightning.data.classification import CIFAR10, MNIST, Digits, FashionMNIST
from fedlightning.data.domains import MNISTM, DigitsM, Office31
from fedlightning.data.images import ScalePixels
from fedlightning.data.leaf import FEMNIST
from fedlightning.data.module import ClientDatasets, FederatedDataModule, Federation, RoundLoader, TensorData
from fedlightning.data.partition import IID, ByGroup, Dirichlet, Partition, Partitioner, Shards, SourceTargetShare
from fedlightning.data.synthetic import Synthetic

__all__ = [
    "CIFAR10",
    "FEMNIST",
    "IID",
    "MNIST",
    "MNISTM",
    "ByGroup",
    "CelebA",
    "ClientDatasets",
    "Digits",
    "DigitsM",
    "Dirichlet",
    "FashionMNIST",
    "FederatedDataModule",
    "Federation",
    "Office31",
    "Partition",
    "Partitioner",
    "RoundLoader",
    "ScalePixels",
    "Shards",
    "SourceTargetShare",
    "Synthetic",
    "TensorData",
]
