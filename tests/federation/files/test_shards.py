"""Client states of several processes: in a folder beside the checkpoint, whole or refused."""

from __future__ import annotations

import pytest
import torch

from fedlightning.core.serialisation import CheckpointError
from fedlightning.federation.files.shards import placed_shards, read_shards, require_no_shards, write_shards
from fedlightning.federation.processes import OneProcess

TOKEN = "0123456789abcdef"


class Second(OneProcess):
    """The second of two processes, which the first has told the name of the folder."""

    count, rank = 2, 1

    def agree(self, value):
        return TOKEN


class First(Second):
    rank = 0


STATES = {"ids": torch.tensor([1, 3]), "rows": {"state.c": torch.tensor([[0.5], [1.5]])}}


@pytest.fixture
def saved(tmp_path):
    """A checkpoint's path and contents; the second process has written its clients."""
    noted = write_shards(STATES, Second(), tmp_path)
    checkpoint = {"federation": {"shards": noted}}
    target = tmp_path / "run.ckpt"
    with placed_shards(checkpoint, target):
        target.touch()
    return target, checkpoint


def test_the_first_process_writes_nothing_beside_the_checkpoint(tmp_path):
    noted = write_shards(STATES, First(), tmp_path)
    assert noted == {"folder": str(tmp_path / f".clients-{TOKEN}"), "processes": 2}
    assert list((tmp_path / f".clients-{TOKEN}").iterdir()) == []


def test_shards_are_read_back(saved):
    target, checkpoint = saved
    assert checkpoint["federation"]["shards"] == {"folder": f"run.ckpt.clients-{TOKEN}", "processes": 2}
    read_shards(checkpoint, target)
    (others,) = checkpoint["federation"]["other_clients"]
    assert others["ids"].tolist() == [1, 3]
    assert others["rows"]["state.c"].flatten().tolist() == [0.5, 1.5]


def test_a_checkpoint_without_shards_removes_those_of_the_file_it_replaces(saved):
    target, _ = saved
    with placed_shards({"federation": {}}, target):
        assert (target.parent / f"run.ckpt.clients-{TOKEN}").is_dir()
    assert [path.name for path in target.parent.iterdir()] == ["run.ckpt"]


def test_a_file_that_is_missing_or_cut_off_is_named(saved):
    target, checkpoint = saved
    part = target.parent / f"run.ckpt.clients-{TOKEN}" / "1.pt"
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="damaged or cut off: use an earlier checkpoint"):
        read_shards(checkpoint, target)
    part.unlink()
    with pytest.raises(CheckpointError, match=r"1\.pt is not there, which holds the states of some clients"):
        read_shards(checkpoint, target)


@pytest.mark.parametrize("folder", ["../run.ckpt.clients-0123456789abcdef", "elsewhere", None])
def test_a_folder_elsewhere_is_not_opened(saved, folder):
    target, checkpoint = saved
    checkpoint["federation"]["shards"]["folder"] = folder
    with pytest.raises(CheckpointError, match=r"'federation.shards' is damaged or was changed"):
        read_shards(checkpoint, target)


def test_shards_need_a_path_on_a_local_disk(saved):
    _, checkpoint = saved
    with pytest.raises(CheckpointError, match="open it by its path"):
        read_shards(checkpoint, None)
    with pytest.raises(CheckpointError, match=r"^s3://x is not on a local disk"):
        require_no_shards(checkpoint, "s3://x")
    require_no_shards({"federation": {}}, "s3://x")
