"""The report of a metric over clients: mean, spread, worst client and percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from lightning.pytorch import LightningModule, Trainer

from fedlightning.callbacks.advice import leave_out_advice_to_synchronise
from fedlightning.callbacks.loggers import log_histogram
from fedlightning.callbacks.percentiles import PERCENTILES, percentiles
from fedlightning.federation.protocol import ClientValues


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
    log = partial(task.log, add_dataloader_idx=False)
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
    if not trainer.sanity_checking and bool(defined.isfinite().all()):
        log_histogram(trainer, f"{name}_clients", defined)
