"""One row a client and round: every value as it was measured, across resumes.

That the first of several processes writes the values of all is shown in ``tests/federation/test_processes.py``.
"""

from __future__ import annotations

import logging

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAlt, FedMM
from fedlightning.callbacks import ClientValuesFile
from fedlightning.callbacks.client_values_file import KEYS
from fedlightning.core.errors import OutputError
from fedlightning.oracle import Vectorized
from fedlightning.participation import Uniform
from tests.support.evaluated import Own, held_out_data
from tests.support.full_disk import FullDisk
from tests.support.small import Line, clients, regression_data, trainer
from tests.support.values_files import numbers, rows


def run(path, task=None, data=None, rounds=6, ckpt_path=None, callbacks=(), **options):
    torch.manual_seed(0)
    options = {"max_steps": rounds, "val_check_interval": 2, "check_val_every_n_epoch": None, **options}
    fit = trainer(path.parent, callbacks=[ClientValuesFile(str(path)), *callbacks], **options)
    task = Own(FedAlt(0.05), oracle=Vectorized()) if task is None else task
    fit.fit(task, held_out_data() if data is None else data, ckpt_path=ckpt_path)
    return fit


def test_every_client_has_a_row_with_its_own_values(tmp_path):
    path = tmp_path / "clients.csv"
    data = held_out_data(participation=Uniform(size=2))
    fit = run(path, data=data)
    task, found = fit.lightning_module, rows(path)
    assert set(found) == {(n, "train") for n in range(1, 7)} | {(n, "val") for n in (2, 4, 6)}
    for (_, stage), part in found.items():
        clients = [int(row["client"]) for row in part]
        assert clients == sorted(set(clients))
        assert len(clients) == (2 if stage == "train" else 4)
        assert all((row["train_loss"] == "") == (stage == "val") for row in part)
        assert all((row["val_loss"] == "") == (stage == "train") for row in part)
    last = [torch.tensor(float(row["val_loss"])) for row in found[6, "val"]]
    assert torch.equal(torch.stack(last), task.client_metrics["val_loss"])  # nine digits tell all float32 apart
    losses = [float(row["train_loss"]) for row in found[6, "train"]]
    assert sum(losses) / 2 == pytest.approx(float(fit.callback_metrics["train_loss"]), rel=1e-6)
    for row in found[6, "train"]:
        assert int(row["samples"]) == (12, 9, 15, 10)[int(row["client"])]
        assert row["minibatches"] == "3"
        assert float(row["drift"]) > 0


def test_what_an_algorithm_logs_and_an_objective_returns_is_written(tmp_path):
    path = tmp_path / "clients.csv"
    fit = run(path, Line(FedMM(0.05)), regression_data(), rounds=2)
    found = rows(path)
    assert set(found) == {(1, "train"), (2, "train")}  # validation is of the global model on pooled data
    assert set(found[2, "train"][0]) == {
        *KEYS, "samples", "minibatches", "counted", "train_loss", "train_rmse", "drift", "dual_norm",
    }  # fmt: skip
    for name in ("train_rmse", "dual_norm", "drift"):
        mean = sum(float(row[name]) for row in found[2, "train"]) / 4
        assert mean == pytest.approx(float(fit.callback_metrics[name]), rel=1e-6)


def test_who_is_left_out_of_means_has_a_row_that_says_so(tmp_path):
    path = tmp_path / "clients.csv"
    sets = clients()
    sets[2].tensors[1].fill_(float("nan"))
    data = FederatedDataModule.from_datasets(sets, batch_size=4, local_steps=2, rounds_per_epoch=5)
    with pytest.warns(RuntimeWarning, match="NaN or infinite numbers came from client 2"):
        fit = run(path, Line(FedMM(0.05)), data, rounds=1)
    part = rows(path)[1, "train"]
    assert [row["counted"] for row in part] == ["1", "1", "0", "1"]
    mean = sum(float(row["train_loss"]) for row in part if row["counted"] == "1") / 3
    assert mean == pytest.approx(float(fit.callback_metrics["train_loss"]), rel=1e-6)


