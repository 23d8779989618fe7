"""A run that ends the worker whenever it is built is given up after three deaths."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.federation.remote.store import StoreError
from fedlightning.flower.build_attempts import BuildAttempts, DeadlyRunError
from tests.support.paths import ROOT

DIES = """
import os, sys
from pathlib import Path
from fedlightning.flower.build_attempts import BuildAttempts
with BuildAttempts(Path(sys.argv[1])).building("a run"):
    os._exit(9)
"""


def die(folder, times):
    for _ in range(times):
        assert subprocess.run([sys.executable, "-c", DIES, str(folder)], cwd=ROOT).returncode == 9


def test_after_three_deaths_a_run_is_not_built_and_others_are(tmp_path):
    attempts = BuildAttempts(tmp_path)
    die(tmp_path, 2)
    with attempts.building("a run"):
        pass
    die(tmp_path, 3)
    again = attempts.building("a run")
    with pytest.raises(DeadlyRunError, match=r"ended the node's worker 3 times .* start the node again, or"), again:
        raise AssertionError("it is built")
    with attempts.building("another run"):
        pass
    die(tmp_path, 3)
    attempts.forget()
    with attempts.building("a run"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_error_is_no_death(tmp_path):
    for _ in range(4):
        with pytest.raises(ZeroDivisionError), BuildAttempts(tmp_path).building("a run"):
            raise ZeroDivisionError


@pytest.mark.parametrize("left", ["", "[]", "{}", '{"run": "x", "deaths": "y"}'])
def test_an_unfinished_note_counts_for_nothing(tmp_path, left):
    (tmp_path / "building.json").write_text(left)
    with BuildAttempts(tmp_path).building("a run"):
        pass


def test_a_folder_that_takes_no_note_is_named(tmp_path):
    note = BuildAttempts(tmp_path / "absent").building("a run")
    with pytest.raises(StoreError, match=r"A run cannot begin: .*building\.json: No such file"), note:
        pass
