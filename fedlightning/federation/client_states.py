"""Storage of client states between rounds: a tensor for every field of the state, indexed by client."""

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

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.memory import give_back_what_is_free

StatesByField = dict[str, Tensor]
"""The states of S clients, each field ``[S, ...]``."""

LATE = "channel."
"""Begins the names of fields that come when they are first written; until then every client has zeros there."""


class Storage(ABC):
    """Decides where client states lie: on the device, in main memory or in files."""

    @abstractmethod
    def allocate(self, field: str, num_clients: int, template: Tensor) -> Tensor:
        """Return a tensor ``[num_clients, *template.shape]`` with undefined contents for a field of client states."""


@dataclass(frozen=True)
class OnDevice(Storage):
    """Keeps client states beside the model, which is fastest as long as they fit."""

    def allocate(self, field: str, num_clients: int, template: Tensor) -> Tensor:
        """Allocate memory on the template's device."""
        return template.new_empty((num_clients, *template.shape))


@dataclass(frozen=True)
class OnHost(Storage):
    """Keeps client states in main memory; the states of a cohort travel to the device and back."""

    def allocate(self, field: str, num_clients: int, template: Tensor) -> Tensor:
        """Allocate main memory."""
        return torch.empty((num_clients, *template.shape), dtype=template.dtype)


@dataclass(frozen=True)
class MemoryMapped(Storage):
    """Keeps client states in files, for federations whose states exceed main memory.

    The operating system keeps the parts in use in main memory.

    Args:
        folder: Folder for the files, on a disk with room for twice (clients seen) x (size of a state): while a file
            grows, its old and its new version exist side by side.
    """

    folder: str

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike) or not str(self.folder):
            raise InvalidTypeError(f"MemoryMapped(folder={self.folder!r}): expected the path of a folder.")

    def allocate(self, field: str, num_clients: int, template: Tensor) -> Tensor:
        """Create a new file for every growth; the former file disappears once nothing maps it."""
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"{field}-{num_clients}-", suffix=".states", dir=self.folder)
        os.close(handle)
        path = Path(name)  # unique, as other runs and processes may use the same folder
        shape = (num_clients, *template.shape)
        size = torch.Size(shape).numel()
        tensor = torch.from_file(str(path), shared=True, size=size, dtype=template.dtype).view(shape)
        with suppress(PermissionError):  # where mapped files cannot be removed, they stay
            path.unlink()  # elsewhere the mapping keeps the file alive, and nothing is left behind after the process
        return tensor


@dataclass(frozen=True)
class Before:
    """Holds the states of some clients at a moment.

    Attributes:
        ids: The clients.
        states: Their states, each field ``[S, ...]``.
        seen: Number of clients, of all, that had a state of their own.
    """

    ids: list[int]
    states: StatesByField
    seen: int