def test_a_test_is_written_once_however_often_it_is_run(tmp_path):
    path = tmp_path / "clients.csv"
    fit = run(path, rounds=2)
    before = rows(path)
    for _ in range(2):
        fit.test(fit.lightning_module, held_out_data(), verbose=False)
        fit.validate(fit.lightning_module, held_out_data(), verbose=False)
    after = rows(path)
    assert len(after.pop((2, "test"))) == 4
    assert {key: [row["client"] for row in part] for key, part in after.items()} == {
        key: [row["client"] for row in part] for key, part in before.items()
    }
    trainer(callbacks=[ClientValuesFile(str(path))]).test(fit.lightning_module, held_out_data(), verbose=False)
    trainer(callbacks=[ClientValuesFile(str(path))]).test(fit.lightning_module, held_out_data(), verbose=False)
    assert len(rows(path)[2, "test"]) == 4
    assert set(rows(path)) == {*before, (2, "test")}


def test_tests_of_several_checkpoints_stand_beside_one_another(tmp_path):
    """Also those of a new program, whose trainer knows no rounds."""
    path = tmp_path / "clients.csv"
    saved = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    run(path, rounds=4, enable_checkpointing=True, callbacks=[saved])
    before = set(rows(path))
    for rounds in (4, 2, 4):
        task = Own(FedAlt(0.05), oracle=Vectorized())
        file = tmp_path / f"step={rounds}.ckpt"
        trainer(callbacks=[ClientValuesFile(str(path))]).test(task, held_out_data(), ckpt_path=file, verbose=False)
    shared = trainer(callbacks=[ClientValuesFile(str(path))])
    for rounds in (4, 2, 4):
        file = tmp_path / f"step={rounds}.ckpt"
        shared.test(Own(FedAlt(0.05)), held_out_data(), ckpt_path=file, verbose=False)
    found = rows(path)
    assert set(found) == before | {(2, "test"), (4, "test")}
    for rounds in (2, 4):
        assert [row["client"] for row in found[rounds, "test"]] == ["0", "1", "2", "3"]
    two, four = (numbers(found[rounds, "test"][0]) for rounds in (2, 4))
    assert set(two) == set(four) > {"round", "client"}
    assert all(two[name] != four[name] for name in set(two) - {"round", "client"})


@pytest.mark.parametrize("cut", [0, 7], ids=["whole", "with an incomplete end"])
def test_a_resumed_run_ends_with_the_same_file(cut, tmp_path):
    whole, stopped = tmp_path / "whole.csv", tmp_path / "stopped.csv"
    run(whole, data=held_out_data(participation=Uniform(size=2)))
    saved = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    options = {"enable_checkpointing": True, "callbacks": [saved]}
    run(stopped, data=held_out_data(participation=Uniform(size=2)), rounds=5, **options)
    if cut:
        stopped.write_bytes(stopped.read_bytes()[:-cut])
    assert (5, "train") in rows(stopped)
    data = held_out_data(participation=Uniform(size=2))
    run(stopped, data=data, ckpt_path=tmp_path / "step=3.ckpt")
    assert stopped.read_text() == whole.read_text()


@pytest.mark.parametrize("gone", [False, True], ids=["kept", "gone"])
def test_a_run_resumed_in_a_new_folder_begins_with_the_rows_before(gone, tmp_path):
    def fit(folder, rounds, ckpt_path=None, **options):
        torch.manual_seed(0)
        callbacks = [ClientValuesFile(), *options.pop("callbacks", ())]
        options = {"val_check_interval": 2, "check_val_every_n_epoch": None, **options}
        here = trainer(tmp_path / folder, callbacks=callbacks, max_steps=rounds, **options)
        here.fit(Own(FedAlt(0.05), oracle=Vectorized()), held_out_data(), ckpt_path=ckpt_path)
        return tmp_path / folder / "clients.csv"

    whole = fit("whole", 6)
    saved = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    stopped = fit("stopped", 5, enable_checkpointing=True, callbacks=[saved])
    before = stopped.read_text()
    if gone:
        stopped.unlink()
        with pytest.warns(UserWarning, match=r"begins after round 3: .*stopped/clients.csv, with the rounds"):
            resumed = fit("new", 6, tmp_path / "step=3.ckpt")
        assert set(rows(resumed)) == {(4, "train"), (4, "val"), (5, "train"), (6, "train"), (6, "val")}
    else:
        assert fit("new", 6, tmp_path / "step=3.ckpt").read_text() == whole.read_text()
        assert stopped.read_text() == before


