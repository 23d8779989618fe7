"""Private files are private from the first byte on, and nothing takes the place of a file unasked."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import os
import stat

from fedlightning.core.errors import InvalidValueError
from fedlightning.flower.deployment.files import PRIVATE, make_private_folder, replace, write_new


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_do_not_depend_on_the_umask(umask, tmp_path):
    before = os.umask(umask)
    try:
        write_new(tmp_path / "key", b"k", PRIVATE)
        write_new(tmp_path / "crt", "c")
        make_private_folder(tmp_path / "folder")
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in ("key", "crt", "folder")] == [0o600, 0o644, 0o700]


def test_a_file_that_is_there_stays(tmp_path):
    (tmp_path / "key").write_text("old")
    with pytest.raises(InvalidValueError, match=r"key exists and is not overwritten. Move it away first"):
        write_new(tmp_path / "key", "new", PRIVATE)
    assert (tmp_path / "key").read_text() == "old"


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path):
    (tmp_path / "run").write_text("a long old text")
    replace(tmp_path / "run", "neu", PRIVATE)
    assert (tmp_path / "run").read_text() == "neu"
    assert mode(tmp_path / "run") == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_others_could_enter_is_closed(tmp_path):
    (tmp_path / "folder").mkdir(mode=0o755)
    make_private_folder(tmp_path / "folder")
    assert mode(tmp_path / "folder") == 0o700
