"""Results that cannot be written: one sentence with the file, the reason and a remedy."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any

from fedlightning.cli.errors import is_refusal, is_users
from fedlightning.core.errors import OutputError, chain
from fedlightning.federation.files.whole_files import FULL, why_unwritten

_ONLY_WRITES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors that no reader meets."""

_WITH_FILES_OF_THEIR_OWN = (
    *("fedlightning.data", "torch.utils.data", "torch.multiprocessing", "torchvision"),
    *("multiprocessing", "concurrent"),  # they write to shared memory, and tell errors of other processes
)


@contextmanager
def writing_to(folders: Mapping[str, Any]) -> Iterator[None]:
    """Raise :class:`OutputError` where results cannot be written; leave errors of the user's code and data alone.

    Args:
        folders: The folders of the results by the option that names each; None for no such folder.

    Raises:
        OutputError: If a file or folder of the results cannot be written.
    """
    try:
        yield
    except OSError as error:
        known = {
            option: Path(folder).absolute()
            for option, folder in folders.items()
            if isinstance(folder, str | os.PathLike) and "://" not in str(folder)
        }
        target = None if is_refusal(error) or _is_elsewhere(error) else _target(error, list(known.values()))
        if target is None:
            raise
        options = [option for option, folder in known.items() if _belong_together(target, folder)]
        room = "Make room there, or give" if error.errno in FULL else "Give"
        raise OutputError(
            f"Results were not saved: {why_unwritten(error, target)} {room} another folder"
            f"{f' ({options[0]}=...)' if options else ''}."
        ) from error


def trainer_folders(trainer: Any) -> dict[str, Any]:
    """Return where a trainer's results go, by option; its loggers' folders, or its own if it has no logger."""
    folders = [logger.save_dir for logger in trainer.loggers]
    if len(folders) == 1:
        return {"--trainer.logger.init_args.save_dir": folders[0]}
    loggers = {f"--trainer.logger[{number}].init_args.save_dir": folder for number, folder in enumerate(folders)}
    return loggers or {"--trainer.default_root_dir": trainer.default_root_dir}


def _is_elsewhere(error: BaseException) -> bool:
    """Return whether code of the user's, of data sets or of other processes has part in an error."""
    frames = (frame for each in chain(error) for frame, _ in walk_tb(each.__traceback__))
    return any(is_users(frame) or _has_files_of_its_own(frame) for frame in frames)


def _has_files_of_its_own(frame: FrameType) -> bool:
    return f"{frame.f_globals.get('__name__')}.".startswith(tuple(f"{name}." for name in _WITH_FILES_OF_THEIR_OWN))


def _target(error: OSError, folders: list[Path]) -> Path | None:
    """Return the file or folder that could not be written; None if the error may be about something else."""
    names = [name for name in (error.filename, error.filename2) if isinstance(name, str | bytes | os.PathLike)]
    named = [Path(os.fsdecode(name)).absolute() for name in names]
    for name in named:
        if error.errno in _ONLY_WRITES or any(_belong_together(name, folder) for folder in folders):
            return name
    return min(folders, key=_free, default=None) if error.errno in _ONLY_WRITES else None


def _belong_together(path: Path, folder: Path) -> bool:
    """Return whether a path lies within a folder, or is a folder above that may have to be made first."""
    return path.is_relative_to(folder) or folder.is_relative_to(path)


def _free(folder: Path) -> float:
    for each in (folder, *folder.parents):
        with suppress(OSError):
            return shutil.disk_usage(each).free
    return float("inf")
