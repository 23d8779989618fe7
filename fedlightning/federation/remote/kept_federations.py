"""The federations whose states a node keeps, and the removal of those that are over."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from fedlightning.core.errors import InvalidValueError, UsageError
from fedlightning.federation.remote.generation import require_federation
from fedlightning.federation.remote.packet import PacketError
from fedlightning.federation.remote.store import GenerationStore, KeptStates, StoreError


@dataclass(frozen=True)
class KeptFederation:
    """Describes what a node keeps of one federation.

    Attributes:
        name: Id of the federation, which is the name of its folder.
        clients: Numbers of the clients that have states.
        rounds: Number of rounds that the latest state of a client has seen.
        num_bytes: Size of all files.
        used: When the node wrote there last.
    """

    name: str
    clients: tuple[int, ...]
    rounds: int
    num_bytes: int
    used: datetime

    def __str__(self) -> str:
        clients = f"clients {', '.join(map(str, self.clients))}" if self.clients else "no client"
        size = f"{self.num_bytes / 2**20:.1f} MiB"
        return f"{self.name}: {clients}, {self.rounds} rounds, {size}, last used {self.used:%Y-%m-%d %H:%M}"


def kept_federations(folder: Path) -> list[KeptFederation]:
    """Return what a node keeps, the federation used last at the end; may be called while the node works.

    Args:
        folder: Folder of the states of the node's clients.
    """
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        with suppress(PacketError, FileNotFoundError):  # of another name, or removed meanwhile
            require_federation(path.name)
            found.append(_described(path))
    return sorted(found, key=lambda each: each.used)


def remove_federations(folder: Path, names: Collection[str]) -> None:
    """Remove all that a node keeps of some federations: their states and models.

    Args:
        folder: Folder of the states of the node's clients.
        names: Ids of the federations.

    Raises:
        InvalidValueError: If there is nothing of one; nothing is removed then.
        UsageError: If one is the federation that a working node was used for last; nothing is removed then.
        OSError: If something cannot be removed.
    """
    there = [each.name for each in kept_federations(folder)]
    if unknown := [name for name in names if name not in there]:
        raise InvalidValueError(
            f"federation={unknown[0]}: nothing is kept of it in {folder}. There is {', '.join(there) or 'nothing'}."
        )
    if not names:
        return
    try:
        store = GenerationStore(folder)
    except StoreError as error:  # the node works
        if there[-1] in names:
            raise UsageError(
                f"federation={there[-1]} is the one that this node works for. Stop the node first, if its states are "
                "needed no more."
            ) from error
        _remove(folder, names)
        return
    with closing(store):
        _remove(folder, names)


def _remove(folder: Path, names: Collection[str]) -> None:
    for name in names:
        shutil.rmtree(folder / name)


def _described(path: Path) -> KeptFederation:
    files = [(file, file.stat()) for file in path.rglob("*") if file.is_file()]
    numbers = (each.name.removeprefix("client-") for each in path.glob("client-*"))
    clients = sorted(int(number) for number in numbers if number.isdecimal())
    states = KeptStates(path.parent)
    generations = [each for client in clients for each in states.generations(path.name, client)]
    used = max((stat.st_mtime for _, stat in files), default=path.stat().st_mtime)
    return KeptFederation(
        path.name,
        tuple(clients),
        max((each.round + 1 for each in generations), default=0),
        sum(stat.st_size for _, stat in files),
        datetime.fromtimestamp(used),
    )
