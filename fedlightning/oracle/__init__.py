"""The operator of a task's objective over a cohort of clients: vectorised, sequential, or whichever is faster."""

from fedlightning.oracle.auto import Auto
from fedlightning.oracle.base import ClientBatching, Cost, Evaluate, Evaluation
from fedlightning.oracle.errors import BatchedError, ObjectiveError
from fedlightning.oracle.gradient import GradientOracle
from fedlightning.oracle.minibatch import Minibatch
from fedlightning.oracle.objective import Autocast, Objective
from fedlightning.oracle.sequential import Sequential
from fedlightning.oracle.vectorized import Vectorized

__all__ = [
    "Auto",
    "Autocast",
    "BatchedError",
    "ClientBatching",
    "Cost",
    "Evaluate",
    "Evaluation",
    "GradientOracle",
    "Minibatch",
    "Objective",
    "ObjectiveError",
    "Sequential",
    "Vectorized",
]
