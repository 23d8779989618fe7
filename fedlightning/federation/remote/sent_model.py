"""The global model as a server sent it last, kept beside the states of a node's clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedlightning.federation.files.whole_files import sync_folder, why_unwritten, write_whole
from fedlightning.federation.remote.generation import Generation, Standing, text_of
from fedlightning.federation.remote.store import StoreError

_FILE = "model.pt"


@dataclass(frozen=True)
class SentModel:
    """Holds a global model, and from which states the node's clients go on beside it.

    Attributes:
        federation: Id of the federation.
        rounds: Number of rounds that the model has been trained for.
        point: The shared parameters, ``[d]``.
        buffers: The server's values of the averaged buffers, ``[b]``; None before the first round.
        bases: The state of each client that the server had accepted when it last asked the client; None for a client
            before its first round.
        changed: Names of the buffers that the objective changes, for each of these clients.
        run: Name of the run whose model it is.
    """

    federation: str
    rounds: int
    point: Tensor
    buffers: Tensor | None
    bases: Mapping[int, Generation | None] = field(default_factory=dict)
    changed: Mapping[int, Sequence[str]] = field(default_factory=dict)
    run: str = ""

    def standing(self, client: int) -> Standing:
        """Return from which state a client goes on.

        Raises:
            StoreError: If the server never asked the client.
        """
        if client not in self.bases:
            known = ", ".join(map(str, sorted(self.bases)))
            raise StoreError(
                f"No server has asked client {client} here yet; there is a model of {known or 'no client'}."
            )
        return Standing(client, self.bases[client])


class SentModels:
    """Keeps the last model of each federation, in a file that is whole or absent."""

    def __init__(self, folder: Path) -> None:
        """Take the folder of the states of a node's clients."""
        self._folder = folder
        self._last: SentModel | None = None

    def keep(self, model: SentModel) -> None:
        """Write a model, with what is known of clients that the server has not asked this time.

        Raises:
            StoreError: If it cannot be written; the one before stays whole.
        """
        before = self._last
        if before is None or before.federation != model.federation:
            before = _readable(self._folder, model.federation)
        if before is not None:
            bases, changed = {**before.bases, **model.bases}, {**before.changed, **model.changed}
            model = replace(model, bases=bases, changed=changed)
        path = self._folder / model.federation / _FILE
        content: dict[str, Any] = {
            "rounds": model.rounds,
            "point": model.point.detach().to("cpu").clone(),
            "buffers": None if model.buffers is None else model.buffers.detach().to("cpu").clone(),
            "bases": {client: text_of(base) for client, base in model.bases.items()},
            "changed": {client: list(names) for client, names in model.changed.items()},
            "run": model.run,
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(content, path)
            sync_folder(path.parent)
        except OSError as error:
            raise StoreError(f"The global model was not kept: {why_unwritten(error, path)}") from error
        self._last = model


def last_sent_model(folder: Path) -> SentModel:
    """Return the model that a server sent last, also while a node works.

    Args:
        folder: Folder of the states of a node's clients.

    Raises:
        StoreError: If there is none, or it cannot be read.
    """
    files = sorted(folder.glob(f"*/{_FILE}"), key=lambda path: path.stat().st_mtime_ns)
    model = read_sent_model(folder, files[-1].parent.name) if files else None
    if model is None:
        raise StoreError(f"There is no global model in {folder}: no server has sent one to this node yet.")
    return model


def read_sent_model(folder: Path, federation: str) -> SentModel | None:
    """Return the last model of a federation; None if there is none.

    Raises:
        StoreError: If the file cannot be read.
    """
    path = folder / federation / _FILE
    if not path.is_file():
        return None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        bases = {client: Generation.of(text) for client, text in content["bases"].items()}
        names = ("rounds", "point", "buffers", "changed", "run")
        return SentModel(federation, bases=bases, **{name: content[name] for name in names})
    except Exception as error:  # what torch raises depends on the byte at which a file is damaged
        why = str(error).splitlines()[0]
        raise StoreError(f"{path} cannot be read: {why}. The server's next request writes it anew.") from error


def _readable(folder: Path, federation: str) -> SentModel | None:
    """Return the last model of a federation; None if there is none that can be read."""
    try:
        return read_sent_model(folder, federation)
    except StoreError:
        return None
