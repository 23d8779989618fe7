"""Digests of clients' data, by which a server notices that a client came back with other data."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from torch import Tensor

from fedlightning.federation.files.whole_files import sync_folder
from fedlightning.federation.remote.tensors import to_raw

_FILE = "data.key"
_BYTES = 32


class DataDigest:
    """Digests tensors with a key that never leaves the node.

    Equal data at the node give equal digests. Nobody else can try out which data would give a digest.
    """

    def __init__(self, folder: Path) -> None:
        """Read the node's key, and make one where there is none.

        Args:
            folder: Folder of the states of the node's clients.

        Raises:
            OSError: If the key can be neither read nor written.
        """
        file = folder / _FILE
        try:
            self._key = file.read_bytes()
        except FileNotFoundError:
            self._key = secrets.token_bytes(_BYTES)
            _write(self._key, file)

    def of(self, tensors: Iterable[Tensor]) -> str:
        """Return the digest of tensors, bit for bit, in hexadecimal."""
        found = blake2b(key=self._key, digest_size=16)
        for tensor in tensors:
            raw = to_raw(tensor)
            found.update(f"{raw.dtype} {raw.shape} ".encode())
            found.update(raw.data)
        return found.hexdigest()


def _write(key: bytes, target: Path) -> None:
    """Write a key that its owner alone can read, completely or not at all."""
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)
    sync_folder(target.parent)
