"""Histograms over clients and pictures, in every logger."""

from __future__ import annotations

import csv
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CometLogger, CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from matplotlib.figure import Figure
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedlightning.algorithms import FedMM
from fedlightning.callbacks import EvaluateClients, LogPictures
from fedlightning.callbacks.loggers import histogram_writer, log_histogram, picture_writer, rendered
from tests.support.evaluated import CLIENTS, digits, fitted, task
from tests.support.small import Line, regression_data, trainer


class Drawing(Line):
    def pictures(self):
        figure = Figure(figsize=(1, 1), facecolor="red")
        figure.subplots().plot([0, 1])
        return {"a line": figure}


class Plain(Logger):
    """A logger of a user's own, which takes numbers alone."""

    name, version = "plain", 0

    def log_metrics(self, metrics, step=None):
        self.rows = [*getattr(self, "rows", []), (step, dict(metrics))]

    def log_hyperparams(self, *_, **__):
        pass


def drawn(logger, **options):
    """A fit of four rounds with a picture after the second and the fourth, and a histogram in every round."""
    options = {"max_steps": 4, "val_check_interval": 2, "check_val_every_n_epoch": None, **options}
    fit = trainer(logger=logger, callbacks=[LogPictures(1)], log_every_n_steps=1, **options)
    fit.fit(Drawing(FedMM(0.05)), regression_data())
    return fit


def test_histograms_over_clients_are_in_tensorboard(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="", default_hp_metric=False)
    fitted(task(), digits(), logger=logger)
    logger.finalize("success")
    board = EventAccumulator(str(tmp_path))
    board.Reload()
    (event,) = board.Histograms("val_accuracy_clients")
    assert event.step == 4
    assert event.histogram_value.num == CLIENTS
    ends = ("", "_std", "_worst", "_p10", "_p50", "_p90")
    assert {f"val_accuracy{end}" for end in ends} <= set(board.Tags()["scalars"])


def test_percentiles_over_clients_are_those_of_every_clients_value():
    model = task()
    fit = fitted(model, digits(), callbacks=[EvaluateClients(percentiles=[25, 75])])
    values = model.client_metrics["val_accuracy"]
    expected = np.percentile(values.double().numpy(), [25, 75])
    found = [float(fit.callback_metrics[f"val_accuracy_p{each}"]) for each in (25, 75)]
    assert found == pytest.approx(list(expected), rel=1e-6)
    assert expected[0] < expected[1]
    assert not [name for name in fit.callback_metrics if name.endswith(("_p10", "_p50"))]


def test_a_table_has_percentiles_and_pictures_lie_beside_it(tmp_path):
    drawn(CSVLogger(tmp_path))
    folder = tmp_path / "lightning_logs" / "version_0"
    with (folder / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["dual_norm_p50"]]
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    for row in rows[1:]:
        low, mean, high = (float(row[name]) for name in ("dual_norm_p10", "dual_norm", "dual_norm_p90"))
        assert low < mean < high
    pictures = sorted(path.relative_to(folder).as_posix() for path in folder.glob("pictures/**/*.png"))
    assert pictures == ["pictures/a_line/round-000002.png", "pictures/a_line/round-000004.png"]
    assert Image.open(folder / pictures[0]).convert("RGB").getpixel((0, 0)) == (255, 0, 0)


def test_a_logger_of_ones_own_has_percentiles_and_a_line_says_that_it_gets_no_pictures(caplog):
    logger = Plain()
    with caplog.at_level(logging.INFO):
        drawn(logger)
    assert [step for step, row in logger.rows if "dual_norm_p90" in row] == [1, 2, 3, 4]
    (line,) = [line for line in caplog.messages if "pictures" in line]
    assert line.startswith("Plain gets no pictures")


def test_a_trial_run_draws_pictures(caplog):
    with caplog.at_level(logging.INFO):
        drawn(True, fast_dev_run=2, max_steps=-1)
    assert not [line for line in caplog.messages if "pictures" in line]


def test_a_logger_of_ones_own_may_take_pictures_and_histograms():
    class Taking(Plain):
        pass

    kept = []
    picture_writer.register(Taking)(lambda logger: lambda name, figure, step: kept.append((name, step)))
    histogram_writer.register(Taking)(lambda logger: lambda name, values, step: kept.append((name, len(values), step)))
    drawn(Taking(), max_steps=2)
    assert kept == [("dual_norm_clients", 4, 1), ("dual_norm_clients", 4, 2), ("a line", 2)]


