"""A folder goes with its process, and at the next start if the process was killed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.flower.short_folder import short_folder
from tests.support.paths import ROOT

HOLDS = """
import time
from fedlightning.flower.short_folder import short_folder
with short_folder() as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _base(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_folder_is_its_owners_alone_and_goes_with_the_block(tmp_path):
    with short_folder() as folder:
        assert folder.parent == tmp_path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "worker").touch()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError), short_folder():
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_has_left_is_removed_at_the_next_start(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOLDS]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        left = tmp_path / process.stdout.readline().strip()
        with short_folder():
            assert left.is_dir()  # its process lives
        process.kill()
        process.wait()
    assert left.is_dir()
    with short_folder() as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_folders_of_others_stay(tmp_path):
    (tmp_path / "fedlightning-notes").mkdir()
    (tmp_path / "fedlightning-file").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "lock").touch()
    (tmp_path / "fedlightning-link").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.iterdir())
    with short_folder():
        pass
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "elsewhere" / "lock").exists()
