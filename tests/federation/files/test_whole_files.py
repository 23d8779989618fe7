"""Files are whole or not there."""

from __future__ import annotations

import os

import pytest
import torch

from fedlightning.federation.files.whole_files import sync_folder, write_whole
from tests.support.full_disk import FullDisk, _Limited


def test_an_interrupt_in_the_middle_of_a_save_stays_one(tmp_path, monkeypatch):
    write_whole({"x": 1}, tmp_path / "x.ckpt")
    disk = FullDisk(monkeypatch, 10**9)

    def interrupted(_, data):
        raise KeyboardInterrupt

    monkeypatch.setattr(_Limited, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole({"x": torch.zeros(100)}, tmp_path / "x.ckpt")
    assert disk.room
    assert [p.name for p in tmp_path.iterdir()] == ["x.ckpt"]


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="looks at open files")
def test_a_folder_is_brought_to_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    sync_folder(tmp_path)
    assert synced == [str(tmp_path)]
