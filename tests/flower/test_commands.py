"""Flower finds commands of this package in place of its own."""

from __future__ import annotations

import stat
import subprocess

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType

from fedlightning.flower.commands import write_commands


def test_every_command_that_flower_starts_for_work_is_there(tmp_path):
    write_commands(tmp_path / "c", tmp_path / "s")
    assert {path.name for path in (tmp_path / "c").iterdir()} == set(TASK_TYPE_TO_COMMAND.values())
    for path in (tmp_path / "c").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700


def test_agents_models_and_servers_do_not_run_at_a_node(tmp_path):
    write_commands(tmp_path / "c", tmp_path / "s")
    for kind, name in TASK_TYPE_TO_COMMAND.items():
        if kind is not TaskType.CLIENT_APP:
            run = subprocess.run([tmp_path / "c" / name, "--token", "x"], capture_output=True, text=True)
            assert run.returncode == 1
            assert run.stderr == f"This node runs fedlightning's own app alone; the command {name} is refused.\n"
