"""Federated data: partitioners, cohorts, data modules, data sets."""

from fedlightning.data.classification import CIFAR10, MNIST, Digits, FashionMNIST
from fedlightning.data.domains import MNISTM, DigitsM, Office31
from fedlightning.data.evaluation import ClientLoader
from fedlightning.data.features import SubjectFeatures
from fedlightning.data.images import ScalePixels
from fedlightning.data.module import ClientDatasets, FederatedDataModule, Federation, RoundLoader
from fedlightning.data.partition import IID, ByGroup, Dirichlet, Partition, Partitioner, Shards, SourceTargetShare
from fedlightning.data.personal import HAPT, UCIHAR, PersonalCIFAR10, PersonalData, PersonalDigits, PersonalMNIST
from fedlightning.data.tensors import TensorData

__all__ = [
    "CIFAR10",
    "HAPT",
    "IID",
    "MNIST",
    "MNISTM",
    "UCIHAR",
    "ByGroup",
    "ClientDatasets",
    "ClientLoader",
    "Digits",
    "DigitsM",
    "Dirichlet",
    "FashionMNIST",
    "FederatedDataModule",
    "Federation",
    "Office31",
    "Partition",
    "Partitioner",
    "PersonalCIFAR10",
    "PersonalData",
    "PersonalDigits",
    "PersonalMNIST",
    "RoundLoader",
    "ScalePixels",
    "Shards",
    "SourceTargetShare",
    "SubjectFeatures",
    "TensorData",
]
