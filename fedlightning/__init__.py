"""Federated optimisation (minimax, composite, ADMM, personalised) as a first-class citizen of PyTorch Lightning."""

from fedlightning import _torchvision  # noqa: F401  # before anything imports torchvision
from fedlightning.data.module import FederatedDataModule
from fedlightning.module import FederatedLightningModule
from fedlightning.scored import ScoredTask

__version__ = "0.1.0"

__all__ = ["FederatedDataModule", "FederatedLightningModule", "ScoredTask", "__version__"]
