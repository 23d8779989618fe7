"""Ready-made tasks."""

from fedlightning.tasks.adversaries import CDAN, DANN, MDD, Adversary
from fedlightning.tasks.classification import Classification
from fedlightning.tasks.domain_adaptation import DomainAdaptation
from fedlightning.tasks.quadratic_saddle import ClientNumbers, QuadraticSaddle

__all__ = [
    "CDAN",
    "DANN",
    "MDD",
    "Adversary",
    "Classification",
    "ClientNumbers",
    "DomainAdaptation",
    "QuadraticSaddle",
]
