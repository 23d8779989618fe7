"""What a round reports: metrics, drift, penalties, step sizes, warnings of runs that diverge."""

from __future__ import annotations

import logging

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger
from torch import nn
from torch.nn import functional as F

from fedlightning.algorithms import CDMA, SCAFFOLD, CODAPlus, FedAvg, FedDR, FedMM, FedSGDA
from fedlightning.callbacks import EvaluateClients
from fedlightning.federation.client_columns import ClientColumn
from fedlightning.federation.loop import RoundResult
from fedlightning.local import LocalSteps
from fedlightning.oracle import Sequential
from fedlightning.proximal import L1, GroupLasso
from fedlightning.tasks.fit.round_report import RoundReport
from tests.support.evaluated import messages, two_rounds
from tests.support.small import Line, fitted, regression_data


def test_metrics_of_a_round_are_logged(tmp_path):
    fit = fitted(Line(SCAFFOLD(0.05)), tmp_path=tmp_path, logger=CSVLogger(tmp_path), log_every_n_steps=1, max_steps=3)
    logged = fit.callback_metrics
    for name in ("train_loss", "train_rmse", "drift", "dual_norm", "clients", "left_out", "round_time"):
        assert torch.isfinite(logged[name]), name
    d = sum(p.numel() for p in fit.lightning_module.parameters())
    assert logged["upload"] == logged["download"] == 3 * 4 * 2 * d
    rows = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()
    steps = [line.split(",")[rows[0].split(",").index("step")] for line in rows[1:]]
    assert [int(float(step)) for step in steps if step] == [1, 2, 3]


def test_checkpoints_are_named_by_the_round(tmp_path):
    """Also in rounds after a validation, which logs the step of its own round."""
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    fitted(Line(), max_steps=5, val_check_interval=2, enable_checkpointing=True, callbacks=[keep])
    assert {path.stem for path in tmp_path.glob("*.ckpt")} >= {f"step={k}" for k in range(1, 6)}


def test_drift_of_some_of_the_parameters():
    drifts = []
    for names in ((), ("body",), ("body", "head")):
        torch.manual_seed(0)
        drifts.append(fitted(Line(drift_parameters=names, dropout=0.0), max_steps=2).callback_metrics["drift"])
    torch.testing.assert_close(drifts[0], drifts[2])  # the same sum, taken in another order
    assert drifts[2] > drifts[1] > 0
    with pytest.raises(ValueError, match=r"drift_parameters: 'boddy' matches no .*Did you mean 'body'"):
        fitted(Line(drift_parameters=["boddy"]), max_steps=1)


def test_regularisers_apply_by_prefix_and_are_logged():
    task = Line(FedSGDA(0.05), regularizer={"body.0.weight": GroupLasso(1.0), "head": L1(0.1)}, dropout=0.0)
    run = fitted(task, max_steps=60)
    weight, head = task.body[0].weight.detach(), task.head
    assert (weight.norm(dim=1) == 0).any()
    expected = GroupLasso(1.0).value(weight) + L1(0.1).value(head.weight.detach()) + L1(0.1).value(head.bias.detach())
    assert float(run.callback_metrics["regularization"]) == pytest.approx(float(expected), rel=1e-5)


def test_a_watched_metric_is_fresh_every_round(tmp_path):
    options = {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{train_loss:.6f}"}
    keep = ModelCheckpoint(tmp_path, monitor="train_loss", **options)
    fitted(Line(dropout=0.0), max_steps=4, enable_checkpointing=True, callbacks=[keep], log_every_n_steps=50)
    assert len({path.stem for path in tmp_path.glob("train_loss=*.ckpt") if "-v" not in path.stem}) == 4


class Watching(Callback):
    def __init__(self, name):
        self.name, self.seen, self.true = name, [], []

    def on_train_batch_end(self, trainer, task, *_):
        self.seen.append(float(trainer.callback_metrics[self.name]))
        self.true.append(float(task.round_metrics[self.name]))


@pytest.mark.parametrize("name", ["train_loss", "train_rmse", "drift", "round_upload", "client_lr"])
@pytest.mark.parametrize("logger", [False, True], ids=["no logger", "CSV"])
def test_callback_metrics_are_those_of_the_round(name, logger, tmp_path):
    watching = Watching(name)
    two_rounds(Line(), max_steps=5, callbacks=[watching], logger=CSVLogger(tmp_path) if logger else False)
    assert len(watching.seen) == 5
    assert watching.seen == pytest.approx(watching.true)
    assert name in ("round_upload", "client_lr") or len(set(watching.seen)) == 5


class Notebook(Logger):
    """Keeps what it is given."""

    name, version = "notebook", 0

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, *_, **__):
        pass


