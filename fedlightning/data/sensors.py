"""Recordings of phones: windows ``[n, 6, 128]``, activities ``[n]`` from 0, persons ``[n]``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError, MissingFileError

WINDOW = 128
STRIDE = 64


def read_hapt(path: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Cut the labelled stretches of the raw recordings into half-overlapping windows.

    Args:
        path: The ``.npz``; see :class:`~fedlightning.data.HAPT`.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    if not path.is_file():
        raise MissingFileError(f"root={str(path)!r}: no such file. Point root at the .npz of the raw recordings.")
    with np.load(path) as z:
        acc = z["acc"] * np.float32(z["acc_step_g"])
        gyro = z["gyro"] * np.float32(z["gyro_step_rad_s"])
        begins = dict(zip(z["exp_user"][:, 0].tolist(), z["offsets"][:-1].tolist(), strict=True))
        stretches = z["labels"].tolist()
    readings = torch.from_numpy(np.concatenate([acc, gyro], axis=1).astype(np.float32))
    starts, activity, person = [], [], []
    for recording, who, what, first, last in stretches:
        begin = begins[recording] + first - 1
        for start in range(begin, begin + last - first + 2 - WINDOW, STRIDE):
            starts.append(start)
            activity.append(what - 1)
            person.append(who)
    index = torch.tensor(starts)[:, None] + torch.arange(WINDOW)
    return readings[index].mT.contiguous(), torch.tensor(activity), torch.tensor(person)


def halves_shared(windows: Tensor) -> Tensor:
    """Return whether each window's second half is the first half of the next, ``[n - 1]``."""
    return (windows[:-1, :, STRIDE:] == windows[1:, :, :-STRIDE]).flatten(1).all(1)


def read_uci_har(root: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Read the inertial signals of the official training and test parts.

    Args:
        root: Folder with ``train/`` and ``test/``, each with ``Inertial Signals/``.

    Raises:
        FileNotFoundError: If a file is missing.
    """
    names = [f"{sensor}_{axis}" for sensor in ("total_acc", "body_gyro") for axis in "xyz"]
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for part in ("train", "test"):
        folder = root / part
        if not (folder / "Inertial Signals").is_dir():
            raise MissingFileError(
                f"No {folder / 'Inertial Signals'}: point root at the unpacked 'UCI HAR Dataset' folder."
            )
        signals = [np.loadtxt(folder / "Inertial Signals" / f"{n}_{part}.txt", np.float32, ndmin=2) for n in names]
        activity, person = (np.loadtxt(folder / f"{n}_{part}.txt", np.int64, ndmin=1) for n in ("y", "subject"))
        windows = torch.from_numpy(np.stack(signals, axis=1))
        parts.append((windows, torch.from_numpy(activity) - 1, torch.from_numpy(person)))
    windows, activity_, person_ = (torch.cat(columns) for columns in zip(*parts, strict=True))
    return windows, activity_, person_


def read_ku_har(root: Path, activities: Sequence[str] | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Cut the trimmed recordings into windows without overlap, and keep every second reading (50 a second).

    Args:
        root: Folder with a folder an activity, ``0.Stand/`` to ``17.Table-tennis/``, and in them a file a recording,
            ``<person>_<...>.csv``: time, three axes of acceleration, time, three axes of rotation, no header.
        activities: Names of the activities to read, which are numbered in the order of their folders; None for all.

    Raises:
        FileNotFoundError: If there are no such folders.
        ValueError: If there is no such activity, or no recording is as long as a window.
    """
    windows, activity, person = [], [], []
    for number, folder in enumerate(ku_har_folders(root, activities)):
        for file in sorted(folder.glob("*.csv")):
            readings = np.loadtxt(file, np.float32, delimiter=",", ndmin=2)[::2, [1, 2, 3, 5, 6, 7]]
            count = len(readings) // WINDOW
            windows.append(torch.from_numpy(readings[: count * WINDOW]).view(count, WINDOW, 6).mT)
            activity += [number] * count
            person += [int(file.name.partition("_")[0])] * count
    if not activity:
        raise InvalidValueError(f"No .csv in the activities' folders of {root} holds {2 * WINDOW - 1} readings.")
    return torch.cat(windows).contiguous(), torch.tensor(activity), torch.tensor(person)


def ku_har_folders(root: Path, activities: Sequence[str] | None = None) -> list[Path]:
    """Return the folders of the activities, by number.

    Args:
        root: As of :func:`read_ku_har`.
        activities: Names of the activities; None for all.

    Raises:
        FileNotFoundError: If there are no such folders.
        ValueError: If there is no such activity.
    """
    named = ((folder.name.partition("."), folder) for folder in root.glob("*.*") if folder.is_dir())
    known = sorted((int(number), name, folder) for (number, _, name), folder in named if number.isdigit())
    if not known:
        raise MissingFileError(
            f"No folders such as '0.Stand' in {root}: point root at the unpacked '2.Trimmed_interpolated_data'."
        )
    names = [name for _, name, _ in known]
    if unknown := [name for name in activities or () if name not in names]:
        raise InvalidValueError(f"activities: there is no '{unknown[0]}' in {root}. There are: {', '.join(names)}.")
    return [folder for _, name, folder in known if activities is None or name in activities]
