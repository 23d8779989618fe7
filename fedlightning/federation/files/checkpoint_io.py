"""Checkpoint files that are either complete or absent, and that run no code by default when they are read."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
import yaml
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.core.saving import load_hparams_from_tags_csv
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fedlightning.core.errors import InvalidTypeError, InvalidValueError, MissingFileError
from fedlightning.core.serialisation import CheckpointError
from fedlightning.core.settings import settings
from fedlightning.federation.files.shards import placed_shards, read_shards, remove_shards, require_no_shards
from fedlightning.federation.files.whole_files import why_unwritten, write_whole

__all__ = [
    "AtomicCheckpointIO",
    "CheckpointError",
    "read_checkpoint",
    "read_hyper_parameters",
    "require_federation",
]

FORMAT = 2
_UNNUMBERED = 0  # the first checkpoints did not say their format
"""Of what this version writes under ``federation``. 1 kept one table of clients and one an architecture beside it."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes each file beside its destination and then renames it, so that a crash leaves the previous file whole.

    Lightning itself writes to the system's temporary folder and moves the file. If that folder lies on another file
    system, the move is a copy, and a crash during the copy leaves half a checkpoint. The tasks of this package use this
    class in place of Lightning's own; ``Trainer(plugins=...)`` chooses another.

    Files are read with ``weights_only=True`` unless the caller says otherwise, wherever the files lie.
    """

    def __init__(self) -> None:
        super().__init__()
        self._latest: tuple[Path, Any] | None = None  # the last file written, and the round it holds

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Save a checkpoint to ``path``.

        Raises:
            CheckpointError: If the file cannot be written, in which case earlier checkpoints stay whole; or if a remote
                path cannot hold the client states of several processes.
            TypeError: If ``storage_options`` are given.
        """
        if storage_options is not None:
            raise InvalidTypeError("AtomicCheckpointIO writes local files and takes no storage_options.")
        if _is_remote(path):
            require_no_shards(checkpoint, path)
            super().save_checkpoint(checkpoint, str(path))
            return
        target = Path(path)
        step = checkpoint.get("global_step")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            for orphan in target.parent.glob(f"{target.name}.partial-*"):  # left by a killed process
                orphan.unlink(missing_ok=True)
            with placed_shards(checkpoint, target):
                write_whole(checkpoint, target)
        except OSError as error:
            which = "The checkpoint" if step is None else f"The checkpoint of round {step}"
            raise CheckpointError(
                f"{which} was not saved: {why_unwritten(error, target)} {self._before(target)}"
            ) from error
        self._latest = (target, step)

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load the checkpoint at ``path``, by default into main memory; see :func:`read_checkpoint`."""
        return read_checkpoint(path, map_location or (lambda storage, _: storage), weights_only)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint file, and the client states beside it.

        The list of superseded files comes from the checkpoint that a run resumes from, so it is not to be trusted:
        folders, remote paths and paths with ``..`` are left alone, with a warning.
        """
        local = Path(path)
        if _is_remote(path) or ".." in local.parts or local.is_dir():
            rank_zero_warn(f"{path} is left: only checkpoint files are removed, no folders or other paths.")
            return
        local.unlink(missing_ok=True)
        remove_shards(local)

    def _before(self, target: Path) -> str:
        """Say which earlier checkpoint the user still has."""
        path, step = self._latest or (target, None)
        if not path.is_file():
            path, step = target, None
        if not path.is_file():
            return "This run has saved no other before."
        step = _round_of(path) if step is None else step
        return (
            f"The checkpoint before it{'' if step is None else f', of round {step},'} is whole: when the cause is "
            f"mended, go on from there with {settings({'ckpt_path': str(path)})}."
        )


