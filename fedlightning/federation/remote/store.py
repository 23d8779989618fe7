"""The states that a node keeps of its clients, in files that are whole or absent."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedlightning.core.errors import FedlightningError, InvalidValueError
from fedlightning.federation.client_states import StatesByField
from fedlightning.federation.files.whole_files import sync_folder, why_unwritten, write_whole
from fedlightning.federation.remote.generation import Generation, Standing, require_federation
from fedlightning.federation.remote.packet import Packet, PacketError

_SUFFIX = ".pt"


class StoreError(FedlightningError, RuntimeError):
    """The states of a client cannot be written, or those that are asked for are not here any more."""


@dataclass(frozen=True)
class Kept:
    """Holds what a node keeps of a client after one answer.

    Attributes:
        states: The client's state, personal block and local buffers by field, without a dimension of clients. They
            never leave the node.
        answer: What the client answered, so that a repeated request is not computed twice.
    """

    states: Mapping[str, Tensor]
    answer: Packet


class KeptStates:
    """Reads the generations of a node's clients, also while a node writes others: a file is whole or absent.

    Attributes:
        folder: The folder that they lie in.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Take a folder."""
        self.folder = Path(folder)

    def find(self, federation: str, client: int, generation: Generation) -> Kept | None:
        """Return what is kept of a generation of a client; None if nothing is.

        Raises:
            StoreError: If the file is there and cannot be read.
        """
        path = self._path(federation, client, generation)
        if not path.is_file():
            return None
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            if (content["client"], content["generation"]) != (client, str(generation)):
                raise InvalidValueError("it belongs to another client or round")
            return Kept(content["states"], Packet.from_bytes(content["answer"].numpy().tobytes()))
        except Exception as error:  # what torch raises depends on the byte at which a file is damaged
            raise StoreError(
                f"{path} cannot be read: {str(error).splitlines()[0]}. Restore it from a backup."
            ) from error

    def states(self, federation: str, standing: Standing) -> StatesByField | None:
        """Return the state that a client answers from; None for a client before its first round.

        Raises:
            StoreError: If this node does not have it any more.
        """
        if standing.base is None:
            return None
        kept = self.find(federation, standing.client, standing.base)
        if kept is None:
            there = ", ".join(f"round {each.round + 1}" for each in self.generations(federation, standing.client))
            raise StoreError(
                f"The server goes on from the state of client {standing.client} after round {standing.base.round + 1}, "
                f"phase {standing.base.phase + 1}, which is not in {self.folder}; there is {there or 'none'}. Resume "
                "the server from its latest checkpoint, or give this node the folder that it had."
            )
        return dict(kept.states)

    def generations(self, federation: str, client: int) -> list[Generation]:
        """Return the generations that are kept of a client, earliest first; files of other names are left alone."""
        found = []
        for path in self._path(federation, client, None).parent.glob(f"*{_SUFFIX}"):
            with suppress(PacketError):
                found.append(Generation.of(path.name.removesuffix(_SUFFIX)))
        return sorted(generation for generation in found if generation is not None)

    def _path(self, federation: str, client: int, generation: Generation | None) -> Path:
        require_federation(federation)
        return self.folder / federation / f"client-{client}" / f"{generation}{_SUFFIX}"


class GenerationStore(KeptStates):
    """Keeps the generations of a node's clients in a folder that belongs to one process at a time.

    A file is written under another name, brought to the disk, and renamed; then the folder is brought to the disk. Each
    answer makes a new file, so nothing that the server may come back to is ever overwritten.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Open a folder, and remove what a killed process has left unfinished there.

        Args:
            folder: Folder of this node alone, made if it is not there.

        Raises:
            StoreError: If another process keeps its states there now, or nothing can be written.
        """
        super().__init__(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock: int | None = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(f"The states of clients cannot be kept: {why_unwritten(error, self.folder)}") from error
        _lock(self._lock, self.folder)
        _keep_from_forks(self)
        for place in ("*", "*/client-*"):
            for partial in self.folder.glob(f"{place}/*{_SUFFIX}.partial-*"):
                partial.unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process open the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def keep(self, federation: str, client: int, generation: Generation, kept: Kept) -> None:
        """Write a generation of a client.

        Raises:
            StoreError: If the file cannot be written; earlier generations stay whole.
        """
        path = self._path(federation, client, generation)
        content: dict[str, Any] = {
            "federation": federation,
            "client": client,
            "generation": str(generation),
            "states": {name: value.detach().to("cpu").clone() for name, value in kept.states.items()},
            "answer": torch.frombuffer(bytearray(kept.answer.to_bytes()), dtype=torch.uint8),
        }
        try:
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                for folder in (path.parent.parent, self.folder):
                    sync_folder(folder)
            write_whole(content, path)
            sync_folder(path.parent)
        except OSError as error:
            raise StoreError(f"The state of client {client} was not kept: {why_unwritten(error, path)}") from error

    def prune(self, federation: str, standing: Standing, round_index: int) -> None:
        """Remove the generations of a client that the server cannot come back to.

        Args:
            federation: Id of the federation.
            standing: What the server goes on from, and what its checkpoints go back to.
            round_index: Round that the server carries out, whose generations all stay.
        """
        needed = {standing.base, *standing.kept}
        for generation in self.generations(federation, standing.client):
            if generation not in needed and generation.round < round_index:
                self._path(federation, standing.client, generation).unlink(missing_ok=True)


def _keep_from_forks(store: GenerationStore) -> None:
    """Have forks of this process, such as those that load data, not hold the folder after it was killed."""
    held = weakref.ref(store)

    def let_go() -> None:
        if (inherited := held()) is not None:
            inherited.close()  # this process's lock stays

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=let_go)


def _lock(handle: int, folder: Path) -> None:
    """Take a lock that the system releases when the process ends, however it ends.

    Raises:
        StoreError: If another process has it.
    """
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise StoreError(
            f"Another process keeps states of clients in {folder}. Stop it, or give each node a folder of its own."
        ) from error