def recording(cls, **attributes):
    """A logger of a class of Lightning's whose package is not needed, with the given public attributes."""
    return object.__new__(type(cls.__name__, (cls,), attributes))


@pytest.fixture
def no_wandb(monkeypatch):
    """The part of wandb's interface that histograms need."""
    stand_in = ModuleType("wandb")
    stand_in.Histogram = lambda sequence: SimpleNamespace(of=sequence)
    monkeypatch.setitem(sys.modules, "wandb", stand_in)


@pytest.mark.usefixtures("no_wandb")
def test_wandb_is_given_a_histogram_and_an_image():
    metrics, images = [], []
    logger = recording(
        WandbLogger,
        log_metrics=lambda self, values, step: metrics.append((values, step)),
        log_image=lambda self, key, images_, step: images.append((key, images_, step)),
    )
    log_histogram(SimpleNamespace(loggers=[logger], global_step=7), "loss", torch.tensor([1.0, torch.inf, 2.0]))
    ((values, step),) = metrics
    assert (values["loss"].of, step) == ([1.0, 2.0], 7)
    picture_writer(logger)("a line", Drawing().pictures()["a line"], 7)
    ((key, (image,), step),) = images
    assert (key, image.size, image.getpixel((0, 0)), step) == ("a line", (100, 100), (255, 0, 0), 7)


def test_mlflow_is_given_an_image_and_no_histogram():
    calls = []
    client = SimpleNamespace(log_image=lambda *given: calls.append(given))
    logger = recording(MLFlowLogger, experiment=client, run_id="abc")
    assert histogram_writer(logger) is None
    picture_writer(logger)("a line", Figure(), 7)
    ((run, image, path),) = calls
    assert (run, image.mode, path) == ("abc", "RGB", "pictures/a_line/round-000007.png")


def test_comet_is_given_histograms_and_figures():
    calls = []
    experiment = SimpleNamespace(
        log_histogram_3d=lambda *given, **named: calls.append((*given, named)),
        log_figure=lambda **named: calls.append(named),
    )
    logger = recording(CometLogger, experiment=experiment)
    log_histogram(SimpleNamespace(loggers=[logger], global_step=7), "loss", torch.tensor([1.0, 2.0]))
    figure = Figure()
    picture_writer(logger)("a line", figure, 7)
    assert calls == [
        ([1.0, 2.0], {"name": "loss", "step": 7}),
        {"figure_name": "a line", "figure": figure, "step": 7},
    ]


def test_a_figure_is_rendered_as_an_image_without_transparency():
    image = rendered(Figure(figsize=(2, 1), dpi=50, facecolor="none"))
    assert (image.mode, image.size) == ("RGB", (100, 50))


def test_wandb_itself_takes_histograms_and_pictures(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "dryrun")  # the logger sets it, and here it is put back
    logger = WandbLogger(save_dir=tmp_path, offline=True)
    drawn(logger)
    summary = dict(logger.experiment.summary)
    folder = Path(logger.experiment.dir)
    wandb.finish()
    assert summary["dual_norm_clients"]["_type"] == "histogram"
    assert sum(summary["dual_norm_clients"]["values"]) == 4
    assert summary["trainer/global_step"] == 4
    assert {"dual_norm_p10", "dual_norm_p90", "val_loss"} <= set(summary)
    images = list(folder.glob("media/images/a line*.png"))
    assert len(images) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of mlflow's own dependencies
def test_mlflow_itself_takes_percentiles_and_pictures(tmp_path):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    logger = MLFlowLogger(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", artifact_location=f"file://{tmp_path}/files")
    drawn(logger)
    client, run = logger.experiment, logger.run_id
    assert [metric.step for metric in client.get_metric_history(run, "dual_norm_p90")] == [1, 2, 3, 4]
    assert [metric.step for metric in client.get_metric_history(run, "val_loss")] == [2, 4]
    pictures = [each.path for each in client.list_artifacts(run, "pictures/a_line")]
    assert pictures == ["pictures/a_line/round-000002.png", "pictures/a_line/round-000004.png"]