def test_loggers_get_a_row_a_logged_round_and_the_users_own_beside_it():
    class Talking(Line):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.log("mine", float(batch_idx))

    notebook = Notebook()
    two_rounds(Talking(), max_steps=4, logger=notebook, log_every_n_steps=2)
    rounds = [(step, row) for step, row in notebook.rows if "train_loss" in row]
    assert [step for step, _ in rounds] == [2, 4]
    assert {"train_rmse", "drift", "clients", "client_lr", "round_time", "upload", "epoch"} <= set(rounds[0][1])
    assert [step for step, row in notebook.rows if "mine" in row] == [2, 4]
    assert [step for step, row in notebook.rows if "val_loss" in row] == [2, 4]
    assert all(row for _, row in notebook.rows)


def test_percentiles_are_over_the_clients_that_count_in_the_mean():
    """A client may report a finite value though what it sends is not finite."""
    notebook = Notebook()
    task = Line(FedMM(0.05))
    two_rounds(task, logger=notebook, log_every_n_steps=1, callbacks=[EvaluateClients(percentiles=[100])])
    norms = ClientColumn(is_distribution=True)
    norms.add([0, 1], torch.tensor([1.0, 2.0]))
    norms.add([2], torch.tensor([1e6]), torch.tensor([False]))
    RoundReport().publish(task, RoundResult({}, {"dual_norm": norms}), {"dual_norm": 1.5})
    assert notebook.rows[-1][1]["dual_norm_p100"] == 2.0


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (FedAvg(0.05), {"client_lr": 0.05}),
        (FedAvg([0.05, 0.02]), {"client_lr/min": 0.05, "client_lr/max": 0.02}),
        (FedAvg({"body": 0.05, "default": 0.01}), {"client_lr/body": 0.05, "client_lr/default": 0.01}),
        (FedDR(0.5, 1.0, solver=LocalSteps(lr=0.03)), {"client_lr": 0.03}),
        (FedDR(0.5, 1.0, solver=LocalSteps()), {}),
        (CODAPlus(0.06, stage_steps=3), {"client_lr": 0.02}),
        (CDMA(0.08, beta=0.0, rho=1.0), {"client_lr": 0.04}),
    ],
    ids=["number", "pair", "prefixes", "solver", "estimated", "stages", "shrinking"],
)
@pytest.mark.filterwarnings("ignore:.*the second value is not used")
def test_the_clients_step_size_is_logged(algorithm, expected):
    fit = two_rounds(Line(algorithm))
    logged = {k: float(v) for k, v in fit.callback_metrics.items() if k.startswith("client_lr")}
    assert logged == pytest.approx(expected)


def test_the_learning_rate_monitor_shows_the_servers(tmp_path):
    notebook = Notebook()
    two_rounds(Line(FedAvg(0.05)), logger=notebook, log_every_n_steps=1, callbacks=[LearningRateMonitor()])
    assert [row["lr-SGD"] for _, row in notebook.rows if "lr-SGD" in row][-1] == 1.0
    assert [row["client_lr"] for _, row in notebook.rows if "client_lr" in row] == [0.05, 0.05]


