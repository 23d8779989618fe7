"""Federated algorithms, one a file; each serves minimisation and minimax.

The papers' minimax names are aliases: ``FedAvgGDA`` is :class:`FedAvg` on a task with a max block, and so on.
"""

from fedlightning.algorithms.adaptation import AdaptsInUse
from fedlightning.algorithms.apfl import APFL
from fedlightning.algorithms.base import (
    Algorithm,
    LocalGradientAlgorithm,
    OptimizerCallable,
    Phase,
    Point,
    Reply,
    count,
    increment,
    over_all_clients,
    relative_to,
    squared_norm_of,
)
from fedlightning.algorithms.binding import in_round
from fedlightning.algorithms.catalyst_scaffold_s import CatalystScaffoldS
from fedlightning.algorithms.cdma import CDMA, CDMA_ADA, CDMA_NC, CDMA_ONE
from fedlightning.algorithms.coda_plus import CODAPlus
from fedlightning.algorithms.codasca import CODASCA
from fedlightning.algorithms.ditto import Ditto
from fedlightning.algorithms.extra_step_local_sgd import ExtraStepLocalSGD
from fedlightning.algorithms.fe_dual_ex import FeDualEx
from fedlightning.algorithms.fed_admm import FedADMM
from fedlightning.algorithms.fed_admm_gong import FedADMMGong
from fedlightning.algorithms.fed_ala import FedALA
from fedlightning.algorithms.fed_alt import FedAlt
from fedlightning.algorithms.fed_apm import FedAPM
from fedlightning.algorithms.fed_avg import FedAvg, FedAvgGDA, FedSim
from fedlightning.algorithms.fed_babu import FedBABU
from fedlightning.algorithms.fed_buff import FedBuff
from fedlightning.algorithms.fed_cp import FedCP
from fedlightning.algorithms.fed_dr import FedDR
from fedlightning.algorithms.fed_dual_avg import FedDualAvg
from fedlightning.algorithms.fed_dyn import FedDyn
from fedlightning.algorithms.fed_exp import FedExP
from fedlightning.algorithms.fed_mid import FedMiD
from fedlightning.algorithms.fed_mip import FedMiP
from fedlightning.algorithms.fed_mm import FedMM
from fedlightning.algorithms.fed_nova import FedNova
from fedlightning.algorithms.fed_pd import FedPD
from fedlightning.algorithms.fed_per import FedPer
from fedlightning.algorithms.fed_prox import FedProx, FedProxGDA
from fedlightning.algorithms.fed_rep import FedRep
from fedlightning.algorithms.fed_sgda import FedSGD, FedSGDA, ParallelSGDA
from fedlightning.algorithms.fed_skip import FedSkip
from fedlightning.algorithms.fed_split import FedSplit
from fedlightning.algorithms.fiaelt import FIAELT
from fedlightning.algorithms.local_sgda_plus import LocalSGDAPlus
from fedlightning.algorithms.lp_proj import LpProj
from fedlightning.algorithms.moon import MOON
from fedlightning.algorithms.p_fed_me import pFedMe
from fedlightning.algorithms.per_fed_avg import PerFedAvg
from fedlightning.algorithms.projected_gda import PGDA, ProjectedGDA
from fedlightning.algorithms.scaffnew import Scaffnew
from fedlightning.algorithms.scaffold import SCAFFOLD, SCAFFOLDS
from fedlightning.algorithms.splitting import SplittingAlgorithm
from fedlightning.algorithms.stateful_fed_avg import StatefulFedAvg
from fedlightning.core.validation import require
from fedlightning.schedules import Schedule

__all__ = [
    "APFL",
    "CDMA",
    "CDMA_ADA",
    "CDMA_NC",
    "CDMA_ONE",
    "CODASCA",
    "FIAELT",
    "MOON",
    "PGDA",
    "SCAFFOLD",
    "SCAFFOLDS",
    "AdaptsInUse",
    "Algorithm",
    "CODAPlus",
    "CatalystScaffoldS",
    "Ditto",
    "ExtraStepLocalSGD",
    "FeDualEx",
    "FedADMM",
    "FedADMMGong",
    "FedALA",
    "FedAPM",
    "FedAlt",
    "FedAvg",
    "FedAvgGDA",
    "FedBABU",
    "FedBuff",
    "FedCP",
    "FedDR",
    "FedDualAvg",
    "FedDyn",
    "FedExP",
    "FedMM",
    "FedMiD",
    "FedMiP",
    "FedNova",
    "FedPD",
    "FedPer",
    "FedProx",
    "FedProxGDA",
    "FedRep",
    "FedSGD",
    "FedSGDA",
    "FedSim",
    "FedSkip",
    "FedSplit",
    "LocalGradientAlgorithm",
    "LocalSGDAPlus",
    "LpProj",
    "OptimizerCallable",
    "ParallelSGDA",
    "PerFedAvg",
    "Phase",
    "Point",
    "ProjectedGDA",
    "Reply",
    "Scaffnew",
    "Schedule",
    "SplittingAlgorithm",
    "StatefulFedAvg",
    "count",
    "in_round",
    "increment",
    "over_all_clients",
    "pFedMe",
    "relative_to",
    "require",
    "squared_norm_of",
]
