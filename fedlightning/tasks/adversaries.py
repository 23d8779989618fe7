"""Adversaries of domain adaptation: DANN, CDAN, MDD.

An adversary is a head on the features whose *risk* it minimises and the feature extractor maximises. The task's
objective is f = class loss - nu * risk, minimised by extractor and classifier, maximised by the head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlightning.core.validation import require
from fedlightning.models.extractors import init_truncated_normal


@dataclass(frozen=True)
class Adversary(ABC):
    """Defines the network that is maximised over, and its risk.

    Args:
        nu: Trade-off nu > 0 between class loss and the adversary's risk.
        hidden: Width of the head's hidden layer.
    """

    nu: float = 1.0
    hidden: int = 100

    def __post_init__(self) -> None:
        require(self, "nu", above=0.0)
        require(self, "hidden", at_least=1)

    @abstractmethod
    def head(self, features: int, classes: int) -> nn.Module:
        """Build the network that is maximised over.

        Args:
            features: Length of a feature vector.
            classes: Number of classes.
        """

    @abstractmethod
    def risk(self, head: nn.Module, features: Tensor, logits: Tensor, domain: Tensor) -> Tensor:
        """Return the head's risk on every sample, ``[B]``.

        Args:
            head: As made by :meth:`head`.
            features: ``[B, F]``.
            logits: The classifier's, ``[B, C]``.
            domain: ``[B]``, 0 for source and 1 for target.
        """

    @abstractmethod
    def source_probability(self, head: nn.Module, features: Tensor, logits: Tensor) -> Tensor:
        """Return the probability that the head gives to the source domain, ``[B]``, to measure domain confusion."""


@dataclass(frozen=True)
class DANN(Adversary):
    """Plays a domain classifier against the features (domain-adversarial network, Ganin and Lempitsky, 2015).

    risk = CE(h(features), domain)

    Args:
        nu: Trade-off nu > 0 between class loss and the adversary's risk.
        hidden: Width of the head's hidden layer.
    """

    def head(self, features: int, classes: int) -> nn.Module:
        """Build a domain classifier with one hidden layer and two outputs."""
        return two_layers(features, self.hidden, 2)

    def risk(self, head: nn.Module, features: Tensor, logits: Tensor, domain: Tensor) -> Tensor:
        """Return the cross entropy of the domain, ``[B]``."""
        return F.cross_entropy(head(self._input(features, logits)), domain, reduction="none")

    def source_probability(self, head: nn.Module, features: Tensor, logits: Tensor) -> Tensor:
        """Return the domain classifier's probability of the source domain, ``[B]``."""
        probabilities: Tensor = head(self._input(features, logits)).softmax(1)
        return probabilities[:, 0]

    def _input(self, features: Tensor, logits: Tensor) -> Tensor:
        return features


@dataclass(frozen=True)
class CDAN(DANN):
    """Shows the domain classifier products of predictions and features (conditional adversary, Long et al., 2018).

    The gradient flows through the predictions too.

    Args:
        nu: Trade-off nu > 0 between class loss and the adversary's risk.
        hidden: Width of the head's hidden layer.
    """

    def head(self, features: int, classes: int) -> nn.Module:
        """Build a domain classifier of C F inputs, with one hidden layer and two outputs."""
        return two_layers(features * classes, self.hidden, 2)

    def _input(self, features: Tensor, logits: Tensor) -> Tensor:
        return torch.einsum("bc,bf->bcf", logits.softmax(1), features).flatten(1)


@dataclass(frozen=True)
class MDD(Adversary):
    """Trains f' to agree with the classifier f on the source only (margin disparity discrepancy, Zhang et al., 2019).

    With the pseudo-label k = argmax f(x), detached:
    source risk  = gamma * CE(f'(x), k),   target risk = -log(1 - softmax(f'(x))_k)

    Args:
        nu: Trade-off nu > 0 between class loss and the adversary's risk.
        hidden: Width of the head's hidden layer.
        gamma: Margin factor gamma > 0 of the source risk.
    """

    nu: float = 0.5
    gamma: float = 1.0

    def head(self, features: int, classes: int) -> nn.Module:
        """Build a second classifier f' with one hidden layer and C outputs."""
        return two_layers(features, self.hidden, classes)

    def risk(self, head: nn.Module, features: Tensor, logits: Tensor, domain: Tensor) -> Tensor:
        """Return a risk ``[B]`` that is low where f' agrees with f on the source and disagrees on the target."""
        other: Tensor = head(features)
        chosen = torch.arange(logits.shape[1], device=logits.device) == logits.argmax(1, keepdim=True)
        total = other.logsumexp(1)
        agree = total - torch.where(chosen, other, 0.0).sum(1)  # -log softmax(f')_k
        disagree = total - torch.where(chosen, -torch.inf, other).logsumexp(1)  # -log(1 - softmax(f')_k)
        return torch.where(domain == 0, self.gamma * agree, disagree)

    def source_probability(self, head: nn.Module, features: Tensor, logits: Tensor) -> Tensor:
        """Return the probability that f' gives to the class that f predicts, ``[B]``."""
        probabilities: Tensor = head(features).softmax(1)
        return probabilities.gather(1, logits.argmax(1, keepdim=True)).squeeze(1)


def two_layers(width: int, hidden: int, out: int) -> nn.Sequential:
    """Build a network with one hidden layer, ReLU and truncated normal weights."""
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out)).apply(init_truncated_normal)
