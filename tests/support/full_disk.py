"""A disk that is full."""

from __future__ import annotations

import errno
from pathlib import Path


class FullDisk:
    """A disk that takes so many bytes in all."""

    def __init__(self, monkeypatch, room):
        self.room = room
        self._open = Path.open
        monkeypatch.setattr(Path, "open", lambda path, mode="r", *a, **k: self.open(path, mode, *a, **k))

    def open(self, path, mode, *args, **options):
        file = self._open(path, mode, *args, **options)
        if "w" not in mode:
            return file
        if self.room <= 0:
            file.close()
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return _Limited(file, self)


class _Limited:
    def __init__(self, file, disk):
        self._file, self._disk = file, disk

    def write(self, data):
        self._disk.room -= len(data)
        if self._disk.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write(data)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._file.close()
