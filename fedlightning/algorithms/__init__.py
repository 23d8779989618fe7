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
from fedlightning.algorithms.ditto import Ditto
from fedlightning.algorithms.extra_step_local_sgd import ExtraStepLocalSGD
from fedlightning.algorithms.fe_dual_ex import FeDualEx
from fedlightning.algorithms.fed_ala import FedALA
from fedlightning.algorithms.fed_alt import FedAlt
from fedlightning.algorithms.fed_apm import FedAPM
from fedlightning.algorithms.fed_avg import FedAvg, FedAvgGDA, FedSim
from fedlightning.algorithms.fed_dual_avg import FedDualAvg
from fedlightning.algorithms.fed_mid import FedMiD
from fedlightning.algorithms.fed_mip import FedMiP
from fedlightning.algorithms.fed_mm import FedMM
from fedlightning.algorithms.fed_prox import FedProx, FedProxGDA
from fedlightning.algorithms.fed_sgda import FedSGD, FedSGDA, ParallelSGDA
from fedlightning.algorithms.p_fed_me import pFedMe
from fedlightning.algorithms.projected_gda import PGDA, ProjectedGDA
from fedlightning.algorithms.scaffold import SCAFFOLD, SCAFFOLDS

__all__ = [
    "PGDA",
    "SCAFFOLD",
    "SCAFFOLDS",
    "Algorithm",
    "Ditto",
    "ExtraStepLocalSGD",
    "FeDualEx",
    "FedALA",
    "FedAPM",
    "FedAlt",
    "FedAvg",
    "FedAvgGDA",
    "FedDualAvg",
    "FedMM",
    "FedMiD",
    "FedMiP",
    "FedProx",
    "FedProxGDA",
    "FedSGD",
    "FedSGDA",
    "FedSim",
    "LocalGradientAlgorithm",
    "OptimizerCallable",
    "ParallelSGDA",
    "Phase",
    "Point",
    "ProjectedGDA",
    "Reply",
    "over_all_clients",
    "pFedMe",
    "require",
]
