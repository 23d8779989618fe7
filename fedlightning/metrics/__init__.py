"""Metrics that torchmetrics does not have."""

from fedlightning.metrics.domain_confusion import DomainConfusion
from fedlightning.metrics.present_auroc import PresentClassesAUROC
from fedlightning.metrics.structure import numerical_rank, share_of_nonzeros

__all__ = ["DomainConfusion", "PresentClassesAUROC", "numerical_rank", "share_of_nonzeros"]
