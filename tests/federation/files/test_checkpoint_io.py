"""Writing checkpoints where it fails, and reading files that are none."""

from __future__ import annotations

import io
import re
import shutil

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from fedlightning.algorithms import SCAFFOLD, FedAvg, FedMM
from fedlightning.callbacks import LastCheckpoint
from fedlightning.cli import main
from fedlightning.federation.files.checkpoint_io import FORMAT, AtomicCheckpointIO, CheckpointError
from tests.support.full_disk import FullDisk
from tests.support.paths import CONFIGS, ROOT
from tests.support.small import Line, regression_data, trainer

EARLIER = ROOT / "tests" / "support" / "checkpoints"
QUIET = [f"--trainer.{option}=false" for option in ("logger", "enable_progress_bar", "enable_model_summary")]


@pytest.mark.parametrize("room", [0, 1, 700, 3000], ids=["at-open", "first-byte", "header", "middle"])
def test_a_full_disk_ends_a_run_with_one_error_and_the_checkpoint_before_it(room, tmp_path, monkeypatch):
    """torch itself ends with ``unexpected pos 704 vs 598``."""
    fit = trainer(tmp_path, max_steps=9, callbacks=[LastCheckpoint(str(tmp_path), every_n_seconds=0)],
                  enable_checkpointing=True)  # fmt: skip
    task = Line(FedMM(0.05))

    def fill(*_):
        if fit.global_step == 4:
            FullDisk(monkeypatch, room)

    fit.callbacks[0].on_train_batch_start = fill
    with pytest.raises(CheckpointError) as caught:
        fit.fit(task, regression_data())
    said = str(caught.value)
    monkeypatch.undo()
    assert f"The checkpoint of round 5 was not saved: {tmp_path}/last.ckpt: No space left on device (" in said
    assert "MiB are free there). The checkpoint before it, of round 4, is whole" in said
    assert f"ckpt_path='{tmp_path}/last.ckpt'" in said
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 4
    again = trainer(tmp_path, max_steps=6)
    again.fit(Line(FedMM(0.05)), regression_data(), ckpt_path=tmp_path / "last.ckpt")
    assert again.global_step == 6


def test_a_full_disk_at_the_first_save(tmp_path, monkeypatch):
    FullDisk(monkeypatch, 100)
    with pytest.raises(CheckpointError, match=r"round 3 was not saved: .*No space left.*This run has saved no other"):
        AtomicCheckpointIO().save_checkpoint({"global_step": 3, "x": torch.zeros(100)}, tmp_path / "a.ckpt")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_names_another_file_that_was_saved(tmp_path, monkeypatch):
    plugin = AtomicCheckpointIO()
    plugin.save_checkpoint({"global_step": 2}, tmp_path / "two.ckpt")
    FullDisk(monkeypatch, 0)
    with pytest.raises(CheckpointError, match=r"of round 2, is whole.*two.ckpt"):
        plugin.save_checkpoint({"global_step": 3}, tmp_path / "three.ckpt")
    assert [p.name for p in tmp_path.iterdir()] == ["two.ckpt"]


def test_a_full_disk_names_the_file_of_a_run_before(tmp_path, monkeypatch):
    AtomicCheckpointIO().save_checkpoint({"global_step": 2}, tmp_path / "last.ckpt")
    FullDisk(monkeypatch, 0)
    with pytest.raises(CheckpointError, match=r"of round 2, is whole.*last.ckpt"):
        AtomicCheckpointIO().save_checkpoint({"global_step": 3}, tmp_path / "last.ckpt")


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "runs").touch()
    with pytest.raises(CheckpointError, match=r"runs/x.ckpt: (File exists|Not a directory)\. This run"):
        AtomicCheckpointIO().save_checkpoint({"global_step": 3}, tmp_path / "runs" / "x.ckpt")