def read_checkpoint(
    path: str | os.PathLike[str] | IO[bytes], map_location: Any = None, weights_only: bool | None = None
) -> dict[str, Any]:
    """Read a checkpoint that a Trainer saved, and return its contents.

    Args:
        path: A file, a URL, or an open file.
        map_location: As for ``torch.load``.
        weights_only: Whether to refuse files that contain more than tensors and plain values, because reading these
            could run any code; None means True.

    Raises:
        CheckpointError: If the file cannot be read, is damaged, or is no Trainer's checkpoint.
        FileNotFoundError: If there is no file at ``path``.
    """
    safe = True if weights_only is None else weights_only
    name = str(path) if isinstance(path, str | os.PathLike) else "The checkpoint"
    try:
        content = _load(path, map_location, safe)
    except FileNotFoundError:
        raise MissingFileError(f"{name}: there is no such checkpoint.{_others(path)}") from None
    except IsADirectoryError:
        raise CheckpointError(f"{name} is a folder, expected a checkpoint file.{_others(path)}") from None
    except PermissionError as error:
        raise CheckpointError(f"{name} cannot be read: {error.strerror}.") from None
    except Exception as error:  # what torch raises depends on the byte at which the file breaks off
        foreign = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) and safe else None
        if foreign is not None:
            raise CheckpointError(
                f"{name} contains more than tensors and plain values: {foreign[1]}. Nothing of it was run. Only if you "
                "trust whoever wrote the file with your machine, load it with weights_only=False."
            ) from None
        raise CheckpointError(
            f"{name}{_size(path)} is no checkpoint, or one that is damaged or cut off.{_others(path)}"
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("pytorch-lightning_version"), str):
        what = f"a {type(content).__name__}" if not isinstance(content, dict) else "a dict"
        raise CheckpointError(
            f"{name} holds {what}, not a Trainer's checkpoint. Give a file that a fit saved, such as last.ckpt. "
            "From Python also weights alone, task.load_state_dict(torch.load(path, weights_only=True)) before fit."
        )
    if not isinstance(content.get("state_dict"), Mapping):
        raise CheckpointError(f"{name}: 'state_dict' is missing in it, or no dict.{_others(path)}")
    read_shards(content, path)
    return content


def read_hyper_parameters(file: Path) -> Any:
    """Read the hyper-parameters that a logger wrote to a file, as plain values.

    Raises:
        ValueError: If the file is neither YAML nor CSV.
    """
    if file.suffix.lower() == ".csv":
        return load_hparams_from_tags_csv(file)
    if file.suffix.lower() in (".yaml", ".yml"):
        return yaml.safe_load(file.read_text())
    raise InvalidValueError(f"hparams_file={str(file)!r}: expected a .yaml or .csv file.")


def require_federation(state: Any, name: str) -> None:
    """Check that the federation in a checkpoint is complete, of the right types and free of NaN.

    Args:
        state: The states of the algorithm, the server and the clients.
        name: Name of the file, for messages.

    Raises:
        CheckpointError: If something is missing, of the wrong type, NaN, or of another version.
    """
    version = state.get("format", _UNNUMBERED) if isinstance(state, Mapping) else FORMAT
    if isinstance(version, int) and version != FORMAT:
        when, remedy = (
            ("a later", "update fedlightning")
            if version > FORMAT
            else ("an earlier", "go on with the version it was written by, or start anew from its weights alone")
        )
        raise CheckpointError(
            f"{name} was written by {when} version of fedlightning (format {version}; this one reads {FORMAT}): "
            f"{remedy}."
        )
    for problem in _problems(state):
        raise CheckpointError(f"{name}: {problem} The file is damaged or was changed: use an earlier checkpoint.")


def _problems(state: Any) -> Iterator[str]:
    """Yield a sentence for every problem with the stored states; each check relies on the checks before."""
    for keys, types in _FEDERATION:
        value: Any = state
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if not isinstance(value, types) and not (keys[:1] == ("clients",) and state.get("clients", 0) is None):
            expected = " or ".join(each.__name__ for each in types) if isinstance(types, tuple) else types.__name__
            yield f"'{'.'.join(('federation', *keys))}' is missing or a {type(value).__name__}, expected {expected}."
    for key, kinds in _NOTED.items():  # a file written before these were noted has none
        if key in state and not isinstance(state[key], kinds):
            yield f"'federation.{key}' is a {type(state[key]).__name__}, expected {kinds[0].__name__}."
    if not all(isinstance(name, str) for name in state["buffers"]["names"]):
        yield "'federation.buffers.names' is no list of names."
    drawn = state.get("drawn", {})
    if not isinstance(drawn, Mapping) or not all(isinstance(each, int) for pair in drawn.items() for each in pair):
        yield "'federation.drawn' is no mapping of seeds to numbers of rounds."
    for where, tensor in _floating(state["server"], "federation.server"):
        if tensor.isnan().any():
            yield f"'{where}' contains NaN."
    for part in [state["clients"], *state.get("other_clients", [])]:
        if part is None:
            continue
        if "architectures" not in part:
            yield from _table_problems(part, "federation.clients")
            continue
        for name, table in part["architectures"].items():
            yield from _table_problems(table, f"federation.clients.architectures.{name}")


