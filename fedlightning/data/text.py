"""Text as tokens: sequences of different lengths in one batch, with masks that tell tokens from padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedlightning.core.errors import InvalidValueError

BYTES = 256
"""Number of tokens where every byte of a text is one."""

PAD = 0
"""The byte that no text contains."""


def byte_tokens(text: str) -> Tensor:
    """Return the bytes of a text in UTF-8 as tokens ``[n]``, whole numbers from 1 to 255.

    Bytes need no vocabulary that all clients would have to agree on first, and no text lies outside of it.

    Raises:
        ValueError: If the text contains the character NUL, whose token stands for padding.
    """
    if "\0" in text:
        raise InvalidValueError(
            f"byte_tokens: character {text.index(chr(0))} is NUL, whose token 0 stands for padding."
        )
    return torch.tensor(list(text.encode()), dtype=torch.long)


def text_of(tokens: Iterable[int] | Tensor) -> str:
    """Return the text of byte tokens, without padding; bytes that are no UTF-8 become replacement characters."""
    numbers = tokens.tolist() if isinstance(tokens, Tensor) else tokens
    return bytes(token for token in numbers if token != PAD).decode(errors="replace")


def padded(sequences: Sequence[Tensor], length: int | None = None, pad: int = PAD) -> dict[str, Tensor]:
    """Join token sequences of different lengths into one batch, padded at the end.

    All clients that are computed together need one length, so pad the samples of all clients alike.

    Args:
        sequences: Tokens ``[n_i]`` of one sample each, n_i >= 1.
        length: Length T of the batch; null for that of the longest sequence.
        pad: The token that fills the rest.

    Returns:
        ``input_ids [n, T]`` and ``attention_mask [n, T]``, 1 for tokens and 0 for padding.

    Raises:
        ValueError: If there are no sequences, one is empty, or one is longer than ``length``.
    """
    sizes = [len(sequence) for sequence in sequences]
    if not sizes or min(sizes) < 1:
        which = f"sequence {sizes.index(0)} is empty" if sizes else "there are no sequences"
        raise InvalidValueError(f"padded: {which}. Give sequences of one token at least.")
    longest = max(sizes)
    if length is not None and longest > length:
        raise InvalidValueError(
            f"padded(length={length}): sequence {sizes.index(longest)} has {longest} tokens. Cut longer sequences into "
            f"several, or give length={longest}."
        )
    width = longest if length is None else length
    joined = pad_sequence(list(sequences), batch_first=True, padding_value=pad)
    tokens = torch.nn.functional.pad(joined, (0, width - longest), value=pad)
    mask = torch.arange(width) < torch.tensor(sizes)[:, None]
    return {"input_ids": tokens, "attention_mask": mask.long()}
