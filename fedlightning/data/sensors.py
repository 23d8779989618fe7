"""Recordings of phones: windows ``[n, 6, 128]``, activities ``[n]`` from 0, persons ``[n]``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

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
        raise FileNotFoundError(f"root={str(path)!r}: no such file. Point root at the .npz of the raw recordings.")
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


def read_uci_har(root: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Read the inertial signals of both parts.

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
            raise FileNotFoundError(
                f"No {folder / 'Inertial Signals'}: point root at the unpacked 'UCI HAR Dataset' folder."
            )
        signals = [np.loadtxt(folder / "Inertial Signals" / f"{n}_{part}.txt", np.float32, ndmin=2) for n in names]
        activity, person = (np.loadtxt(folder / f"{n}_{part}.txt", np.int64, ndmin=1) for n in ("y", "subject"))
        windows = torch.from_numpy(np.stack(signals, axis=1))
        parts.append((windows, torch.from_numpy(activity) - 1, torch.from_numpy(person)))
    windows, activity_, person_ = (torch.cat(columns) for columns in zip(*parts, strict=True))
    return windows, activity_, person_
