"""Files of client states: whole or absent, kept as long as somebody may come back to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
import torch

from fedlightning.federation.remote.generation import Generation, Standing
from fedlightning.federation.remote.packet import Packet, PacketError, RawArray
from fedlightning.federation.remote.store import GenerationStore, Kept, StoreError
from tests.support.full_disk import FullDisk
from tests.support.paths import ROOT

FEDERATION = "f" * 32


def generation(index, phase=0, key="a"):
    return Generation(index, phase, key * 32)


def kept(value=1.0):
    states = {"state.h": torch.full((3,), value, dtype=torch.bfloat16), "personal": torch.tensor(value)}
    return Kept(states, Packet("answer", {"seed": 1}, {"w": RawArray("int8", (1,), b"\x07")}))


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(GenerationStore(tmp_path / "states")) as opened:
        yield opened


def test_what_was_kept_is_found_by_its_name_alone(store):
    store.keep(FEDERATION, 3, generation(1), kept())
    found = store.find(FEDERATION, 3, generation(1))
    assert found.answer == kept().answer
    assert all(torch.equal(found.states[name], value) for name, value in kept().states.items())
    assert found.states["state.h"].dtype == torch.bfloat16
    for other in (
        (FEDERATION, 4, generation(1)),
        ("e" * 32, 3, generation(1)),
        (FEDERATION, 3, generation(1, key="b")),
    ):
        assert store.find(*other) is None


def test_a_client_that_keeps_nothing_has_a_file_all_the_same(store):
    store.keep(FEDERATION, 3, generation(1), Kept({}, Packet("answer")))
    assert store.find(FEDERATION, 3, generation(1)) == Kept({}, Packet("answer"))
    assert store.states(FEDERATION, Standing(3, generation(1))) == {}


def test_a_state_that_is_gone_is_not_replaced_by_another(store):
    assert store.states(FEDERATION, Standing(3)) is None
    store.keep(FEDERATION, 3, generation(4), kept())
    with pytest.raises(
        StoreError, match=r"state of client 3 after round 3, phase 1, which is not in .*; there is round 5\. Resume"
    ):
        store.states(FEDERATION, Standing(3, generation(2)))


def test_only_what_nobody_comes_back_to_is_removed(store):
    for index in range(6):
        store.keep(FEDERATION, 3, generation(index), kept())
    store.keep(FEDERATION, 3, generation(3, key="b"), kept())  # of a run that was given up
    store.keep(FEDERATION, 4, generation(0), kept())
    store.prune(FEDERATION, Standing(3, generation(3), (generation(1),)), round_index=5)
    assert store.generations(FEDERATION, 3) == [generation(1), generation(3), generation(5)]
    assert store.generations(FEDERATION, 4) == [generation(0)]


@pytest.mark.slow
def test_a_folder_belongs_to_one_process(store):
    code = f"from fedlightning.federation.remote.store import GenerationStore; GenerationStore({str(store.folder)!r})"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "Another process keeps states of clients in" in run.stderr
    store.close()
    store.close()
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_forks_of_a_killed_process_do_not_hold_the_folder(tmp_path):
    """Processes that load data outlive a killed one for seconds, in which the next one is started."""
    code = f"""
import os, signal, time
from fedlightning.federation.remote.store import GenerationStore, StoreError
store = GenerationStore({str(tmp_path)!r})
has_begun, begins = os.pipe()
fork = os.fork()
if not fork:
    os.write(begins, b"!")
    time.sleep(60)
os.read(has_begun, 1)
try:
    GenerationStore({str(tmp_path)!r})
except StoreError:
    print(fork, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as process:
        fork = int(process.stdout.readline())
        process.wait()
        try:
            GenerationStore(tmp_path).close()
        finally:
            os.kill(fork, signal.SIGKILL)


def test_what_a_killed_process_left_unfinished_is_removed(tmp_path):
    with contextlib.closing(GenerationStore(tmp_path)) as store:
        store.keep(FEDERATION, 3, generation(1), kept())
    folder = tmp_path / FEDERATION / "client-3"
    (folder / f"{generation(2)}.pt.partial-1").write_bytes(b"half")
    with contextlib.closing(GenerationStore(tmp_path)) as store:
        assert store.generations(FEDERATION, 3) == [generation(1)]
    assert [path.name for path in folder.iterdir()] == [f"{generation(1)}.pt"]


def test_a_file_of_another_name_is_left_alone(store):
    store.keep(FEDERATION, 3, generation(1), kept())
    copied = store.folder / FEDERATION / "client-3" / "backup of monday.pt"
    copied.write_bytes(b"anything")
    assert store.generations(FEDERATION, 3) == [generation(1)]
    store.prune(FEDERATION, Standing(3, generation(1)), 9)
    assert copied.exists()


def test_a_damaged_file_is_named(store):
    store.keep(FEDERATION, 3, generation(1), kept())
    (path,) = store.folder.glob("*/*/*.pt")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreError, match=rf"{path.name} cannot be read"):
        store.find(FEDERATION, 3, generation(1))
    torch.save({"client": 4, "generation": str(generation(1))}, path)
    with pytest.raises(StoreError, match="belongs to another client"):
        store.find(FEDERATION, 3, generation(1))


def test_a_full_disk_leaves_what_was_there(store, monkeypatch):
    store.keep(FEDERATION, 3, generation(1), kept())
    FullDisk(monkeypatch, 100)
    with pytest.raises(StoreError, match=r"state of client 3 was not kept: .*No space left"):
        store.keep(FEDERATION, 3, generation(2), kept())
    assert store.generations(FEDERATION, 3) == [generation(1)]


@pytest.mark.parametrize("name", ["..", "../x", "F" * 32, "f" * 31, ""])
def test_a_federation_is_no_path(store, name):
    with pytest.raises(PacketError, match="is no id of a federation"):
        store.find(name, 3, generation(1))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="The states of clients cannot be kept"):
        GenerationStore(tmp_path / "file" / "states")
