"""Partitions in files: written once, read by everyone who wants the same clients.

A file is JSON, ``{"format": "fedlightning partition 1", "samples": n, "digest": ..., "clients": [...]}`` with an entry
``{"train": [...], "val": [...], "test": [...]}`` a client: positions of its samples in the data set, from 0. ``val``
and ``test`` are left out where they are nobody's. The digest is that of the column by which the data set is split.

Two formats of others are read as well: JSON with one list of positions a client, or a mapping from the client's number
to its list; and the text that FedML keeps in ``net_dataidx_map.txt``. They have no digest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from fedlightning.core.errors import InvalidValueError, MissingFileError
from fedlightning.data.partition import Partition
from fedlightning.data.partitioners import Partitioner, Parts

FORMAT = "fedlightning partition 1"
_STAGES = ("train", "val", "test")


def digest_of(column: Tensor) -> str:
    """Return sixteen hexadecimal digits that tell data sets apart by the column ``[n]`` that they are split by."""
    return hashlib.sha256(column.numpy().astype("<i8").tobytes()).hexdigest()[:16]


def write_partition(path: str | Path, parts: Parts, column: Tensor) -> None:
    """Write who holds which samples to a file.

    Args:
        path: The file; its folder is made.
        parts: The clients' samples.
        column: ``[n]`` integers, the column that the data set is split by.
    """
    held = {name: part for name in _STAGES if (part := getattr(parts, name)) is not None}
    clients = [{name: part[client].tolist() for name, part in held.items()} for client in range(len(parts.train))]
    content = {"format": FORMAT, "samples": len(column), "digest": digest_of(column), "clients": clients}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(content) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class FromFile(Partitioner):
    """Gives every client the samples that a file says, see :mod:`fedlightning.data.partition_file`.

    ``fedlightning data --save`` writes such files. A file with validation or test samples of clients goes with data
    modules whose clients hold their own (:class:`~fedlightning.data.personal.PersonalData`), which set aside only what
    the file does not.

    Args:
        path: The file.
        digest: Digest that the column of the data set must have; null for the file's own. Files of others have none.
    """

    path: str
    digest: str | None = None

    def fingerprint(self) -> str:
        """Return the SHA-256 digest of the file, by which ``fedlightning compare`` notices another one.

        Raises:
            FileNotFoundError: If there is no file.
        """
        return hashlib.sha256(self._file().read_bytes()).hexdigest()

    def split(self, column: Tensor, seed: int) -> Partition:
        """Read the clients' samples; the seed has no effect.

        Raises:
            FileNotFoundError: If there is no file.
            ValueError: If the file is of another data set or another format, or sets samples of clients aside.
        """
        parts = self.parts(column, seed)
        if parts.val is not None or parts.test is not None:
            raise InvalidValueError(
                f"{self}: it sets samples of every client aside, and these data have validation and test data for all. "
                "Use data whose clients hold their own, such as PersonalMNIST for MNIST, or a file of training samples."
            )
        return parts.train

    def parts(self, column: Tensor, seed: int) -> Parts:
        """Read the clients' training, validation and test samples; the seed has no effect.

        Raises:
            FileNotFoundError: If there is no file.
            ValueError: If the file is of another data set or another format, or a sample belongs to two.
        """
        content = self._content()
        digest = self.digest if self.digest is not None else content.get("digest")
        if digest is not None and digest != digest_of(column):
            raise InvalidValueError(
                f"{self}: it is of data with digest {digest}; these have {digest_of(column)}, {len(column)} samples. "
                "Use the data set that it was made of, split by the same column."
            )
        if digest is None:
            rank_zero_info(
                f"{self} does not say of which data it is. Of these it would be: digest={digest_of(column)}."
            )
        stages = {name: [client.get(name, []) for client in content["clients"]] for name in _STAGES}
        held = {name: _partition(self, own, name) for name, own in stages.items() if name == "train" or any(own)}
        positions = torch.cat([partition.order for partition in held.values()])
        if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < len(column):
            wrong = int(positions.max()) if int(positions.max()) >= len(column) else int(positions.min())
            raise InvalidValueError(
                f"{self}: it names sample {wrong} of {len(column)}. Use the data set it was made of."
            )
        if len(positions.unique()) < len(positions):
            raise InvalidValueError(
                f"{self}: a sample is in two of train, val and test. Every sample is in one at most."
            )
        return Parts(**held)

    def _file(self) -> Path:
        path = Path(self.path)
        if not path.is_file():
            raise MissingFileError(f"{self}: no such file. fedlightning data --save {self.path} writes one.")
        return path

    def _content(self) -> dict[str, Any]:
        """Return the content of the file, with an entry a client of lists by stage."""
        text = self._file().read_text(encoding="utf-8-sig", errors="replace")
        try:
            content = json.loads(text, object_pairs_hook=self._once)
        except json.JSONDecodeError:
            whole = text.count("[") == text.count("]")  # else the end is missing, and perhaps some clients
            content = self._once((client, _places(own)) for client, own in (_OF_FEDML.findall(text) if whole else ()))
        if isinstance(content, Mapping) and "format" in content:
            if content["format"] != FORMAT:
                raise InvalidValueError(f"{self}: format {content['format']!r}. Expected {FORMAT!r}.")
            if not isinstance(content.get("clients"), list):
                raise InvalidValueError(f"{self}: it has no list of 'clients'. fedlightning data --save writes one.")
            for client, own in enumerate(content["clients"]):
                if not isinstance(own, Mapping) or not own.keys() <= {*_STAGES}:
                    raise InvalidValueError(
                        f"{self}: client {client} has {_shown(own)}. Expected lists named train, val and test."
                    )
            return dict(content)
        if isinstance(content, Mapping):
            content = _in_order(self, content)
        if not isinstance(content, list) or not content or not all(isinstance(own, list) for own in content):
            raise InvalidValueError(
                f"{self}: expected a file of fedlightning data --save, JSON with a list of positions a client, or "
                "FedML's net_dataidx_map.txt."
            )
        return {"clients": [{"train": own} for own in content]}

    def _once(self, entries: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Return the entries of a mapping, of which JSON would take the last where a name comes twice."""
        found: dict[str, Any] = {}
        for name, value in entries:
            if name in found:
                raise InvalidValueError(f"{self}: {name!r} comes twice. Expected every name and client once.")
            found[name] = value
        return found


