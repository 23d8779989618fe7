"""Federated optimisation (minimax, composite, ADMM, personalised) as a first-class citizen of PyTorch Lightning."""

from typing import TYPE_CHECKING

from fedlightning._torchvision import declare_before_torchvision
from fedlightning.core.errors import FedlightningError
from fedlightning.core.lazy import lazily

if TYPE_CHECKING:
    from fedlightning.data.module import FederatedDataModule
    from fedlightning.tasks.base import FederatedLightningModule
    from fedlightning.tasks.batched_evaluation import BatchedEvaluationTask
    from fedlightning.tasks.federated.module import Federated, federate

__version__ = "0.1.0"

__all__ = [
    "BatchedEvaluationTask",
    "Federated",
    "FederatedDataModule",
    "FederatedLightningModule",
    "FedlightningError",
    "__version__",
    "federate",
]

declare_before_torchvision()
__getattr__, __dir__ = lazily(
    __name__,
    {
        "data.module": "FederatedDataModule",
        "tasks.base": "FederatedLightningModule",
        "tasks.batched_evaluation": "BatchedEvaluationTask",
        "tasks.federated.module": "Federated federate",
    },
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
        "schedules",
        "tasks",
    ),
)
