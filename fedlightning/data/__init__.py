"""Federated data: partitioners, cohorts, data modules, data sets."""

from typing import TYPE_CHECKING

from fedlightning.core.lazy import lazily

if TYPE_CHECKING:
    from fedlightning.data.celeba import CelebA
    from fedlightning.data.classification import (
        CIFAR10,
        CIFAR100,
        MNIST,
        Digits,
        FashionMNIST,
        LabelledPictures,
        TinyImageNet,
    )
    from fedlightning.data.client_datasets import ClientDatasets
    from fedlightning.data.digits_of_sizes import DigitsOfSizes
    from fedlightning.data.domains import MNISTM, DigitsM, Office31
    from fedlightning.data.evaluation import ClientLoader
    from fedlightning.data.fcube import FCUBE
    from fedlightning.data.feature_skew import FeatureSkew, GrowingNoise, Rotation
    from fedlightning.data.features import FedMultimodal, SubjectFeatures
    from fedlightning.data.federation import Federation
    from fedlightning.data.holdings import Holdings, save_partition
    from fedlightning.data.images import ScalePixels
    from fedlightning.data.label_skew import LabelQuantity, Pathological
    from fedlightning.data.leaf import FEMNIST
    from fedlightning.data.module import FederatedDataModule
    from fedlightning.data.partition import Partition
    from fedlightning.data.partition_file import FromFile, write_partition
    from fedlightning.data.partitioners import IID, ByGroup, Dirichlet, Partitioner, Parts, Shards, SourceTargetShare
    from fedlightning.data.personal import (
        HAPT,
        KUHAR,
        UCIHAR,
        PersonalCIFAR10,
        PersonalCIFAR100,
        PersonalData,
        PersonalDigits,
        PersonalFashionMNIST,
        PersonalMNIST,
        PersonalPictures,
        PersonalTinyImageNet,
    )
    from fedlightning.data.poisoning import LabelFlip, Poisoning
    from fedlightning.data.quantity_skew import DirichletSizes, PowerLawSizes
    from fedlightning.data.remote import RemoteClients
    from fedlightning.data.speeches import Speeches
    from fedlightning.data.synthetic import Synthetic
    from fedlightning.data.tensors import MixedTensorData, TensorData
    from fedlightning.data.text import byte_tokens, padded, text_of
    from fedlightning.federation.sampling.round_loader import RoundLoader

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "FCUBE",
    "FEMNIST",
    "HAPT",
    "IID",
    "KUHAR",
    "MNIST",
    "MNISTM",
    "UCIHAR",
    "ByGroup",
    "CelebA",
    "ClientDatasets",
    "ClientLoader",
    "Digits",
    "DigitsM",
    "DigitsOfSizes",
    "Dirichlet",
    "DirichletSizes",
    "FashionMNIST",
    "FeatureSkew",
    "FedMultimodal",
    "FederatedDataModule",
    "Federation",
    "FromFile",
    "GrowingNoise",
    "Holdings",
    "LabelFlip",
    "LabelQuantity",
    "LabelledPictures",
    "MixedTensorData",
    "Office31",
    "Partition",
    "Partitioner",
    "Parts",
    "Pathological",
    "PersonalCIFAR10",
    "PersonalCIFAR100",
    "PersonalData",
    "PersonalDigits",
    "PersonalFashionMNIST",
    "PersonalMNIST",
    "PersonalPictures",
    "PersonalTinyImageNet",
    "Poisoning",
    "PowerLawSizes",
    "RemoteClients",
    "Rotation",
    "RoundLoader",
    "ScalePixels",
    "Shards",
    "SourceTargetShare",
    "Speeches",
    "SubjectFeatures",
    "Synthetic",
    "TensorData",
    "TinyImageNet",
    "byte_tokens",
    "padded",
    "save_partition",
    "text_of",
    "write_partition",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "celeba": "CelebA",
        "client_datasets": "ClientDatasets",
        "classification": "CIFAR10 CIFAR100 MNIST Digits FashionMNIST LabelledPictures TinyImageNet",
        "digits_of_sizes": "DigitsOfSizes",
        "domains": "MNISTM DigitsM Office31",
        "evaluation": "ClientLoader",
        "fcube": "FCUBE",
        "feature_skew": "FeatureSkew GrowingNoise Rotation",
        "federation": "Federation",
        "features": "FedMultimodal SubjectFeatures",
        "holdings": "Holdings save_partition",
        "images": "ScalePixels",
        "label_skew": "LabelQuantity Pathological",
        "leaf": "FEMNIST",
        "module": "FederatedDataModule",
        "partition": "Partition",
        "partition_file": "FromFile write_partition",
        "partitioners": "IID ByGroup Dirichlet Partitioner Parts Shards SourceTargetShare",
        "personal": "HAPT KUHAR UCIHAR PersonalCIFAR10 PersonalCIFAR100 "
        "PersonalData PersonalDigits PersonalFashionMNIST PersonalMNIST PersonalPictures PersonalTinyImageNet",
        "poisoning": "LabelFlip Poisoning",
        "quantity_skew": "DirichletSizes PowerLawSizes",
        "remote": "RemoteClients",
        "speeches": "Speeches",
        "synthetic": "Synthetic",
        "tensors": "MixedTensorData TensorData",
        "text": "byte_tokens padded text_of",
        ".federation.sampling.round_loader": "RoundLoader",
    },
)