def _table_problems(table: Any, where: str) -> Iterator[str]:
    """Yield a sentence for every problem with the stored states of clients of one architecture."""
    for key, expected in _TABLE.items():
        value = table.get(key) if isinstance(table, Mapping) else None
        if not isinstance(value, expected):
            yield f"'{where}.{key}' is missing or a {type(value).__name__}, expected {expected.__name__}."
    ids, states = table["ids"], table["rows"]
    if ids.is_floating_point() or ids.dim() != 1 or len(ids.unique()) != len(ids):
        yield f"'{where}.ids' is no list of different clients."
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < table["clients"]:
        yield f"'{where}.ids' names clients beyond the {table['clients']} there are."
    for field, stored in states.items():
        template = table["template"].get(field)
        if not isinstance(stored, Tensor) or not isinstance(template, Tensor):
            yield f"'{where}.rows.{field}' is no tensor of the template."
        elif stored.shape != (len(ids), *template.shape):
            yield (
                f"'{where}.rows.{field}' has the shape {tuple(stored.shape)}, expected {(len(ids), *template.shape)}."
            )
        elif stored.is_floating_point() and stored.isnan().any():
            yield f"'{where}.rows.{field}' contains NaN."


_TABLE: dict[str, Any] = {"clients": int, "ids": Tensor, "template": Mapping, "rows": Mapping, "buffers": list}

_FEDERATION: tuple[tuple[tuple[str, ...], Any], ...] = (
    ((), Mapping),
    (("algorithm",), str),
    (("server",), Mapping),
    (("clients",), Mapping),
    (("clients", "clients"), int),
    (("buffers",), Mapping),
    (("buffers", "names"), list),
    (("buffers", "values"), Tensor),
    (("oracle",), Mapping),
    (("upload",), (int, float)),
    (("download",), (int, float)),
)


_NOTED: dict[str, tuple[Any, ...]] = {
    "data": (Mapping,),
    "personal_parameters": (list, tuple),
    "max_parameters": (list, tuple),
    "other_clients": (list, tuple),
    "model": (Tensor,),
}


def _floating(value: Any, where: str) -> Iterator[tuple[str, Tensor]]:
    """Yield all floating-point tensors within ``value``, with their dotted paths."""
    if isinstance(value, Tensor) and value.is_floating_point():
        yield where, value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _floating(item, f"{where}.{key}")


def _load(path: str | os.PathLike[str] | IO[bytes], map_location: Any, weights_only: bool) -> Any:
    if not isinstance(path, str | os.PathLike):
        return torch.load(path, map_location=map_location, weights_only=weights_only)
    if str(path).startswith(("http://", "https://")):
        return torch.hub.load_state_dict_from_url(str(path), map_location=map_location, weights_only=weights_only)
    with get_filesystem(str(path)).open(str(path), "rb") as file:
        return torch.load(file, map_location=map_location, weights_only=weights_only)


def _is_remote(path: str | os.PathLike[str]) -> bool:
    return "://" in str(path) or "::" in str(path)


def _size(path: Any) -> str:
    here = Path(path) if isinstance(path, str | os.PathLike) else None
    return f" ({here.stat().st_size} bytes)" if here is not None and here.is_file() else ""


def _others(path: Any) -> str:
    """Suggest another checkpoint in the same folder."""
    if not isinstance(path, str | os.PathLike) or _is_remote(path):
        return ""
    here = Path(path)
    folder = here if here.is_dir() else here.parent
    found = [p for p in folder.glob("*.ckpt") if p != here and p.is_file() and p.stat().st_size]
    latest = max(found, key=lambda p: p.stat().st_mtime, default=None)
    return " Use another checkpoint." if latest is None else f" There is {latest}."


def _round_of(path: Path) -> Any:
    """Return the round of a checkpoint; None if the file cannot be read."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True).get("global_step")
    except Exception:  # the round is only mentioned in a message about another error
        return None
