"""Federated algorithms, one a file; each serves minimisation and minimax.

The papers' minimax names are aliases: ``FedAvgGDA`` is :class:`FedAvg` on a task with a max block, and so on.
"""

from fedlightning.algorithms.base import (
    Algorithm,
    LocalGradientAlgorithm,
    OptimizerCallable,
    Phase,
    Point,
    Reply,
    over_all_clients,
    require,
)
from fedlightning.algorithms.fed_avg import FedAvg, FedAvgGDA
from fedlightning.algorithms.fed_mm import FedMM
from fedlightning.algorithms.fed_prox import FedProx, FedProxGDA
from fedlightning.algorithms.fed_sgda import FedSGD, FedSGDA, ParallelSGDA
from fedlightning.algorithms.scaffold import SCAFFOLD, SCAFFOLDS

__all__ = [
    "SCAFFOLD",
    "SCAFFOLDS",
    "Algorithm",
    "FedAvg",
    "FedAvgGDA",
    "FedMM",
    "FedProx",
    "FedProxGDA",
    "FedSGD",
    "FedSGDA",
    "LocalGradientAlgorithm",
    "OptimizerCallable",
    "ParallelSGDA",
    "Phase",
    "Point",
    "Reply",
    "over_all_clients",
    "require",
]
