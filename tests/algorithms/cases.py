"""Every algorithm with what the contract test needs to know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fedlightning import algorithms as fl
from tests.references.composite import (
    extra_step_local_sgd,
    fe_dual_ex,
    fed_dual_avg,
    fed_mid,
    fed_mip,
    fed_sgda,
    projected_gda,
)
from tests.references.fed_avg import fed_avg
from tests.references.fed_mm import fed_mm
from tests.references.personal import ditto, fed_ala, fed_alt, fed_apm, p_fed_me
from tests.references.scaffold import scaffold


@dataclass(frozen=True)
class Case:
    """One algorithm.

    Attributes:
        make: The class.
        hyper: Hyper-parameters that suit the quadratic test problem.
        reference: Independent NumPy loop taking the same hyper-parameters.
        other: For every hyper-parameter another value, which must change the trajectory.
        exact: Whether it reaches the saddle of heterogeneous quadratics for K > 1 under full participation.
        rounds: Rounds it is given to get there, to 1e-9.
        own: Hyper-parameters that act on personal blocks or personal models only: with them, what clients keep changes
            on a problem with a personal block, and the point need not.
        still: Fields of the client state that a client's round may leave as they are.
    """

    make: Callable[..., fl.Algorithm]
    hyper: dict[str, Any]
    reference: Callable[..., list[Any]]
    other: dict[str, Any] = field(default_factory=dict)
    exact: bool = False
    rounds: int = 400
    own: frozenset[str] = frozenset()
    still: frozenset[str] = frozenset()

    def algorithm(self, **changes: Any) -> fl.Algorithm:
        return self.make(**{**self.hyper, **changes})


CASES = {
    "FedAvg": Case(
        fl.FedAvg,
        {"lr": 0.05},
        fed_avg,
        {"lr": 0.04, "local_optimizer": lambda p: torch.optim.SGD(p, momentum=0.9)},
    ),
    "FedProx": Case(
        fl.FedProx,
        {"lr": 0.05, "mu": 0.3},
        fed_avg,
        {"lr": 0.04, "mu": 0.2, "local_optimizer": torch.optim.Adam},
    ),
    "FedSGDA": Case(fl.FedSGDA, {"lr": 0.05}, fed_sgda, {"lr": 0.04}, exact=True, rounds=1500),
    "SCAFFOLD": Case(fl.SCAFFOLD, {"lr": 0.05, "lr_server": 0.9}, scaffold, {"lr": 0.04, "lr_server": 0.8}, exact=True),
    "FedMM": Case(
        fl.FedMM,
        {"lr": 0.05, "mu": 1.5, "eta3": 0.95},
        fed_mm,
        {"lr": 0.04, "mu": 1.0, "eta3": 0.9, "local_optimizer": torch.optim.Adam},
        exact=True,
    ),
    "FedAlt": Case(
        fl.FedAlt,
        {"lr": 0.05},
        fed_alt,
        {"lr": 0.04, "personal_passes": 2, "local_optimizer": torch.optim.Adam},
        rounds=60,
        own=frozenset({"personal_passes"}),
    ),
    "FedAPM": Case(
        fl.FedAPM,
        {"lr": 0.05, "rho": 1.5, "sigma": 0.5, "tolerance": 5.0, "decay": 0.9},
        fed_apm,
        {
            "lr": 0.04,
            "rho": 1.0,
            "sigma": 1.0,
            "tolerance": 0.5,
            "decay": 0.1,
            "personal_passes": 2,
            "start": "shared",
        },
        exact=True,
        own=frozenset({"sigma", "personal_passes"}),
    ),
    "FedALA": Case(
        fl.FedALA,
        {"lr": 0.05, "lr_weights": 0.2, "first_passes": 2},
        fed_ala,
        {
            "lr": 0.04,
            "lr_weights": 0.1,
            "first_passes": 3,
            "adaptive": 0.5,
            "local_optimizer": torch.optim.Adam,
        },
        rounds=40,
        still=frozenset({"a"}),
    ),
    "Ditto": Case(
        fl.Ditto,
        {"lr": 0.05, "lam": 0.5},
        ditto,
        {"lr": 0.04, "lam": 1.0, "lr_own": 0.03, "local_optimizer": torch.optim.Adam},
        rounds=60,
        own=frozenset({"lam", "lr_own"}),
    ),
    "pFedMe": Case(
        fl.pFedMe,
        {"lr": 0.05, "lam": 2.0, "inner_steps": 3, "beta": 0.9},
        p_fed_me,
        {"lr": 0.04, "lam": 3.0, "lr_own": 0.03, "inner_steps": 4, "beta": 0.8},
        rounds=60,
    ),
    "FedDualAvg": Case(fl.FedDualAvg, {"lr": 0.05, "lr_server": 0.9}, fed_dual_avg, {"lr": 0.04, "lr_server": 0.8}),
    "FeDualEx": Case(
        fl.FeDualEx,
        {"lr": 0.05, "lr_server": 0.9},
        fe_dual_ex,
        {"lr": 0.04, "lr_server": 0.8, "output": "ergodic"},
    ),
    "FedMiD": Case(fl.FedMiD, {"lr": 0.05, "lr_server": 0.9}, fed_mid, {"lr": 0.04, "lr_server": 0.8}),
    "FedMiP": Case(fl.FedMiP, {"lr": 0.05, "lr_server": 0.9}, fed_mip, {"lr": 0.04, "lr_server": 0.8}),
    "ProjectedGDA": Case(fl.ProjectedGDA, {"lr": 0.05}, projected_gda, {"lr": 0.04}),
    "ExtraStepLocalSGD": Case(fl.ExtraStepLocalSGD, {"lr": 0.05}, extra_step_local_sgd, {"lr": 0.04}),
}
"""By class name."""

EXACT_HYPER = {"FedMM": {"eta3": 1.0}, "FedAPM": {"tolerance": 0.0}, "SCAFFOLD": {"lr": 0.02, "lr_server": 1.0}}
"""Hyper-parameters under which an exact method is exact."""
