"""The last run is in a file that is whole or absent."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.federation.remote.store import StoreError
from fedlightning.flower.kept_run import keep_run, kept_run


def test_a_run_is_kept(tmp_path):
    assert kept_run(tmp_path) is None
    for text in ("first: ü", "second"):
        keep_run(text, tmp_path)
        assert kept_run(tmp_path) == text
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_a_run_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    keep_run("first", tmp_path)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"The run was not kept: .*run\.yaml: No space left"):
        keep_run("second", tmp_path)
    assert kept_run(tmp_path) == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(StoreError, match=r"run\.yaml cannot be read: .*Remove it"):
        kept_run(tmp_path)
