"""Runs are submitted one at a time, with the server's folder, changes and checkpoint."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import json
import os

import tomli

from fedlightning.core.errors import MissingFileError, UsageError
from fedlightning.flower.deployment.runs import Run, Runs
from tests.support.deployment import Flower, federation_in, run_of


def made(tmp_path, *answers, nodes='{"a": "1"}'):
    flower = Flower(federation_in(tmp_path / "f"), answers)
    (flower.server.link / "nodes.json").write_text(nodes)
    return flower


def submitted(flower):
    return tomli.loads((flower.server.link / "run.toml").read_text())


def test_a_run_gets_folder_and_changes(tmp_path):
    flower = made(tmp_path, {"runs": [run_of("1", "finished:failed")]}, {"run-id": "17"})
    changes = ["--trainer.max_steps=2", '--model.init_args.x={"ä": "$1 \\ ""}']
    assert Runs(flower).submit(changes) == "17"
    assert flower.asked == [
        ("ls",),
        ("run", str(flower.server.app), "--run-config", str(flower.server.link / "run.toml")),
    ]
    assert submitted(flower) == {"folder": str(flower.server.path), "ckpt_path": "", "changes": json.dumps(changes)}


def test_the_app_knows_every_name_of_a_submission(tmp_path):
    flower = made(tmp_path, {"runs": []}, {"run-id": "17"})
    Runs(flower).submit()
    app = tomli.loads((flower.server.app / "pyproject.toml").read_text())
    assert set(submitted(flower)) == set(app["tool"]["flwr"]["app"]["config"])


@pytest.mark.parametrize("status", ["pending", "starting", "running"])
def test_a_second_run_is_refused(status, tmp_path):
    flower = made(tmp_path, {"runs": [run_of("8", "finished:completed"), run_of("7", status)]})
    with pytest.raises(UsageError, match=f"There is a run 7: {status}, 3 s. A node serves one run at a time"):
        Runs(flower).submit()
    assert len(flower.asked) == 1


def test_a_run_without_nodes_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no key is registered. Register all by"):
        Runs(made(tmp_path, nodes="{}")).submit()


def test_the_last_checkpoint_is_the_latest_one(tmp_path):
    flower = made(tmp_path, {"runs": []}, {"run-id": "17"})
    for age, name in enumerate(("version_1", "version_0", "version_2")):
        folder = flower.server.runs / name / "checkpoints"
        folder.mkdir(parents=True)
        (folder / "last.ckpt").touch()
        os.utime(folder / "last.ckpt", (1000 - age, 1000 - age))
    Runs(flower).submit(checkpoint="last")
    assert submitted(flower)["ckpt_path"] == str(flower.server.runs / "version_1" / "checkpoints" / "last.ckpt")


@pytest.mark.parametrize(("given", "why"), [("last", "no run got far enough"), ("x.ckpt", "x.ckpt: no such file")])
def test_a_missing_checkpoint_is_named_before_anything_is_asked(given, why, tmp_path):
    flower = made(tmp_path)
    flower.running = False
    with pytest.raises(MissingFileError, match=f"--ckpt_path={given}.*|{why}"):
        Runs(flower).submit(checkpoint=given)
    assert flower.asked == []


def test_the_run_under_way_is_stopped(tmp_path):
    flower = made(tmp_path, {"runs": [run_of("7")]}, {}, {"runs": [run_of("7", "finished:stopped")]})
    assert str(Runs(flower).stop()) == "run 7: finished:stopped, 3 s"
    assert flower.asked[1:] == [("stop", "7"), ("ls", "--run-id", "7")]


def test_nothing_is_stopped_that_is_over(tmp_path):
    flower = made(tmp_path, {"runs": [run_of("7", "finished:failed", details="why")]}, {"runs": []})
    with pytest.raises(UsageError, match="Nothing is to be stopped: the latest is run 7: finished:failed, why, 3 s"):
        Runs(flower).stop()
    with pytest.raises(UsageError, match=r"There is no run yet. Start one by"):
        Runs(flower).stop()


def test_a_run_is_followed_to_its_end(tmp_path):
    flower = made(tmp_path, {"runs": [run_of("7", "finished:completed")]})
    run = Runs(flower).follow("7")
    assert flower.followed == ["7"]
    assert run == Run("7", "finished:completed", "", 3.0)
    assert run.is_over
    assert run.is_complete


def test_progress_is_what_the_run_has_reported(tmp_path):
    runs = Runs(made(tmp_path))
    assert runs.progress() is None
    (tmp_path / "f" / "server" / "runs" / "progress.json").write_text('{"round": 3}')
    assert runs.progress() == {"round": 3}


def test_a_new_run_has_no_progress_of_the_one_before(tmp_path):
    flower = made(tmp_path, {"runs": [run_of("1", "finished:completed")]}, {"run-id": "17"})
    runs = Runs(flower)
    (flower.server.runs / "progress.json").write_text('{"round": 3}')
    runs.submit()
    assert runs.progress() is None


def test_a_refused_run_leaves_progress_alone(tmp_path):
    flower = made(tmp_path, {"runs": [run_of("7")]})
    runs = Runs(flower)
    (flower.server.runs / "progress.json").write_text('{"round": 3}')
    with pytest.raises(UsageError):
        runs.submit()
    assert runs.progress() == {"round": 3}
