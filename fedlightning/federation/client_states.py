"""What clients keep between rounds: one row a client for every field of a client state."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Rows = dict[str, Tensor]
"""Fields of some clients' states, each ``[S, ...]``."""


class Storage(ABC):
    """Where the rows of clients lie."""

    @abstractmethod
    def allocate(self, field: str, rows: int, template: Tensor) -> Tensor:
        """Room for ``rows`` rows ``[rows, *template.shape]``; contents undefined."""


@dataclass(frozen=True)
class OnDevice(Storage):
    """Beside the model: fastest, while they fit."""

    def allocate(self, field: str, rows: int, template: Tensor) -> Tensor:
        """Memory of the template's device."""
        return template.new_empty((rows, *template.shape))


@dataclass(frozen=True)
class OnHost(Storage):
    """In main memory; a cohort's rows travel to the device and back."""

    def allocate(self, field: str, rows: int, template: Tensor) -> Tensor:
        """Main memory."""
        return torch.empty((rows, *template.shape), dtype=template.dtype)


@dataclass(frozen=True)
class MemoryMapped(Storage):
    """In files, for federations whose state exceeds main memory; the operating system keeps what is in use.

    Args:
        folder: Folder for the files, on a disk with room for (clients seen) x (size of a state).
    """

    folder: str

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike) or not str(self.folder):
            raise TypeError(f"MemoryMapped(folder={self.folder!r}): expected the path of a folder.")

    def allocate(self, field: str, rows: int, template: Tensor) -> Tensor:
        """A file of its own for every growth; the former one is removed when nothing maps it any more."""
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"{field}-{rows}-", suffix=".rows", dir=self.folder)
        os.close(handle)
        path = Path(name)  # of its own, also beside other runs and processes in the same folder
        shape = (rows, *template.shape)
        size = torch.Size(shape).numel()
        tensor = torch.from_file(str(path), shared=True, size=size, dtype=template.dtype).view(shape)
        with suppress(PermissionError):  # where mapped files cannot be removed, they stay
            path.unlink()  # elsewhere the mapping keeps the file alive, and nothing is left behind after the process
        return tensor


class ClientStates:
    """Rows of all clients that have been sampled so far; the others stand at the common initial row.

    Memory grows with the clients seen, not with N; a stateless algorithm has no fields and costs nothing.
    """

    def __init__(self, template: Mapping[str, Tensor], num_clients: int, storage: Storage | None = None) -> None:
        """Begin with no client seen.

        Args:
            template: The initial row of every field, as for one client.
            num_clients: N.
            storage: Where rows lie; by default beside the template.
        """
        self.template = dict(template)
        self.clients = num_clients
        self._storage = OnDevice() if storage is None else storage
        self._slots: dict[int, int] = {}
        self._rows: Rows = {}
        self._capacity = 0

    @property
    def seen(self) -> list[int]:
        """Clients with a row of their own, in the order they came."""
        return list(self._slots)

    def has_seen(self, ids: Sequence[int]) -> Tensor:
        """Which of ``ids`` have a row of their own, ``[S]`` bool."""
        return torch.tensor([client in self._slots for client in ids])

    def rows(self, ids: Sequence[int]) -> Rows:
        """Copies of the rows of ``ids``, on the template's device."""
        slots = [self._slots.get(client, -1) for client in ids]
        known = [i for i, slot in enumerate(slots) if slot >= 0]
        result = {name: row.expand(len(ids), *row.shape).clone() for name, row in self.template.items()}
        if known:
            for name, stored in self._rows.items():
                index = torch.tensor([slots[i] for i in known], device=stored.device)
                fetched = stored.index_select(0, index).to(result[name].device)
                if len(known) == len(ids):
                    result[name] = fetched
                else:
                    result[name][known] = fetched
        return result

    def write(self, ids: Sequence[int], rows: Mapping[str, Tensor]) -> None:
        """Replace the rows of ``ids``."""
        if not self.template or not ids:
            return
        known = len(self._slots)
        for client in ids:
            self._slots.setdefault(client, len(self._slots))
        self._reserve(len(self._slots))
        for name, row in self.template.items():
            self._rows[name][known : len(self._slots)] = row
        slots = [self._slots[client] for client in ids]
        for name, values in rows.items():
            stored = self._rows[name]
            index = torch.tensor(slots, device=stored.device)
            stored.index_copy_(0, index, values.to(stored.device, stored.dtype))

    def all(self, name: str) -> Tensor:
        """One field of all N clients, ``[N, ...]``."""
        return self.rows(range(self.clients))[name]

    def mean(self) -> Rows:
        """Every field averaged over all N clients; of those not seen, the initial row counts."""
        seen = len(self._slots)
        means = {}
        for name, row in self.template.items():
            total = self._rows[name][:seen].sum(0).to(row.device) if seen else torch.zeros_like(row)
            means[name] = (total + (self.clients - seen) * row) / self.clients
        return means

    def state_dict(self) -> dict[str, Any]:
        """The rows of the clients seen, and who they are."""
        seen = len(self._slots)
        return {
            "clients": self.clients,
            "ids": torch.tensor(self.seen, dtype=torch.long),
            "template": dict(self.template),
            "rows": {name: stored[:seen].clone() for name, stored in self._rows.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], keep: Collection[int] | None = None) -> None:
        """Take over rows saved by :meth:`state_dict`, beside those that are here; fields and shapes must be the same.

        Args:
            state: What was saved.
            keep: Clients whose rows belong here; None for all.

        Raises:
            ValueError: If the number of clients, the fields or their shapes differ.
        """
        if state["clients"] != self.clients:
            raise ValueError(
                f"The checkpoint holds a federation of {state['clients']} clients, the data have {self.clients}. "
                "Resume with the data it was trained on."
            )
        shapes = {name: tuple(row.shape) for name, row in self.template.items()}
        stored = {name: tuple(row.shape) for name, row in state["template"].items()}
        if shapes != stored:
            raise ValueError(f"The checkpoint's client states have fields {stored}, this run's have {shapes}.")
        self.template = {name: row.to(self.template[name]) for name, row in state["template"].items()}
        ids = state["ids"].tolist()
        places = [place for place, client in enumerate(ids) if keep is None or client in keep]
        whole = len(places) == len(ids)
        rows = {
            name: (row if whole else row[places]).to(self.template[name].dtype) for name, row in state["rows"].items()
        }
        self.write(ids if whole else [ids[place] for place in places], rows)

    def _reserve(self, rows: int) -> None:
        if rows <= self._capacity:
            return
        capacity = min(self.clients, max(rows, 2 * self._capacity))
        for name, row in self.template.items():
            grown = self._storage.allocate(name, capacity, row)
            if name in self._rows:
                grown[: self._capacity] = self._rows[name]
            self._rows[name] = grown
        self._capacity = capacity