_OF_FEDML = re.compile(r"^\s*(\d+)\s*:\s*\[([^\]]*)\]", re.MULTILINE)


def _places(text: str) -> list[int | str]:
    """Return the whole numbers of a list as text; words as they are, such as the dots of a list that was cut short."""
    return [int(place) if place.isdecimal() else place for place in text.replace(",", " ").split()]


def _shown(own: Any) -> str:
    return ", ".join(map(repr, own)) if isinstance(own, Mapping) else repr(own)


def _in_order(partitioner: FromFile, clients: Mapping[Any, Any]) -> list[Any]:
    """Return the entries of a mapping from the numbers 0, 1, ... of clients."""
    if {str(key) for key in clients} != {str(number) for number in range(len(clients))}:
        raise InvalidValueError(f"{partitioner}: expected clients 0 to {len(clients) - 1}, each once.")
    return [own for _, own in sorted(clients.items(), key=lambda entry: int(entry[0]))]


def _partition(partitioner: FromFile, clients: Sequence[Any], stage: str) -> Partition:
    if not all(isinstance(own, list) and all(type(place) is int for place in own) for own in clients):
        raise InvalidValueError(f"{partitioner}: {stage} of a client is no list of whole numbers.")
    return Partition.of((np.array(own, dtype=np.int64) for own in clients), allow_empty=stage != "train")
