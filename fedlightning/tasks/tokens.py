"""The tokens a language model is to predict, and a check that it knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.data.module import FederatedDataModule
from fedlightning.data.tensors import as_tensor_data
from fedlightning.tasks.base import FederatedLightningModule

IGNORED = -100
"""The target of a token that is not predicted, as in transformers."""


def targets_of(batch: Mapping[str, Tensor]) -> Tensor:
    """Return the token that follows each token but the last, ``[B, T - 1]``.

    A token that is padding, follows padding, or is left out by its label has the target :data:`IGNORED`. The function
    runs under ``torch.func.vmap``.

    Args:
        batch: ``input_ids [B, T]`` and, if there are, ``attention_mask [B, T]`` and ``labels [B, T]``.

    Raises:
        TypeError: If the batch is no such dict.
    """
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        shown = f"a dict with {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else type(batch).__name__
        raise InvalidTypeError(
            f"Language models take batches that are dicts with 'input_ids' and 'attention_mask', this one is {shown}. "
            "fedlightning.data.padded(sequences) makes such samples; TensorData(samples) is a data set of them."
        )
    labels = batch.get("labels", batch["input_ids"])
    mask = batch.get("attention_mask")
    if mask is None:
        return labels[:, 1:]
    return labels[:, 1:].masked_fill((mask[:, 1:] == 0) | (mask[:, :-1] == 0), IGNORED)


def require_tokens(task: FederatedLightningModule, vocab_size: int | None) -> None:
    """Make sure that clients' training tokens are in the network's vocabulary.

    On a GPU another token ends the process with an assertion that names neither token nor model. Only tokens that are
    held as a tensor are checked.

    Args:
        task: Attached to a trainer.
        vocab_size: Number of tokens the network knows; None if unknown.

    Raises:
        ValueError: If a token is outside.
    """
    data: Any = task.trainer.datamodule  # type: ignore[attr-defined]
    held = as_tensor_data(data.federation.train) if isinstance(data, FederatedDataModule) else None
    tokens = held.tensors.get("input_ids") if held is not None and isinstance(held.tensors, Mapping) else None
    if tokens is None or vocab_size is None:
        return
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab_size:
        raise InvalidValueError(
            f"{type(task).__name__}: the training data have tokens {low} to {high}, the network knows 0 to "
            f"{vocab_size - 1}. Give it a configuration with vocab_size={high + 1}, or other tokens."
        )
