"""Filters for warnings of Lightning and torch whose advice does not apply to federated training."""

from __future__ import annotations

import re
import warnings

_INAPPLICABLE = (
    "Using ModelCheckpoint with manual optimization",  # a training step is a round: checkpoints hold whole ones
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # by Lightning's own code, beside a newer torch
    "Total length of `list` across ranks is zero",  # no validation data: the list of their loaders is empty
    "You passed in a `val_dataloader` but have no `validation_step`",  # every data module has one; fit_checks says it
    "There is a performance drop because we have not yet implemented the batching rule",  # oracle.Auto measures it
    re.escape("It is recommended to use `self.log('step', ..., sync_dist=True)`"),  # the round is one for all ranks
)


def leave_out_inapplicable_advice() -> None:
    """Hide inapplicable warnings at the beginning of every fit, validation, test and prediction."""
    for message in _INAPPLICABLE:
        warnings.filterwarnings("ignore", message=message)


def leave_out_advice_to_synchronise(name: str) -> None:
    """Hide the advice to synchronise a value that every process has computed from all clients.

    Args:
        name: Name under which the value is logged.
    """
    advice = f"It is recommended to use `self.log({name!r}, ..., sync_dist=True)`"
    warnings.filterwarnings("ignore", message=re.escape(advice))
