"""Hyper-parameters of a task in checkpoints, and a line about those that cannot be stored there."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.parsing import is_picklable

from fedlightning.core.serialisation import LEFT_OUT, NotPlainError, to_config


def leave_out_what_cannot_be_copied(task: LightningModule) -> None:
    """Take hyper-parameters out that Lightning would take out at the start of a run, and say what to write instead.

    Lightning takes out whatever cannot be pickled, such as an algorithm with a lambda, and advises to ignore it.

    Args:
        task: The task, whose ``hparams`` are changed.
    """
    for name, value in list(task.hparams.items()):
        try:
            to_config(value, name)
        except NotPlainError as error:
            if not is_picklable(value):
                del task.hparams[name]
                rank_zero_warn(_not_stored(name, error))


def plain_hyper_parameters(owner: type, stored: Mapping[str, Any], initial: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyper-parameters in plain types that ``torch.load(weights_only=True)`` reads.

    Lightning's parser makes objects from them again.

    Args:
        owner: Class of the task or the data module.
        stored: By name; those without a plain form are left out, and a warning names them. The names are stored, so
            that whoever loads the checkpoint is asked for the values, and others than the defaults do not become these.
        initial: The same as they were saved, with those that :func:`leave_out_what_cannot_be_copied` took out.
    """
    plain: dict[str, Any] = {}
    left_out = [name for name, value in initial.items() if name not in stored and not _is_plain(value)]
    for name, value in stored.items():
        try:
            plain[name] = to_config(value, name)
        except NotPlainError as error:
            warnings.warn(_not_stored(name, error), stacklevel=2)
            left_out.append(name)
    parameters, values = inspect.signature(owner).parameters, {**initial, **stored}
    defaults = [name for name in left_out if name in parameters and values[name] is parameters[name].default]
    left_out = [name for name in left_out if name not in defaults]
    if left_out:
        plain[LEFT_OUT] = left_out
    if any(isinstance(value, Mapping) and "class_path" in value for value in plain.values()):
        plain.setdefault("_instantiator", "lightning.pytorch.cli.instantiate_module")
    return plain


def _is_plain(value: Any) -> bool:
    try:
        to_config(value)
    except NotPlainError:
        return False
    return True


def _not_stored(name: str, error: NotPlainError) -> str:
    return (
        f"Hyper-parameter '{name}' is left out of checkpoints: {error} Use functools.partial of a class in place of a "
        "function, e.g. functools.partial(torch.optim.AdamW, weight_decay=0.1), or give it again to "
        f"load_from_checkpoint(path, {name}=...)."
    )