class Plain(LightningModule):
    """A module that knows nothing of federations."""

    def __init__(self):
        super().__init__()
        like = Line()
        self.body, self.head = like.body, like.head

    def training_step(self, batch, batch_idx):
        return self.head(self.body(batch[0])).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A whole checkpoint."""
    folder = tmp_path_factory.mktemp("whole")
    fit = trainer(folder, max_steps=2)
    fit.fit(Line(FedMM(0.05)), regression_data())
    fit.save_checkpoint(folder / "whole.ckpt")
    return folder / "whole.ckpt"


def changed(*place, to):
    """Write the checkpoint with another value somewhere; without the key, if that is None."""

    def write(whole, path):
        content = torch.load(whole, weights_only=True)
        inner = content
        for key in place[:-1]:
            inner = inner[key]
        if to is None:
            del inner[place[-1]]
        else:
            inner[place[-1]] = to(inner.get(place[-1])) if callable(to) else to
        torch.save(content, path)

    return write


def cut(share):
    return lambda whole, path: path.write_bytes(whole.read_bytes()[: int(share * whole.stat().st_size)])


def plain_lightning(whole, path):
    fit = trainer(path.parent, max_steps=1)
    fit.fit(Plain(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4, 6)), batch_size=2))
    fit.save_checkpoint(path)


def zipped():
    file = io.BytesIO()
    np.savez(file, x=np.zeros(3))
    return file.getvalue()


def nan(tensor):
    return torch.full_like(tensor, torch.nan)


NO_CHECKPOINT = r"x.ckpt \(\d+ bytes\) is no checkpoint, or one that is damaged or cut off. There is .*good.ckpt"
HOLDS = r"x.ckpt holds {}, not a Trainer's checkpoint. Give a file that a fit saved.* weights alone, .*load_state_dict"
DAMAGED = r"x.ckpt: '{}' {}.* The file is damaged or was changed: use an earlier checkpoint."
BAD_FILES = {
    "empty": (cut(0), NO_CHECKPOINT.replace(r"\d+", "0")),
    "cut-off": (cut(0.5), NO_CHECKPOINT),
    "cut-off-at-the-end": (cut(0.999), NO_CHECKPOINT),
    "a-byte": (lambda _, path: path.write_bytes(b"P"), NO_CHECKPOINT),
    "text": (lambda _, path: path.write_text("model:\n  class_path: x\n"), NO_CHECKPOINT),
    "numpy": (lambda _, path: path.write_bytes(zipped()), NO_CHECKPOINT),
    "folder": (lambda _, path: path.mkdir(), r"x.ckpt is a folder, expected a checkpoint file"),
    "nothing": (lambda _, path: None, r"x.ckpt: (there is )?no such"),
    "tensor": (lambda _, path: torch.save(torch.zeros(3), path), HOLDS.format("a Tensor")),
    "weights": (lambda _, path: torch.save(Line().state_dict(), path), HOLDS.format("a(n OrderedDict| dict)")),
    "network": (lambda _, path: torch.save(nn.Linear(2, 1), path), r"x.ckpt contains more than tensors .*Linear"),
    "objects": (
        changed("hyper_parameters", "algorithm", to=FedAvg(0.1)),
        r"contains more than tensors and plain values: fedlightning.*FedAvg. Nothing of it was run.*weights_only=False",
    ),
    "no-weights": (changed("state_dict", to=None), r"x.ckpt: 'state_dict' is missing"),
    "plain-lightning": (plain_lightning, r"x.ckpt was written by no federated algorithm, this run uses .*FedMM"),
    "later-format": (changed("federation", "format", to=9), r"x.ckpt was written by a later version .*update fedlight"),
    "other-algorithm": (
        changed("federation", "algorithm", to="fedlightning.algorithms.fed_avg.FedAvg"),
        r"x.ckpt was written by fedlightning.algorithms.fed_avg.FedAvg, this run uses .*FedMM.*Resume with the same",
    ),
    "no-server": (changed("federation", "server", to=None), DAMAGED.format("federation.server", "is missing")),
    "no-clients": (changed("federation", "clients", to=None), DAMAGED.format("federation.clients", "is missing")),
    "no-rows": (changed("federation", "clients", "rows", to=None), DAMAGED.format("federation.clients.rows", "is mis")),
    "no-oracle": (changed("federation", "oracle", to=None), DAMAGED.format("federation.oracle", "is missing")),
    "drawn-text": (changed("federation", "drawn", to={"a": 1}), DAMAGED.format("federation.drawn", "is no mapping")),
    "drawn-list": (changed("federation", "drawn", to=lambda _: [1]), DAMAGED.format("federation.drawn", "is no map")),
    "no-upload": (changed("federation", "upload", to=None), DAMAGED.format("federation.upload", "is missing")),
    "list": (changed("federation", to=lambda _: [1]), DAMAGED.format("federation", "is missing or a list")),
    "data as text": (changed("federation", "data", to=lambda _: "x"), DAMAGED.format("federation.data", "is a str")),
    "names as number": (
        changed("federation", "personal_parameters", to=lambda _: 3),
        DAMAGED.format("federation.personal_parameters", "is a int"),
    ),
    "numbers as names": (
        changed("federation", "buffers", "names", to=lambda _: [1]),
        DAMAGED.format("federation.buffers.names", "is no list of names"),
    ),
    "server-nan": (changed("federation", "server", "z", to=nan), DAMAGED.format("federation.server.z", "contains NaN")),
    "rows-nan": (
        changed("federation", "clients", "rows", "state.lam", to=nan),
        DAMAGED.format("federation.clients.rows.state.lam", "contains NaN"),
    ),
    "weights-nan": (changed("state_dict", "head.bias", to=nan), r"x.ckpt: the weights 'head.bias' contain NaN"),
    "fewer-rows": (
        changed("federation", "clients", "rows", "state.lam", to=lambda rows: rows[:2]),
        DAMAGED.format("federation.clients.rows.state.lam", r"has the shape \(2, 41\), expected \(4, 41\)"),
    ),
    "strange-clients": (
        changed("federation", "clients", "ids", to=lambda ids: ids + 10),
        DAMAGED.format("federation.clients.ids", "names clients beyond the 4"),
    ),
    "same-clients": (
        changed("federation", "clients", "ids", to=torch.zeros_like),
        DAMAGED.format("federation.clients.ids", "is no list of different clients"),
    ),
    "server-shape": (
        changed("federation", "server", "z", to=lambda z: z[:3]),
        r"x.ckpt: The checkpoint's server state has .*\(3,\).*Resume with the model",
    ),
    "server-field": (
        changed("federation", "server", "more", to=1.0),
        r"x.ckpt: The checkpoint's server state has .*'more'.*Resume with the model",
    ),
    "rows-field": (
        changed("federation", "clients", "template", to={}),
        DAMAGED.format("federation.clients.rows.state.lam", "is no tensor of the template"),
    ),
    "more-clients": (
        changed("federation", "clients", "clients", to=9),
        r"federation of 9 clients, the data have 4. Resume with the data",
    ),
    "weights-shape": (
        changed("state_dict", "body.0.weight", to=torch.zeros(7, 6)),
        r"x.ckpt holds another model than this Line: 'body.0.weight' has the shape \(7, 6\) there, \(5, 6\) here",
    ),
    "weights-missing": (
        changed("state_dict", "head.bias", to=None),
        r"x.ckpt holds another model than this Line: 'head.bias' is missing there. Use the network",
    ),
    "weights-only": (changed("optimizer_states", to=None), r"x.ckpt has no optimizer_states: it was saved with save"),
    "oracle": (
        changed("federation", "oracle", to={"class_path": "os.system", "init_args": {"command": "false"}}),
        r"x.ckpt: federation.oracle names the class 'os.system', which a checkpoint may not choose",
    ),
    "oracle-arguments": (
        changed("federation", "oracle", "init_args", to={"chunks": 3}),
        r"x.ckpt: federation.oracle: fedlightning.*(Vectorized|Sequential) cannot be made .*'chunks'",
    ),
}
ONLY_FIT = {"other-algorithm", "more-clients", "weights-only", "plain-lightning"}
"""Legitimate where nothing but the global model is used."""
NOT_AT_ONCE = {"server-shape", "server-field", "oracle", "oracle-arguments"}
"""Found when the states are used, which evaluation of the global model does not."""


def bad_file(name, whole, folder):
    write, said = BAD_FILES[name]
    shutil.copy(whole, folder / "good.ckpt")
    write(whole, folder / "x.ckpt")
    (folder / "good.ckpt").touch()
    return folder / "x.ckpt", said


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused_in_a_line_that_names_file_and_remedy(name, whole, tmp_path):
    path, said = bad_file(name, whole, tmp_path)
    with pytest.raises((OSError, ValueError), match=said) as caught:
        trainer(tmp_path, max_steps=4).fit(Line(FedMM(0.05)), regression_data(), ckpt_path=path)
    assert len(str(caught.value).splitlines()) == 1
    if name not in ONLY_FIT:
        with pytest.raises(OSError, match=said):
            _ = Line.load_from_checkpoint(path, algorithm=FedMM(0.05)).client_states
    if name not in ONLY_FIT | NOT_AT_ONCE:
        with pytest.raises(OSError, match=said):
            trainer(tmp_path).test(Line(FedMM(0.05)), regression_data(), ckpt_path=path, verbose=False)


@pytest.mark.parametrize(("file", "number"), [("without_format.ckpt", 0), ("format_1.ckpt", 1)])
def test_files_of_earlier_versions_are_refused_as_such(file, number, tmp_path):
    """Two rounds of SCAFFOLD on four clients, written by the versions that had these formats."""
    path = EARLIER / file
    said = (
        rf"{file} was written by an earlier version of fedlightning \(format {number}; this one reads {FORMAT}\): go on"
    )
    with pytest.raises(CheckpointError, match=said):
        trainer(tmp_path, max_steps=4).fit(Line(SCAFFOLD(0.05), dropout=0.0), regression_data(), ckpt_path=path)
    with pytest.raises(CheckpointError, match=said):
        Line.load_from_checkpoint(path)
    with pytest.raises(CheckpointError, match=said):
        trainer(tmp_path).test(Line(SCAFFOLD(0.05), dropout=0.0), regression_data(), ckpt_path=path, verbose=False)


@pytest.mark.parametrize(("file", "number"), [("without_format.ckpt", 0), ("format_1.ckpt", 1)])
def test_weights_of_earlier_versions_can_be_had(file, number):
    task = Line(dropout=0.0)
    weights = torch.load(EARLIER / file, weights_only=True)["state_dict"]
    task.load_state_dict(weights)
    assert torch.equal(task.head.weight, weights["head.weight"])


@pytest.mark.parametrize(
    ("command", "write", "said"),
    [
        ("fit", cut(0), r"fedlightning: .*x.ckpt \(0 bytes\) is no checkpoint"),
        ("validate", cut(0.5), r"fedlightning: .*x.ckpt \(\d+ bytes\) is no checkpoint"),
        ("fit", lambda _, path: path.mkdir(), r"fedlightning: .*x.ckpt is a folder"),
        ("test", lambda _, path: None, r"fedlightning: --ckpt_path=.*x.ckpt: no such file"),
        ("fit", BAD_FILES["tensor"][0], r"fedlightning: .*x.ckpt holds a Tensor"),
        ("fit", BAD_FILES["later-format"][0], r"fedlightning: .*x.ckpt was written by a later version"),
        ("validate", BAD_FILES["server-nan"][0], r"fedlightning: .*x.ckpt: 'federation.server.z' contains NaN"),
        ("fit", lambda whole, path: shutil.copy(whole, path), r"fedlightning: .*x.ckpt was written by .*FedMM, this"),
        ("test", lambda whole, path: shutil.copy(whole, path), r"fedlightning: .*x.ckpt holds another model than"),
        ("fit", BAD_FILES["objects"][0], r"fedlightning: .*x.ckpt contains more than tensors"),
    ],
)
def test_bad_files_on_the_command_line(command, write, said, whole, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedlightning"])
    write(whole, tmp_path / "x.ckpt")
    configs = [f"--config={CONFIGS}/classification/{name}.yaml" for name in ("base", "fed_avg")]
    with pytest.raises(SystemExit) as exit_:
        main([command, *configs, *QUIET, f"--ckpt_path={tmp_path}/x.ckpt"])
    message = exit_.value.code if isinstance(exit_.value.code, str) else capsys.readouterr().err
    assert re.search(said, message)
    assert len(message.strip().splitlines()) == 1


def test_atomic_checkpoints_leave_the_old_file_when_a_save_fails(tmp_path, monkeypatch):
    path = tmp_path / "x.ckpt"
    io = AtomicCheckpointIO()
    io.save_checkpoint({"round": 1}, path)

    def broken(checkpoint, file):
        file.write(b"half a checkp")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(OSError, match="disk full"):
        io.save_checkpoint({"round": 2}, path)
    monkeypatch.undo()
    assert torch.load(path, weights_only=True) == {"round": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.ckpt"]


def test_atomic_checkpoints_sweep_what_a_killed_process_left(tmp_path):
    (tmp_path / "x.ckpt.partial-123").write_bytes(b"half")
    AtomicCheckpointIO().save_checkpoint({"round": 1}, tmp_path / "x.ckpt")
    assert [p.name for p in tmp_path.iterdir()] == ["x.ckpt"]