class ClientStates:
    """Holds the states of all clients sampled so far; all other clients have the common initial state.

    Memory grows with the number of clients seen, not with N. A stateless algorithm has no fields and costs nothing.
    """

    def __init__(
        self,
        template: Mapping[str, Tensor],
        num_clients: int,
        storage: Storage | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Start without clients seen.

        Args:
            template: The initial value of every field, for one client.
            num_clients: N.
            storage: Where the states lie; by default beside the template.
            device: Device of fields that come late, where it is not that of their first values.
        """
        self.template = dict(template)
        self.num_clients = num_clients
        self._storage = OnDevice() if storage is None else storage
        self._slots: dict[int, int] = {}
        self._fields: StatesByField = {}
        self._capacity = 0
        self._device = device

    @property
    def seen(self) -> list[int]:
        """Clients with a state of their own, in the order in which they were first stored."""
        return list(self._slots)

    def has_seen(self, ids: Sequence[int]) -> Tensor:
        """Return which of the clients ``ids`` have a state of their own, ``[S]`` bool."""
        return torch.tensor([client in self._slots for client in ids])

    def of(self, ids: Sequence[int], start: str = "") -> StatesByField:
        """Return copies of the states of the clients ``ids``, on the template's device.

        Args:
            ids: The clients.
            start: Begins the names of the fields to return; empty for all.
        """
        slots = [self._slots.get(client, -1) for client in ids]
        known = [i for i, slot in enumerate(slots) if slot >= 0]
        template = {name: value for name, value in self.template.items() if name.startswith(start)}
        result = {name: value.expand(len(ids), *value.shape).clone() for name, value in template.items()}
        if known:
            for name in template:
                stored = self._fields[name]
                index = torch.tensor([slots[i] for i in known], device=stored.device)
                fetched = stored.index_select(0, index).to(result[name].device)
                if len(known) == len(ids):
                    result[name] = fetched
                else:
                    result[name][known] = fetched
        return result

    def write(self, ids: Sequence[int], states: Mapping[str, Tensor]) -> None:
        """Replace the states of the clients ``ids``; fields that ``states`` leaves out stay as they are."""
        self._widen({name: torch.zeros_like(values[0]) for name, values in states.items() if len(values)})
        if not self.template or not ids:
            return
        known = len(self._slots)
        for client in ids:
            self._slots.setdefault(client, len(self._slots))
        self._reserve(len(self._slots))
        for name, start in self.template.items():
            self._fields[name][known : len(self._slots)] = start
        slots = [self._slots[client] for client in ids]
        for name, values in states.items():
            stored = self._fields[name]
            index = torch.tensor(slots, device=stored.device)
            stored.index_copy_(0, index, values.to(stored.device, stored.dtype))

    def before(self, ids: Sequence[int]) -> Before:
        """Return what :meth:`restore` needs to put the clients ``ids`` back to what they are now."""
        return Before(list(ids), self.of(ids), len(self._slots))

    def restore(self, before: Before) -> None:
        """Put clients back; those that were seen since then have not been seen."""
        late = {name: start for name, start in self.template.items() if name not in before.states}
        came = {name: start.expand(len(before.ids), *start.shape) for name, start in late.items()}
        self.write(before.ids, {**before.states, **came})
        for client in self.seen[before.seen :]:
            del self._slots[client]

    def all(self, name: str) -> Tensor:
        """Return one field of all N clients, ``[N, ...]``."""
        return self.of(range(self.num_clients))[name]

    def mean(self) -> StatesByField:
        """Return the mean of every field over all N clients; clients not seen count with the initial state."""
        seen = len(self._slots)
        means = {}
        for name, start in self.template.items():
            total = self._fields[name][:seen].sum(0).to(start.device) if seen else torch.zeros_like(start)
            means[name] = (total + (self.num_clients - seen) * start) / self.num_clients
        return means

    def state_dict(self) -> dict[str, Any]:
        """Return the states and the ids of the clients seen, for a checkpoint."""
        seen = len(self._slots)
        return {
            "clients": self.num_clients,
            "ids": torch.tensor(self.seen, dtype=torch.long),
            "template": dict(self.template),
            # checkpoints have called them rows from the start
            "rows": {name: stored[:seen].clone() for name, stored in self._fields.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], keep: Collection[int] | None = None) -> None:
        """Add the client states that :meth:`state_dict` returned to the states already here.

        Args:
            state: What was saved.
            keep: Clients whose states belong here; None for all.

        Raises:
            ValueError: If the number of clients, the fields or their shapes differ.
        """
        if state["clients"] != self.num_clients:
            raise InvalidValueError(
                f"The checkpoint holds a federation of {state['clients']} clients, the data have {self.num_clients}. "
                "Resume with the data it was trained on."
            )
        rows = dict(state["rows"])
        for name in [name for name in self.template if name.startswith(LATE) and name not in rows]:
            start = self.template[name]  # that process had not met such a client
            rows[name] = start.expand(len(state["ids"]), *start.shape)
            state = {**state, "template": {**state["template"], name: start}}
        self._widen(state["template"])
        shapes = {name: tuple(start.shape) for name, start in self.template.items()}
        stored = {name: tuple(start.shape) for name, start in state["template"].items()}
        if shapes != stored:
            raise InvalidValueError(
                f"The checkpoint's client states have fields {stored}, this run's have {shapes}. Resume with the "
                "model, algorithm and clients' optimizer that it was trained with, or start anew without ckpt_path."
            )
        self.template = {name: start.to(self.template[name]) for name, start in state["template"].items()}
        ids = state["ids"].tolist()
        places = [place for place, client in enumerate(ids) if keep is None or client in keep]
        whole = len(places) == len(ids)
        states = {
            name: (values if whole else values[places]).to(self.template[name].dtype) for name, values in rows.items()
        }
        self.write(ids if whole else [ids[place] for place in places], states)

    def _widen(self, template: Mapping[str, Tensor]) -> None:
        """Add late fields that are not there yet; all clients seen so far have the values of the template."""
        for name, start in template.items():
            if name.startswith(LATE) and name not in self.template:
                self.template[name] = start = start if self._device is None else start.to(self._device)
                if self._capacity:
                    self._fields[name] = self._storage.allocate(name, self._capacity, start)
                    self._fields[name][: len(self._slots)] = start

    def _reserve(self, num_clients: int) -> None:
        if num_clients <= self._capacity:
            return
        capacity = min(self.num_clients, max(num_clients, 2 * self._capacity))
        for name, start in self.template.items():
            grown = self._storage.allocate(name, capacity, start)
            if name in self._fields:
                grown[: self._capacity] = self._fields[name]
            self._fields[name] = grown
        if self._capacity:
            give_back_what_is_free()  # the former tables, in whose places no larger ones fit
        self._capacity = capacity
