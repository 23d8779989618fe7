"""Every row of docs/LIGHTNING.md on a tiny task, and no option or callback of Lightning without a row."""

from __future__ import annotations

import inspect
import re
import tempfile
import time
from datetime import timedelta
from functools import partial
from inspect import isfunction
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, callbacks
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.profilers import SimpleProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAlt, FedAvg
from fedlightning.callbacks import EvaluateClients
from fedlightning.federation.files.checkpoint_io import AtomicCheckpointIO
from fedlightning.oracle import Sequential
from fedlightning.tasks.checks.lightning_surface import HOOKS, TRANSFER_HOOKS
from tests.support.paths import ROOT
from tests.support.small import Line, Normed, clients, regression_data, trainer
from tests.support.with_gaps import OwnLine

PAGE = (ROOT / "docs" / "LIGHTNING.md").read_text()


def table(heading):
    """Rows of the table under a heading, by the name in their first column: verdict and text."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|(.*)\|$", section, re.MULTILINE)
    return {name: (verdict, text) for name, verdict, text in rows}


def test_the_page_names_all_that_a_round_reports():
    (section,) = re.findall(r"^## What is logged\n(.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
    task = Line(FedAvg(0.05), oracle=Sequential())
    fitted = trainer(max_steps=1, limit_val_batches=0)
    fitted.fit(task, regression_data())
    found = {name.removesuffix("_bytes") for name in fitted.callback_metrics} - {"train_rmse"}  # the objective's own
    assert {"step", "train_loss", "drift", "upload"} <= found
    assert {name for name in found if f"`{name}`" not in section} == set()


OPTIONS, CALLBACKS, REPLACED = map(table, ("Options of the Trainer", "Callbacks of Lightning", "Hooks of the task"))


class Notes(Callback):
    """Rounds dealt, rounds validated, batches of evaluation, clients predicted for."""

    def __init__(self):
        self.dealt, self.validated, self.looked_at = [], [], 0

    def on_train_batch_start(self, trainer, task, batch, batch_idx):
        self.dealt.append(batch.index)

    def on_validation_end(self, trainer, task):
        if not trainer.sanity_checking:
            self.validated.append(trainer.global_step)

    def on_validation_batch_end(self, trainer, *_):
        self.looked_at += not trainer.sanity_checking


def own_data():
    return FederatedDataModule.from_datasets(
        clients(), val=clients(seed=7), test=clients(seed=8), batch_size=4, local_steps=1, rounds_per_epoch=2
    )


def fit(task=None, data=None, callbacks=(), **options):
    """A fit of two rounds, an epoch each; trainer and notes."""
    task = Line(FedAvg(0.05), dropout=0.0, oracle=Sequential()) if task is None else task
    notes = Notes()
    data = regression_data(rounds_per_epoch=2, local_steps=1) if data is None else data
    here = trainer(**{"max_steps": 4, "callbacks": [notes, *callbacks], "default_root_dir": folder(), **options})
    here.fit(task, data)
    return here, notes


def folder():
    return tempfile.mkdtemp()


def rounds(expected, **options):
    assert fit(**options)[1].dealt == expected


def validated(expected, **options):
    assert fit(**options)[1].validated == expected


def limited_clients(expected, **options):
    assert fit(OwnLine(FedAlt(0.05), oracle=Sequential()), own_data(), max_steps=2, **options)[1].looked_at == expected


def parameters(task):
    return torch.cat([p.detach().flatten() for p in task.parameters()])


def same_as_without(**options):
    """An option that must not change numbers."""
    ends = []
    for given in ({}, options):
        torch.manual_seed(1)
        ends.append(parameters(fit(**given)[0].lightning_module))
    assert torch.equal(*ends)


def precise(**options):
    here, _ = fit(precision="64-true")
    assert here.lightning_module.server_state.z.dtype == torch.float64
    mixed, _ = fit(precision="bf16-mixed")
    assert mixed.lightning_module.server_state.z.dtype == torch.float32
    half, _ = fit(precision="bf16-true")
    assert half.lightning_module.server_state.z.dtype == torch.float32
    assert half.lightning_module.head.weight.dtype == torch.bfloat16


def logged(**options):
    place = folder()
    fit(logger=CSVLogger(place), **options)
    rows = (Path(place) / "lightning_logs/version_0/metrics.csv").read_text().splitlines()
    names = rows[0].split(",")
    cells = [dict(zip(names, row.split(","), strict=True)) for row in rows[1:]]
    return [int(float(row["step"])) for row in cells if row["train_loss"]]


def fast():
    here, notes = fit(OwnLine(FedAlt(0.05), oracle=Sequential()), own_data(), fast_dev_run=1, max_steps=-1)
    assert (here.global_step, notes.looked_at) == (1, 1)


class Slow(Callback):
    def on_train_batch_end(self, *_):
        time.sleep(0.1)


def out_of_time(timer=None):
    limit = {"max_time": timedelta(seconds=0.15)} if timer is None else {}
    _, notes = fit(callbacks=[Slow(), *([] if timer is None else [timer])], max_steps=-1, max_epochs=50, **limit)
    assert notes.dealt in ([0], [0, 1])


def kept_going(**options):
    here, _ = fit(callbacks=[callbacks.EarlyStopping("train_loss", stopping_threshold=1e9)], max_steps=12, **options)
    assert here.global_step == 8


def looked_at_in_test(expected, **options):
    here, _ = fit(OwnLine(FedAlt(0.05), oracle=Sequential()), own_data(), max_steps=2, **options)
    here.test(here.lightning_module, own_data(), verbose=False)
    assert here.lightning_module.client_metrics["test_loss"].isfinite().sum() == expected


def predicted(expected, **options):
    here, _ = fit(OwnLine(FedAlt(0.05), oracle=Sequential()), own_data(), max_steps=2, **options)
    here.predict(here.lightning_module, own_data())
    assert here.lightning_module.predicted_clients == expected


def checkpointed():
    here, _ = fit(enable_checkpointing=True)
    stored = torch.load(here.checkpoint_callback.best_model_path, weights_only=True)
    assert stored["federation"]["algorithm"].endswith("FedAvg")


def summarised():
    here, _ = fit(enable_model_summary=True)
    assert any(isinstance(callback, callbacks.ModelSummary) for callback in here.callbacks)


def barred():
    here, _ = fit(enable_progress_bar=True)
    assert here.progress_bar_callback is not None


def profiled():
    profiler = SimpleProfiler()
    fit(profiler=profiler)
    assert len(profiler.recorded_durations["run_training_batch"]) == 4


def anomalous():
    class Broken(Line):
        def objective(self, batch):
            return {"loss": (self.head(self.body(batch[0])).sum() * 0.0).sqrt()}  # the slope of 0 is infinite

    with pytest.raises(RuntimeError, match="returned nan values"):
        fit(Broken(FedAvg(0.05), oracle=Sequential()), detect_anomaly=True)


def bare():
    notes = Notes()
    here = Trainer(barebones=True, max_steps=3, accelerator="cpu", default_root_dir=folder(), callbacks=[notes])
    here.fit(Line(FedAvg(0.05), dropout=0.0, oracle=Sequential()), regression_data())
    assert notes.dealt == [0, 1, 2]


def graded():
    modes = []

    class Asking(Line):
        def validation_step(self, batch, batch_idx):
            modes.append(torch.is_inference_mode_enabled())

    for mode in (True, False):
        trainer(inference_mode=mode).validate(Asking(FedAvg(0.05)), regression_data(), verbose=False)
        assert modes[-1] is mode


def determined():
    try:
        same_as_without(deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def synchronised():
    same_as_without(sync_batchnorm=True)  # one device: nothing
    task = Normed(FedAvg(0.05))
    task.net[1] = nn.SyncBatchNorm(8)  # what Lightning makes of it with several
    fit(task)


def plugged():
    plugin = AtomicCheckpointIO()
    assert fit(plugins=[plugin])[0].strategy.checkpoint_io is plugin


def everyone(**options):
    here, _ = fit(**options)
    assert any(isinstance(callback, EvaluateClients) for callback in here.callbacks)


TRAINER = {
    "accelerator": partial(rounds, [0, 1, 2, 3], accelerator="cpu"),
    "strategy": partial(same_as_without, strategy=SingleDeviceStrategy(torch.device("cpu"))),
    "devices": partial(same_as_without, devices=[0] if torch.cuda.is_available() else 1),
    "num_nodes": partial(same_as_without, num_nodes=1),
    "precision": precise,
    "logger": lambda: expect(logged(log_every_n_steps=1), [1, 2, 3, 4]),
    "callbacks": everyone,
    "fast_dev_run": fast,
    "max_epochs": partial(rounds, list(range(6)), max_epochs=3, max_steps=-1),
    "min_epochs": partial(kept_going, min_epochs=4),
    "max_steps": partial(validated, [2, 4], max_steps=5),
    "min_steps": partial(kept_going, min_steps=8),
    "max_time": out_of_time,
    "limit_train_batches": partial(rounds, [0, 1, 2], limit_train_batches=1, max_epochs=3, max_steps=-1),
    "limit_val_batches": partial(limited_clients, 3, limit_val_batches=3),
    "limit_test_batches": partial(looked_at_in_test, 3, limit_test_batches=3),
    "limit_predict_batches": partial(predicted, [0, 1, 2], limit_predict_batches=3),
    "overfit_batches": partial(rounds, [0, 0, 0], overfit_batches=1, max_epochs=3, max_steps=-1),
    "val_check_interval": partial(validated, [3], val_check_interval=3, check_val_every_n_epoch=None, max_steps=5),
    "check_val_every_n_epoch": partial(validated, [4], check_val_every_n_epoch=2, max_steps=6),
    "num_sanity_val_steps": partial(same_as_without, num_sanity_val_steps=0),
    "log_every_n_steps": lambda: expect(logged(log_every_n_steps=2), [2, 4]),
    "enable_checkpointing": checkpointed,
    "enable_progress_bar": barred,
    "enable_model_summary": summarised,
    "accumulate_grad_batches": partial(fit, accumulate_grad_batches=2),
    "gradient_clip_val": partial(fit, gradient_clip_val=0.1),
    "gradient_clip_algorithm": partial(fit, gradient_clip_algorithm="value"),
    "deterministic": determined,
    "benchmark": partial(same_as_without, benchmark=False),
    "inference_mode": graded,
    "use_distributed_sampler": partial(same_as_without, use_distributed_sampler=False),
    "profiler": profiled,
    "detect_anomaly": anomalous,
    "barebones": bare,
    "plugins": plugged,
    "sync_batchnorm": synchronised,
    "reload_dataloaders_every_n_epochs": partial(rounds, [0, 1, 2, 3], reload_dataloaders_every_n_epochs=1),
    "default_root_dir": lambda: expect(fit(default_root_dir=(place := folder()))[0].default_root_dir, place),
    "enable_autolog_hparams": partial(same_as_without, enable_autolog_hparams=False),
    "model_registry": partial(same_as_without, model_registry=None),
}


def expect(found, wanted):
    assert found == wanted


class Freezing(callbacks.BaseFinetuning):
    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.body)

    def finetune_function(self, pl_module, epoch, optimizer):
        pass


class Writing(callbacks.BasePredictionWriter):
    def __init__(self):
        super().__init__("batch")
        self.written = []

    def write_on_batch_end(self, trainer, pl_module, prediction, *_):
        self.written.append((pl_module.predicted_clients[-1], len(prediction)))


def written():
    writer = Writing()
    here, _ = fit(OwnLine(FedAlt(0.05), oracle=Sequential()), own_data(), callbacks=[writer])
    here.predict(here.lightning_module, own_data())
    assert writer.written == [(0, 12), (1, 9), (2, 15), (3, 10)]


class Dead(Callback):
    def on_after_backward(self, trainer, pl_module):
        raise AssertionError


def named(callback):
    with pytest.warns(UserWarning, match="never called in a federated fit"):
        fit(callbacks=[callback])


def ended(callback, expected, **options):
    assert fit(callbacks=[callback], **options)[0].global_step == expected


def averaged(make):
    here, _ = fit(callbacks=[make()])
    task = here.lightning_module
    last = torch.cat([task.server_state.z])
    assert not torch.allclose(parameters(task), last)  # the average, not the last round's
    validated = here.callback_metrics["val_loss"]
    after = trainer().validate(task, regression_data(), verbose=False)[0]["val_loss"]
    assert float(validated) == pytest.approx(after)
    with pytest.raises(ValueError, match="does not suit OwnLine: clients have models of their own"):
        fit(OwnLine(FedAlt(0.05)), own_data(), callbacks=[make()])


class Numbers(CSVLogger):
    """Keeps what it logs."""

    def __init__(self):
        super().__init__(folder())
        self.seen = {}

    def log_metrics(self, metrics, step=None):
        for name, value in metrics.items():
            self.seen.setdefault(name, []).append(value)


def monitored(callback, name, check=lambda values: len(values) > 0):
    numbers = Numbers()
    fit(callbacks=[callback], logger=numbers, log_every_n_steps=1)
    assert check(next(values for key, values in numbers.seen.items() if name in key))
    assert numbers.seen["client_lr"][-1] == pytest.approx(0.05)


def best():
    place = folder()
    kept = callbacks.ModelCheckpoint(place, monitor="val_loss", filename="{step}", save_top_k=-1)
    fit(callbacks=[kept], enable_checkpointing=True)
    assert sorted(path.name for path in Path(place).iterdir()) == ["step=2.ckpt", "step=4.ckpt"]


def saved_on_exception():
    class Stops(Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 2:
                raise ZeroDivisionError

    place = folder()
    with pytest.raises(ZeroDivisionError):
        fit(callbacks=[Stops(), callbacks.OnExceptionCheckpoint(place)], enable_checkpointing=True)
    assert torch.load(Path(place) / "on_exception.ckpt", weights_only=True)["global_step"] == 2


@pytest.mark.filterwarnings("ignore")
def throughput():
    monitor = callbacks.ThroughputMonitor(batch_size_fn=lambda batch: len(getattr(batch, "cohorts", [batch])[0]))
    monitored(monitor, "train/samples", lambda values: values[-1] == 16)  # four rounds of four clients


LIGHTNINGS = {
    "BackboneFinetuning": lambda: fit(callbacks=[callbacks.BackboneFinetuning()]),
    "BaseFinetuning": lambda: fit(callbacks=[Freezing()]),
    "BasePredictionWriter": written,
    "BatchSizeFinder": lambda: fit(callbacks=[callbacks.BatchSizeFinder()]),
    "Callback": lambda: named(Dead()),
    "Checkpoint": lambda: ended(callbacks.Checkpoint(), 4, enable_checkpointing=True),
    "DeviceStatsMonitor": lambda: monitored(callbacks.DeviceStatsMonitor(cpu_stats=True), "DeviceStatsMonitor"),
    "EarlyStopping": lambda: ended(callbacks.EarlyStopping("train_loss", stopping_threshold=1e9), 2),
    "EMAWeightAveraging": lambda: averaged(partial(callbacks.EMAWeightAveraging, decay=0.5)),
    "GradientAccumulationScheduler": lambda: fit(callbacks=[callbacks.GradientAccumulationScheduler({0: 2})]),
    "LambdaCallback": lambda: named(callbacks.LambdaCallback(on_before_zero_grad=print)),
    "LearningRateFinder": lambda: fit(callbacks=[callbacks.LearningRateFinder()]),
    "LearningRateMonitor": lambda: monitored(callbacks.LearningRateMonitor(), "lr-SGD", lambda v: set(v) == {1.0}),
    "ModelCheckpoint": best,
    "ModelPruning": lambda: fit(callbacks=[callbacks.ModelPruning("l1_unstructured", amount=0.5)]),
    "ModelSummary": lambda: ended(callbacks.ModelSummary(), 4, enable_model_summary=True),
    "OnExceptionCheckpoint": saved_on_exception,
    "ProgressBar": lambda: ended(callbacks.ProgressBar(), 4, enable_progress_bar=True),
    "RichModelSummary": lambda: ended(callbacks.RichModelSummary(), 4, enable_model_summary=True),
    "RichProgressBar": lambda: ended(callbacks.RichProgressBar(), 4, enable_progress_bar=True),
    "StochasticWeightAveraging": lambda: fit(callbacks=[callbacks.StochasticWeightAveraging(1e-2)]),
    "SpikeDetection": lambda: fit(callbacks=[callbacks.SpikeDetection()]),
    "ThroughputMonitor": throughput,
    "Timer": lambda: out_of_time(callbacks.Timer(timedelta(seconds=0.15), interval="step")),
    "TQDMProgressBar": lambda: ended(callbacks.TQDMProgressBar(), 4, enable_progress_bar=True),
    "WeightAveraging": lambda: averaged(callbacks.WeightAveraging),
}


def overridden(hook):
    mine = type("Mine", (Line,), {hook: lambda self, *_: None})
    fit(mine(FedAvg(0.05)))


CHECKS = [
    *(pytest.param(OPTIONS.get(name), check, id=f"Trainer({name})") for name, check in TRAINER.items()),
    *(pytest.param(CALLBACKS.get(name), check, id=name) for name, check in LIGHTNINGS.items()),
    *(pytest.param(REPLACED.get(name), partial(overridden, name), id=f"{name}()") for name in HOOKS),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("row", "check"), CHECKS)
def test_the_row_is_true(row, check, caplog):
    verdict, text = row
    if verdict != "refused":
        check()
        return
    with pytest.raises((ValueError, TypeError)) as refusal:
        check()
    first = text.split(";")[0].split(" or prune")[0]
    for name in re.findall(r"`([^`]+)`", first):
        assert name in str(refusal.value), f"the page names {name}: {refusal.value}"


def test_no_option_of_the_trainer_is_missing():
    options = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    assert options <= set(OPTIONS), "an option of the installed Lightning has no row in docs/LIGHTNING.md"
    assert set(OPTIONS) == set(TRAINER)


def test_no_callback_of_lightning_is_missing():
    assert set(callbacks.__all__) <= set(CALLBACKS), "a callback of the installed Lightning has no row"
    assert set(CALLBACKS) == set(LIGHTNINGS)


USED = {"all_gather", "forward", "freeze", "log_dict", "print", "unfreeze", "to_onnx", "to_tensorrt", "to_torchscript"}
"""Methods of a LightningModule that its user calls."""
LOADERS = {f"{name}_dataloader" for name in ("train", "val", "test", "predict")}
"""Replaced by those of the data module, as in any fit with one."""


@pytest.mark.filterwarnings("ignore")
def test_a_method_of_a_task_is_called_or_refused():
    called = set()

    def noted(name):
        def method(self, *args, **kwargs):
            called.add(name)
            return getattr(super(Noted, self), name)(*args, **kwargs)

        return method

    bases = (LightningModule, ModelHooks, DataHooks, CheckpointHooks)
    methods = {name for base in bases for name, each in vars(base).items() if name[0] != "_" and isfunction(each)}
    refused = {*HOOKS, *TRANSFER_HOOKS}
    kept = methods - refused - {"configure_sharded_model"}  # Lightning refuses it beside configure_model
    Noted = type("Noted", (Line,), {name: noted(name) for name in kept})
    task, data = Noted(FedAvg(0.05), oracle=Sequential()), regression_data(rounds_per_epoch=1)
    here = trainer(max_steps=2)
    here.fit(task, data)
    here.save_checkpoint(file := Path(folder()) / "file.ckpt")
    here.validate(task, data, verbose=False)
    here.test(task, own_data(), verbose=False)
    here.predict(task, own_data())
    trainer(max_steps=3).fit(task, data, ckpt_path=file)
    assert kept - called <= USED | LOADERS


def test_no_hook_is_missing():
    assert set(REPLACED) == set(HOOKS)
    assert {verdict for verdict, _ in (OPTIONS | CALLBACKS | REPLACED).values()} == {"works", "differs", "refused"}
