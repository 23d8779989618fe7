"""A task is saved and restored together with the states of its server and clients."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from fedlightning.algorithms import SCAFFOLD, FedAvg
from fedlightning.core.serialisation import CheckpointError
from fedlightning.oracle import Sequential
from fedlightning.tasks.checkpoints.checkpoint import CHECKPOINT_KEY
from fedlightning.tasks.fit.run import FederationRun
from tests.support.small import Line, fitted, regression_data, trainer


@pytest.fixture
def saved(tmp_path):
    """A fitted task, and its checkpoint."""
    task = Line(SCAFFOLD(0.05))
    fitted(task, tmp_path=tmp_path, max_steps=2).save_checkpoint(tmp_path / "end.ckpt")
    return task, tmp_path / "end.ckpt"


def test_everything_is_there_again(saved):
    task, path = saved
    loaded = Line.load_from_checkpoint(path)
    assert repr(loaded.algorithm) == repr(task.algorithm)
    assert loaded.traffic == task.traffic
    assert torch.equal(loaded.server_state.c, task.server_state.c)
    assert torch.equal(loaded.client_states.c, task.client_states.c)
    for one, other in zip(loaded.parameters(), task.parameters(), strict=True):
        assert torch.equal(one, other)


class Notes:
    """Has hooks of a checkpoint, as Lightning's documentation writes them."""

    def on_save_checkpoint(self, checkpoint):
        checkpoint["note"] = 3

    def on_load_checkpoint(self, checkpoint):
        self.note = checkpoint["note"]


class Own(Line):
    on_save_checkpoint = Notes.on_save_checkpoint
    on_load_checkpoint = Notes.on_load_checkpoint


class Mixed(Notes, Line):
    pass


class Super(Own):
    def on_load_checkpoint(self, checkpoint):
        super().on_load_checkpoint(checkpoint)
        self.note += 1


class HasNone(Line):
    pass


class OfBoth(HasNone, Own):
    """Its hooks come behind a task without hooks."""


class Migrates(Own):
    """Hands on a copy, with what an older version has called otherwise."""

    def on_load_checkpoint(self, checkpoint):
        self.note = checkpoint["note"]
        Line.on_load_checkpoint(self, {**checkpoint, "older": None})


@pytest.mark.parametrize(("cls", "note"), [(Own, 3), (Mixed, 3), (Super, 4), (OfBoth, 3), (Migrates, 3)])
def test_states_are_kept_where_the_hooks_of_a_checkpoint_are_a_tasks_own(cls, note, tmp_path):
    first = cls(SCAFFOLD(0.05), oracle=Sequential())
    straight, then = deepcopy(first), cls(SCAFFOLD(0.05), oracle=Sequential())
    fitted(straight, max_steps=4)
    fitted(first, tmp_path=tmp_path, max_steps=2).save_checkpoint(tmp_path / "half.ckpt")
    trainer(max_steps=4).fit(then, regression_data(), ckpt_path=tmp_path / "half.ckpt")
    assert then.note == note
    assert torch.equal(then.server_state.c, straight.server_state.c)
    assert torch.equal(then.client_states.c, straight.client_states.c)
    assert cls.load_from_checkpoint(tmp_path / "half.ckpt").note == note


class Renamed(Line):
    """Finds the states of a federation under another name."""

    def on_load_checkpoint(self, checkpoint):
        super().on_load_checkpoint({**checkpoint, CHECKPOINT_KEY: checkpoint["older"]})


def test_states_are_loaded_once_from_what_a_hook_hands_on(tmp_path, monkeypatch):
    first, path = Renamed(SCAFFOLD(0.05)), tmp_path / "end.ckpt"
    fitted(first, tmp_path=tmp_path, max_steps=2).save_checkpoint(path)
    stored = torch.load(path, weights_only=True)
    stored["older"] = stored.pop(CHECKPOINT_KEY)
    torch.save(stored, path)
    loads, load = [], FederationRun.load
    monkeypatch.setattr(FederationRun, "load", lambda *given, **options: loads.append(1) or load(*given, **options))
    then = Renamed(SCAFFOLD(0.05))
    trainer(max_steps=4).fit(then, regression_data(), ckpt_path=path)
    assert len(loads) == 1
    assert then.traffic == (2 * first.traffic[0], 2 * first.traffic[1])


def test_hyper_parameters_given_win_over_those_stored(saved):
    _, path = saved
    assert Line.load_from_checkpoint(path, dropout=0.5).body[2].p == 0.5


def test_weights_alone_bring_no_states(saved):
    task, _ = saved
    other = Line(SCAFFOLD(0.05))
    other.load_state_dict(task.state_dict())
    assert other.run.holds_weights_alone
    with pytest.raises(RuntimeError, match=r"load_state_dict brought the global model alone\. Fit the task, or load"):
        other.personalize(0)


def test_a_task_without_a_trainer_takes_the_states_of_its_own_algorithm_only(saved):
    _, path = saved
    checkpoint = torch.load(path, weights_only=True)
    Line(SCAFFOLD(0.1)).on_load_checkpoint(checkpoint)
    said = r"was written by .*SCAFFOLD, this run uses .*FedAvg: their states do not fit"
    with pytest.raises(CheckpointError, match=said):
        Line(FedAvg(0.05)).on_load_checkpoint(checkpoint)


def test_a_checkpoint_without_a_federation_is_refused_to_go_on_from():
    with pytest.raises(CheckpointError, match="written by no federated algorithm"):
        Line().on_load_checkpoint({"state_dict": {}})


def test_loading_is_asked_of_the_class():
    with pytest.raises(TypeError, match="cannot be called on an instance"):
        Line().load_from_checkpoint("end.ckpt")
