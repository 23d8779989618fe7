"""The report of a metric over clients: mean, spread, worst client and percentiles, or the value over all samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torchmetrics import Metric

from fedlightning.callbacks.advice import leave_out_advice_to_synchronise
from fedlightning.callbacks.loggers import log_histogram
from fedlightning.callbacks.percentiles import PERCENTILES, percentiles
from fedlightning.core.errors import UsageError
from fedlightning.federation.protocol import ClientValues
from fedlightning.metrics.sums import value_of_sums


def log_over_samples(task: LightningModule, name: str, of_clients: ClientValues) -> None:
    """Log a metric of the one model that all clients share, over the samples of all of them.

    Args:
        task: Logs the value, and has the metric of torchmetrics if it is one.
        name: Name of the metric.
        of_clients: The values of the clients; those of a metric come with the sums that it is computed from.

    Raises:
        UsageError: If the task has no such metric.
    """
    if of_clients.metric:
        metric: Any = dict(task.named_modules()).get(of_clients.metric)
        if not isinstance(metric, Metric):
            raise UsageError(
                f"'{name}' is the metric '{of_clients.metric}' at the nodes, which {type(task).__name__} has not at "
                "the server. Make it in __init__."
            )
        value = value_of_sums(metric, {each: sums.sum(0) for each, sums in of_clients.sums.items()})
    else:
        weights = of_clients.samples.double()
        value = ((of_clients.values.double() * weights).sum() / weights.sum()).float()
    leave_out_advice_to_synchronise(name)
    task.log(name, value, prog_bar=of_clients.prog_bar, logger=_logger(of_clients), add_dataloader_idx=False)


def log_number_of_clients(trainer: Trainer, task: LightningModule, found: Mapping[str, ClientValues]) -> None:
    """Log of how many clients at nodes the metrics are, and warn if of none.

    Args:
        trainer: Runs a validation or a test.
        task: Logs the number.
        found: The values of the clients by metric.
    """
    measured = {client for values in found.values() for client in values.client_ids}
    stage = "test" if trainer.testing else "val"
    if not measured:
        rank_zero_warn(
            f"Nothing was measured at the nodes, so there are no {stage} metrics of this round. Give the nodes {stage} "
            f"data, or the server some of its own: RemoteClients({stage}=...); Trainer(limit_{stage}_batches=0) asks "
            "for none."
        )
    task.log(f"{stage}_clients", float(len(measured)), add_dataloader_idx=False)


def log_over_clients(
    trainer: Trainer,
    task: LightningModule,
    name: str,
    of_clients: ClientValues,
    which: Sequence[float] = PERCENTILES,
) -> None:
    """Log mean, standard deviation, worst client and percentiles of a metric, and a histogram over clients.

    If nobody says whether larger values are better, the smallest and the largest are logged in place of the worst. If
    the metric is undefined for some clients, ``<name>_defined`` is the number of the others.

    Args:
        trainer: Has the loggers that take the histogram.
        task: Logs the values.
        name: Name of the metric.
        of_clients: The values of the clients.
        which: The percentiles, each from 0 to 100.
    """
    defined = of_clients.defined
    log = partial(task.log, logger=_logger(of_clients), add_dataloader_idx=False)
    ranked = percentiles(defined, which)
    for suffix in ("", "_std", "_worst", "_min", "_max", "_defined", *ranked):
        leave_out_advice_to_synchronise(f"{name}{suffix}")
    if len(defined) < len(of_clients.values):
        log(f"{name}_defined", float(len(defined)))
    log(name, defined.mean(), prog_bar=of_clients.prog_bar)  # NaN if it is defined for nobody
    if not len(defined):
        return
    log(f"{name}_std", defined.std(correction=0))
    if of_clients.higher_is_better is None:
        log(f"{name}_min", defined.min())
        log(f"{name}_max", defined.max())
    else:
        log(f"{name}_worst", defined.min() if of_clients.higher_is_better else defined.max())
    for suffix, value in ranked.items():
        log(f"{name}{suffix}", value)
    if of_clients.logger and not trainer.sanity_checking and bool(defined.isfinite().all()):
        log_histogram(trainer, f"{name}_clients", defined)


def _logger(of_clients: ClientValues) -> bool | None:
    """Return Lightning's option ``logger``: False if loggers get nothing, else None, for those that there are."""
    return None if of_clients.logger else False
