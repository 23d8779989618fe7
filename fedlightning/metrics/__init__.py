"""Metrics beyond those of torchmetrics."""

from fedlightning.metrics.domain_confusion import DomainConfusion

__all__ = ["DomainConfusion"]
