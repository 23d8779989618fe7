"""Schedules over rounds for the hyper-parameters of algorithms and local solvers.

Wherever an algorithm takes a number that may vary (``PerRound`` or ``PerBlock``), it takes a schedule as well::

    FedAvg(lr=Exponential(0.1, gamma=0.998))
    FedProx(lr=Milestones({0: 0.1, 100: 0.01}), mu=0.1)
    FedAvg(lr=[Cosine(0.1, rounds=500, end=1e-4), 0.05])         # min block, max block

A schedule counts rounds done: its value at 0 is that of the first round. In Python a plain function does, too,
``lr=lambda rounds: 0.1 / (rounds + 1)``, but checkpoints and configurations cannot store it.
"""

from fedlightning.core.schedule import Schedule
from fedlightning.schedules.closed_forms import Cosine, Exponential, Milestones, Polynomial, Warmup
from fedlightning.schedules.function import Function
from fedlightning.schedules.torch_scheduler import FromTorch

__all__ = [
    "Cosine",
    "Exponential",
    "FromTorch",
    "Function",
    "Milestones",
    "Polynomial",
    "Schedule",
    "Warmup",
]
