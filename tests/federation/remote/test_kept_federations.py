"""What a node keeps of federations is told and removed, and never what it works for."""

from __future__ import annotations

import contextlib
import os

import pytest
import torch

from fedlightning.core.errors import InvalidValueError, UsageError
from fedlightning.federation.remote.generation import Generation
from fedlightning.federation.remote.kept_federations import kept_federations, remove_federations
from fedlightning.federation.remote.packet import Packet
from fedlightning.federation.remote.store import GenerationStore, Kept

EARLY, LATE = "e" * 32, "a" * 32


@pytest.fixture
def states(tmp_path):
    """The states of an earlier federation of five rounds with two clients, and of a later one."""
    folder = tmp_path / "states"
    with contextlib.closing(GenerationStore(folder)) as store:
        for name, client, index in ((EARLY, 3, 4), (EARLY, 10, 1), (LATE, 3, 0)):
            generation = Generation(index, 0, "b" * 32)
            store.keep(name, client, generation, Kept({"h": torch.zeros(1000)}, Packet("answer")))
    for age, name in ((7200, EARLY), (60, LATE)):
        for file in (folder / name).rglob("*.pt"):
            os.utime(file, (file.stat().st_mtime - age,) * 2)
    (folder / "run.yaml").write_text("the run")
    (folder / "my notes").mkdir()
    return folder


def names(folder):
    return [each.name for each in kept_federations(folder)]


def test_what_is_kept_is_told(states, tmp_path):
    early, late = kept_federations(states)
    assert (early.name, early.clients, early.rounds) == (EARLY, (3, 10), 5)
    assert (late.name, late.clients, late.rounds) == (LATE, (3,), 1)
    assert 8000 < early.num_bytes < 30000
    assert str(early).startswith(f"{EARLY}: clients 3, 10, 5 rounds, 0.0 MiB, last used 20")
    assert kept_federations(tmp_path / "absent") == []


def test_a_federation_is_removed_with_all_its_files_and_nothing_else(states):
    remove_federations(states, [EARLY])
    assert names(states) == [LATE]
    assert sorted(path.name for path in states.iterdir()) == sorted([LATE, "lock", "my notes", "run.yaml"])
    remove_federations(states, [LATE])
    assert names(states) == []


def test_the_one_that_a_node_works_for_stays(states):
    with contextlib.closing(GenerationStore(states)):
        with pytest.raises(UsageError, match=rf"federation={LATE} is the one that this node works for\. Stop the node"):
            remove_federations(states, [EARLY, LATE])
        assert names(states) == [EARLY, LATE]
        remove_federations(states, [EARLY])
        assert names(states) == [LATE]


@pytest.mark.parametrize("name", ["f" * 32, "my notes", "..", ""])
def test_what_is_no_federation_is_not_removed(states, name):
    with pytest.raises(InvalidValueError, match=r"nothing is kept of it in .*\. There is e{32}, a{32}"):
        remove_federations(states, [EARLY, name])
    assert names(states) == [EARLY, LATE]