def test_the_file_of_another_run_is_kept_aside(tmp_path, caplog):
    path = tmp_path / "clients.csv"
    run(path, rounds=2)
    before = path.read_text()
    with caplog.at_level(logging.INFO):
        run(path, rounds=4)
    assert (tmp_path / "clients.before-1.csv").read_text() == before
    assert set(rows(path)) == {(n, "train") for n in range(1, 5)} | {(2, "val"), (4, "val")}
    assert [line for line in caplog.messages if line.endswith("another run: it is now clients.before-1.csv.")]


@pytest.mark.parametrize("used", [False, True], ids=["a new callback", "the other run's callback"])
def test_a_checkpoint_without_the_callback_leaves_the_file_of_another_run_whole(used, tmp_path, caplog):
    """A run without the file is resumed where another run has left one, of more rounds than the checkpoint."""
    path, file = tmp_path / "clients.csv", tmp_path / "step=3.ckpt"
    saved = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    data, options = held_out_data(participation=Uniform(size=2)), {"val_check_interval": 2}
    without = trainer(None, max_steps=3, enable_checkpointing=True, callbacks=[saved])
    without.fit(Own(FedAlt(0.05), oracle=Vectorized()), data)
    callback = ClientValuesFile(str(path))
    other = trainer(max_steps=5, callbacks=[callback], check_val_every_n_epoch=None, **options)
    other.fit(Own(FedAlt(0.05), oracle=Vectorized()), held_out_data())
    before = path.read_text()
    callbacks = [callback if used else ClientValuesFile(str(path))]
    resumed = trainer(max_steps=5, callbacks=callbacks, check_val_every_n_epoch=None, **options)
    with (
        caplog.at_level(logging.INFO),
        pytest.warns(UserWarning, match="begins after round 3: the rounds before had no ClientValuesFile"),
    ):
        resumed.fit(Own(FedAlt(0.05), oracle=Vectorized()), data, ckpt_path=file)
    assert (tmp_path / "clients.before-1.csv").read_text() == before
    assert [line for line in caplog.messages if line.endswith("another run: it is now clients.before-1.csv.")]
    assert set(rows(path)) == {(4, "train"), (4, "val"), (5, "train")}


def test_a_fit_that_goes_on_in_one_program_goes_on_in_the_file(tmp_path):
    path = tmp_path / "clients.csv"
    fit = run(path, rounds=3)
    before = path.read_text()
    fit.fit_loop.epoch_loop.max_steps = 5
    fit.fit(fit.lightning_module, held_out_data())
    assert path.read_text().startswith(before)
    assert {number for number, stage in rows(path) if stage == "train"} == {1, 2, 3, 4, 5}
    assert [each.name for each in tmp_path.glob("clients*")] == ["clients.csv"]


def test_the_file_lies_in_the_folder_of_the_run_and_may_have_some_rounds_only(tmp_path):
    callback = ClientValuesFile(every_n_rounds=3)
    trainer(tmp_path, callbacks=[callback], max_steps=7).fit(Line(), regression_data())
    assert callback.path == tmp_path / "clients.csv"
    assert set(rows(callback.path)) == {(3, "train"), (6, "train")}


def test_a_trial_run_writes_nothing(tmp_path):
    trainer(tmp_path, callbacks=[ClientValuesFile()], fast_dev_run=2, max_steps=-1).fit(Line(), regression_data())
    assert list(tmp_path.rglob("*.csv")) == []


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ValueError, match="every_n_rounds=0"):
        ClientValuesFile(every_n_rounds=0)

    class Plain(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(1, 1)

        def test_step(self, batch, batch_idx):
            pass

    data = torch.utils.data.DataLoader(torch.zeros(1))
    with pytest.raises(TypeError, match="ClientValuesFile: Plain is no FederatedLightningModule"):
        trainer(tmp_path, callbacks=[ClientValuesFile()]).test(Plain(), data)


def test_a_file_that_cannot_be_written_is_named_with_reason_and_remedy(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(
        OutputError, match=r"^The clients' values were not saved: .*taken/each\.csv: .*\. Give another folder \(Client"
    ):
        run(tmp_path / "taken" / "each.csv", rounds=1)


def test_a_full_disk_is_said_to_be_full(tmp_path, monkeypatch):
    FullDisk(monkeypatch, 0)
    with pytest.raises(
        OutputError, match=r"No space left on device \(.* MiB are free there\)\. Make room there, or give"
    ):
        run(tmp_path / "each.csv", rounds=1)