def test_a_loss_that_grows_a_million_fold_is_reported_once():
    class Steep(Line):
        def objective(self, batch):
            x, y = batch
            return {"loss": F.mse_loss(self.head(torch.relu(x[:, :5])).squeeze(1), y)}

    found = messages(lambda: two_rounds(Steep(FedAvg(50.0), oracle=Sequential()), max_steps=4))
    (message,) = [text for text in found if "million" in text]
    assert "train_loss has grown more than a million-fold" in message
    assert not [text for text in messages(lambda: two_rounds(Line(), max_steps=4)) if "million" in text]


@pytest.mark.parametrize("oracle", [None, Sequential()], ids=str)
def test_a_loss_that_grows_within_the_first_round_is_reported_once(oracle):
    class Linear(Line):
        def objective(self, batch):
            return {"loss": (self.head(batch[0][:, :5]).squeeze(1) * batch[1]).mean()}  # its gradient stays finite

    found = messages(lambda: two_rounds(Linear(FedAvg(1e30), oracle=oracle), max_steps=3))
    (message,) = [text for text in found if "million" in text]
    assert "in round 1: the run diverges. Lower lr (--model.algorithm.lr=...), set local_clip" in message
    assert not [text for text in messages(lambda: two_rounds(Linear(FedAvg(1.0)), max_steps=3)) if "million" in text]


@pytest.mark.parametrize(("value", "word"), [("nan", "NaN"), ("inf", "infinite")])
def test_a_loss_that_is_not_finite_from_the_start_is_reported_once(value, word):
    class Undefined(Line):
        def objective(self, batch):
            return {"loss": super().objective(batch)["loss"] + float(value)}  # a constant, of finite gradient

    found = messages(lambda: two_rounds(Undefined(oracle=Sequential()), max_steps=3, num_sanity_val_steps=0))
    (message,) = [text for text in found if "train_loss is" in text]
    assert message.startswith(f"train_loss is {word} in round 1, though the gradients of the clients that count are fi")


def test_a_fit_that_ends_before_its_first_validation_says_so(caplog):
    def said(caplog, **options):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            two_rounds(Line(), regression_data(rounds_per_epoch=10), **options)
        return [r.getMessage() for r in caplog.records if "before its first validation" in r.getMessage()]

    (message,) = said(caplog, max_steps=4)
    assert (
        "This fit of 4 rounds ends before its first validation, which is due at round 10. Set rounds_per_ep" in message
    )
    assert said(caplog, max_steps=10) == []
    assert said(caplog, max_steps=4, val_check_interval=4) == []
    assert said(caplog, max_steps=4, val_check_interval=3, check_val_every_n_epoch=None) == []
    assert said(caplog, max_steps=4, limit_val_batches=0) == []
    assert said(caplog, fast_dev_run=2, max_steps=-1) == []
    (message,) = said(caplog, max_steps=4, val_check_interval=7, check_val_every_n_epoch=None)
    assert (
        "due at round 7. Set val_check_interval=4 and check_val_every_n_epoch=None "
        "(--trainer.val_check_interval=4 --trainer.check_val_every_n_epoch=null) of the Trainer." in message
    )
    (message,) = said(caplog, max_steps=-1, max_epochs=1, check_val_every_n_epoch=2)
    assert "due at round 20" in message


@pytest.mark.parametrize("precision", ["16-true", "bf16-true", "32-true"])
def test_counts_are_exact_in_every_precision(precision):
    """In the default dtype of bf16-true 333 would be 332, and 70,000 infinity in that of 16-true."""

    class Wide(Line):
        def __init__(self):
            super().__init__(dropout=0.0)
            self.more = nn.Parameter(torch.zeros(20_000))

        def objective(self, batch):
            loss = super().objective([each.to(self.dtype) for each in batch])["loss"]
            return {"loss": loss + self.more.square().sum()}

    task = Wide()
    run = fitted(task, max_steps=3, precision=precision)
    upload = 3 * 4 * 20_041
    assert task.traffic[0] == upload
    assert run.callback_metrics["upload"].item() == upload  # a comparison of tensors would round the number as well
    assert run.callback_metrics["step"].item() == 3
    assert run.logged_metrics["upload_bytes"].item() == upload * task.server_state.z.element_size()
