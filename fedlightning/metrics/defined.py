"""Whether a client's samples define a metric, where torchmetrics answers with a number in any case."""

from __future__ import annotations

from torchmetrics import Metric, R2Score
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision
from torchmetrics.metric import CompositionalMetric
from torchmetrics.utilities import dim_zero_cat
from torchmetrics.wrappers.abstract import WrapperMetric


def is_defined(metric: Metric) -> bool:
    """Return whether the samples that a metric has seen define it.

    A metric that has seen none is undefined. The area under a ROC curve needs samples of both classes, average
    precision one positive sample at least, the coefficient of determination two samples; without them torchmetrics
    warns and computes 0 or another number that tells nothing of the model, or ends in an error. All other metrics count
    as defined, unless they are NaN.

    Args:
        metric: Updated with all samples of a client.
    """
    if _is_untouched(metric):
        return False
    if isinstance(metric, R2Score):
        return bool(metric.total > 1)
    if not isinstance(metric, BinaryAUROC | BinaryAveragePrecision):
        return True
    if metric.thresholds is None:
        target = dim_zero_cat(metric.target)
        negative, positive = int((target == 0).sum()), int((target == 1).sum())
    else:
        negative, positive = metric.confmat[0].sum(1).tolist()
    return positive > 0 and (negative > 0 or not isinstance(metric, BinaryAUROC))


def _is_untouched(metric: Metric) -> bool:
    """Return whether a metric has gathered nothing; one that hands its samples on to others never counts itself."""
    if metric.update_count or isinstance(metric, WrapperMetric | CompositionalMetric):
        return False
    states = metric.metric_state.values()
    return not any(
        len(each) if isinstance(each, list) else bool((each.isfinite() & (each != 0)).any()) for each in states
    )
