"""Flower's process of a run carries out the config in the server's folder."""

from __future__ import annotations

import json
import os
import sys

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore")]

from flwr.app import Context, RecordDict

from fedlightning.core.errors import InvalidValueError
from fedlightning.flower.server_app import app
from tests.support.deployed import hosts_in, server_folder
from tests.support.local_grid import LocalGrid, app_of


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(os.getcwd())
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_a_run_goes_through_flower_and_is_resumed(tmp_path):
    server = server_folder(tmp_path / "server")
    grid = LocalGrid({node: app_of(host.handle) for node, host in hosts_in(tmp_path).items()})
    rounds = []
    for checkpoint, changes in (("", ["--trainer.max_steps=1"]), ("last", ["--trainer.max_steps=2"])):
        file = "" if not checkpoint else str(next((server / "runs").rglob("last.ckpt")))
        config = {"folder": str(server), "ckpt_path": file, "changes": json.dumps(changes)}
        app(grid, Context(1, 0, {}, RecordDict(), config))
        newest = max((server / "runs").rglob("last.ckpt"), key=lambda path: path.stat().st_mtime)
        rounds.append(torch.load(newest, weights_only=False)["global_step"])
    assert rounds == [1, 2]
    groups = [message.metadata.group_id for message in grid.sent]
    assert groups == [*2 * ["enrol"], *2 * ["join"], *2 * ["0.0"], *2 * ["enrol"], *2 * ["join"], *2 * ["1.0"]]


def test_without_a_folder_it_says_how_runs_are_started():
    with pytest.raises(InvalidValueError, match=r"folder='': which federation\? Start runs by fedlightning federation"):
        app(LocalGrid({}), Context(1, 0, {}, RecordDict(), {"folder": ""}))


@pytest.mark.parametrize("changes", ["--trainer.max_steps=2", "{}", "[1]", '"--a=1"'])
def test_changes_that_are_no_list_of_options_are_named(changes, tmp_path):
    config = {"folder": str(server_folder(tmp_path / "server")), "changes": changes}
    with pytest.raises(InvalidValueError, match=r"changes='.*': expected a JSON list of options, such as"):
        app(LocalGrid({}), Context(1, 0, {}, RecordDict(), config))
