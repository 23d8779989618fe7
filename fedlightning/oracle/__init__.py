"""The operator of a task's objective over a cohort of clients: vectorised, sequential, or whichever is faster."""

from fedlightning.oracle.auto import Auto
from fedlightning.oracle.base import Cost, Evaluate, Evaluation, Oracle
from fedlightning.oracle.cohort import CohortOracle, Minibatch
from fedlightning.oracle.objective import Autocast, BatchedError, Objective, ObjectiveError
from fedlightning.oracle.sequential import Sequential
from fedlightning.oracle.vectorized import Vectorized

__all__ = [
    "Auto",
    "Autocast",
    "BatchedError",
    "CohortOracle",
    "Cost",
    "Evaluate",
    "Evaluation",
    "Minibatch",
    "Objective",
    "ObjectiveError",
    "Oracle",
    "Sequential",
    "Vectorized",
]
