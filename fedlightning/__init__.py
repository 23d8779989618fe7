"""Federated optimisation (minimax, composite, ADMM, personalised) as a first-class citizen of PyTorch Lightning."""

from typing import TYPE_CHECKING

from fedlightning._lazy import lazily
from fedlightning._torchvision import declare_before_torchvision

if TYPE_CHECKING:
    from fedlightning.data.module import FederatedDataModule
    from fedlightning.module import FederatedLightningModule
    from fedlightning.scored import ScoredTask

__version__ = "0.1.0"

__all__ = ["FederatedDataModule", "FederatedLightningModule", "ScoredTask", "__version__"]

declare_before_torchvision()
__getattr__, __dir__ = lazily(
    __name__,
    {"data.module": "FederatedDataModule", "module": "FederatedLightningModule", "scored": "ScoredTask"},
    modules=(
        "algorithms",
        "callbacks",
        "data",
        "local",
        "metrics",
        "models",
        "oracle",
        "participation",
        "plotting",
        "proximal",
        "tasks",
    ),
)
