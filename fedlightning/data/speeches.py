"""Shakespeare's speeches, one client a speaker; the text comes with the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.validation import require
from fedlightning.data.partitioners import ByGroup
from fedlightning.data.personal import PersonalData
from fedlightning.data.tensors import TensorData
from fedlightning.data.text import byte_tokens, padded

_TEXT = Path(__file__).parent / "texts" / "speeches.txt"


class Speeches(PersonalData):
    """Distributes well-known speeches of eight of Shakespeare's characters, one client each; nothing is downloaded.

    The text, 16 kB typed from memory in modern spelling, cut in places, is in the public domain. A sample is one
    verse or several that follow each other in a speech, ``input_ids [length]`` and ``attention_mask [length]``:
    bytes as tokens, padded at the end. Of every speaker's samples 20 % are for testing, and a tenth of the others
    for validation.

    Attributes:
        speakers: The clients' names, in the order of clients.
    """

    def __init__(self, length: int = 96, **options: Any) -> None:
        """Set the length of the samples.

        Args:
            length: Number of tokens of a sample, at least as many as the longest verse has. As many verses as fit make
                one sample, the rest is padding.
            options: Arguments of :class:`PersonalData` and :class:`FederatedDataModule`, without ``class_counts``.
        """
        super().__init__(ByGroup(), **options)
        self.length = length
        require(self, "length", at_least=1, whole=True)
        if self.class_counts:
            raise InvalidValueError("Speeches(class_counts=True): texts have no classes. Leave it out.")

    @property
    def speakers(self) -> tuple[str, ...]:
        """Return the clients' names, in the order of clients."""
        return tuple(_speeches())

    def samples(self) -> tuple[TensorData, Tensor]:
        """Return all samples, and the number of each sample's speaker.

        Raises:
            ValueError: If a verse has more than ``length`` bytes.
        """
        pieces, speaker = [], []
        for number, speeches in enumerate(_speeches().values()):
            for speech in speeches:
                own = list(_packed(speech, self.length))
                pieces += own
                speaker += [number] * len(own)
        return TensorData(padded([byte_tokens(piece) for piece in pieces], self.length)), torch.tensor(speaker)


def _speeches() -> dict[str, list[list[str]]]:
    """Return the verses of every speech, with their line ends, by speaker."""
    found = {}
    for part in _TEXT.read_text(encoding="utf-8").split("# ")[1:]:
        speaker, _, text = part.partition("\n")
        found[speaker] = [[f"{verse}\n" for verse in speech.splitlines()] for speech in text.strip().split("\n\n")]
    return found


def _packed(verses: list[str], length: int) -> Iterator[str]:
    """Yield verses that follow each other, as many at a time as fit into ``length`` characters."""
    piece = ""
    for verse in verses:
        if piece and len(piece) + len(verse) > length:
            yield piece
            piece = ""
        piece += verse
    yield piece
