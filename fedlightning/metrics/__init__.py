"""Metrics that torchmetrics does not have."""

from typing import TYPE_CHECKING

from fedlightning.core.lazy import lazily

if TYPE_CHECKING:
    from fedlightning.metrics.domain_confusion import DomainConfusion
    from fedlightning.metrics.perplexity import TokenPerplexity
    from fedlightning.metrics.present_auroc import PresentClassesAUROC
    from fedlightning.metrics.structure import numerical_rank, share_of_nonzeros

__all__ = ["DomainConfusion", "PresentClassesAUROC", "TokenPerplexity", "numerical_rank", "share_of_nonzeros"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "domain_confusion": "DomainConfusion",
        "perplexity": "TokenPerplexity",
        "present_auroc": "PresentClassesAUROC",
        "structure": "numerical_rank share_of_nonzeros",
    },
)
