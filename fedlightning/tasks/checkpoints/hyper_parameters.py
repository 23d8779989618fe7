"""Hyper-parameters of a task in checkpoints, and a line about those that cannot be stored there."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.parsing import is_picklable

from fedlightning.core.serialisation import LEFT_OUT, NotPlainError, to_config


def leave_out_what_cannot_be_copied(task: LightningModule) -> tuple[str, ...]:
    """Take hyper-parameters out that Lightning would take out at the start of a run, and say what to write instead.

    Lightning takes out whatever cannot be pickled, such as an algorithm with a lambda, and advises to ignore it.

    Args:
        task: The task, whose ``hparams`` are changed.

    Returns:
        Names of what was taken out and is not the default.
    """
    taken = []
    for name, value in list(task.hparams.items()):
        try:
            to_config(value, name)
        except NotPlainError as error:
            if not is_picklable(value):
                del task.hparams[name]
                rank_zero_warn(_not_stored(name, error))
                taken += [name] * (not _is_default(type(task), name, value))
    return tuple(taken)


def plain_hyper_parameters(owner: type, stored: Mapping[str, Any], taken_out: Sequence[str] = ()) -> dict[str, Any]:
    """Return hyper-parameters in plain types that ``torch.load(weights_only=True)`` reads.

    Lightning's parser makes objects from them again. The names of those that are left out are stored, unless they are
    the default: whoever loads the checkpoint is asked for their values.

    Args:
        owner: Class of the task or the data module.
        stored: By name; those without a plain form are left out, and a warning names them.
        taken_out: Names of those that :func:`leave_out_what_cannot_be_copied` took out.
    """
    plain: dict[str, Any] = {}
    left_out = list(taken_out)
    for name, value in stored.items():
        try:
            plain[name] = to_config(value, name)
        except NotPlainError as error:
            warnings.warn(_not_stored(name, error), stacklevel=2)
            left_out += [name] * (not _is_default(owner, name, value))
    if left_out:
        plain[LEFT_OUT] = left_out
    if any(isinstance(value, Mapping) and "class_path" in value for value in plain.values()):
        plain.setdefault("_instantiator", "lightning.pytorch.cli.instantiate_module")
    return plain


def _is_default(owner: type, name: str, value: Any) -> bool:
    parameter = inspect.signature(owner).parameters.get(name)
    return parameter is not None and value is parameter.default


def _not_stored(name: str, error: NotPlainError) -> str:
    return (
        f"Hyper-parameter '{name}' is left out of checkpoints: {error} Use functools.partial of a class in place of a "
        "function, e.g. functools.partial(torch.optim.AdamW, weight_decay=0.1), or give it again to "
        f"load_from_checkpoint(path, {name}=...)."
    )
