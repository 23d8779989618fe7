"""All runs of a comparison are one group, in every logger, and a run that goes on is logged as one run."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
from jsonargparse import Namespace
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, WandbLogger

from fedlightning.compare import compare
from fedlightning.compare import run as runs
from fedlightning.compare.loggers import Place, close, placed, remember, where
from tests.support.comparisons import SADDLE, SMALL, arguments

PLACE = Place("FedMM", 3, "FedMM, seed 3", Path("runs/mine/FedMM/seed-3"), Path("runs/mine"))


class Notebook(Logger):
    """A user's own logger, which has a folder."""

    name, version = "notebook", 0

    def __init__(self, save_dir: str = "here", title: str = "untitled"):
        super().__init__()
        self.folder, self.title = Path(save_dir), title

    def log_metrics(self, metrics, step=None):
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "notebook.txt").open("a") as file:
            file.write(f"{self.title} {step}\n")

    def log_hyperparams(self, *_, **__):
        pass


def configured(cls, **given):
    return Namespace(class_path=f"{cls.__module__}.{cls.__name__}", init_args=Namespace(given))


def test_tensorboard_is_the_default():
    for default in (True, configured(CSVLogger)):
        (found,) = placed(default, PLACE)
        assert found.init_args.save_dir == "runs/mine/FedMM/seed-3"
    assert placed(True, PLACE)[0].class_path.endswith("TensorBoardLogger")
    assert placed(False, PLACE) == placed(None, PLACE) == []


def test_runs_of_wandb_are_one_group():
    (found,) = placed(configured(WandbLogger, project="digits", save_dir="x", name="", id=None), PLACE)
    assert found.init_args.as_dict() == {
        "project": "digits",
        "save_dir": "runs/mine/FedMM/seed-3",
        "name": "FedMM, seed 3",
        "id": None,
    }
    assert found.dict_kwargs == {"group": "mine", "job_type": "FedMM"}
    given = configured(WandbLogger)
    given.dict_kwargs = {"group": "ours", "tags": ["a"]}
    assert placed(given, PLACE)[0].dict_kwargs == {"group": "ours", "job_type": "FedMM", "tags": ["a"]}


def test_runs_of_mlflow_are_one_experiment():
    default = {"experiment_name": "lightning_logs", "tracking_uri": None, "tags": None, "artifact_location": None}
    found = placed(configured(MLFlowLogger, **default), PLACE)[0].init_args
    root = Path("runs/mine").absolute()
    assert found.as_dict() == {
        "experiment_name": "mine",
        "run_name": "FedMM, seed 3",
        "tags": {"algorithm": "FedMM", "seed": "3"},
        "tracking_uri": f"sqlite:///{root}/mlflow.db",
        "artifact_location": f"file://{root}/mlartifacts",
    }
    own = {"experiment_name": "ours", "tracking_uri": "http://server", "tags": {"lab": "a"}}
    found = placed(configured(MLFlowLogger, **own), PLACE)[0].init_args
    assert (found.experiment_name, found.tracking_uri) == ("ours", "http://server")
    assert found.tags == {"lab": "a", "algorithm": "FedMM", "seed": "3"}


def made(cls, **attributes):
    """A logger of a class of Lightning's whose package is not needed, with the given public attributes."""
    return object.__new__(type(cls.__name__, (cls,), attributes))


def test_a_run_that_goes_on_is_logged_under_the_same_identity(tmp_path):
    place = PLACE._replace(folder=tmp_path)
    ended = []
    experiment = SimpleNamespace(id="w1", finish=lambda: ended.append("w1"))
    loggers = [CSVLogger(tmp_path), made(WandbLogger, experiment=experiment), made(MLFlowLogger, run_id="m1")]
    remember(loggers, tmp_path)
    close(loggers)
    assert ended == ["w1"]
    plain, first, second = placed([configured(CSVLogger), configured(WandbLogger), configured(MLFlowLogger)], place)
    assert "id" not in plain.init_args
    assert first.init_args.id == "w1"
    assert second.init_args.run_id == "m1"


def test_every_run_writes_to_its_own_place_in_all_loggers():
    value = "[{class_path: lightning.pytorch.loggers.CSVLogger, init_args: {save_dir: x}}, "
    value += f"{{class_path: {__name__}.Notebook, init_args: {{title: ours}}}}]"
    compare(**arguments(seeds=[0, 1], set=[*SMALL, f"trainer.logger={value}"]))
    for algorithm in ("FedMM", "FedAvg"):
        for seed in (0, 1):
            folder = Path("out") / algorithm / f"seed-{seed}"
            with (folder / "csv" / "version_0" / "metrics.csv").open() as file:
                steps = [row["step"] for row in csv.DictReader(file) if row["train_loss"]]
            assert steps == [str(n) for n in range(1, 7)]
            assert (folder / "notebook.txt").read_text().startswith("ours 1")
            assert not list(folder.glob("events.*"))
            assert (folder / "config.yaml").is_file()
    assert {path.name for path in Path().iterdir()} == {"out"}


def test_another_logger_does_not_make_other_runs(monkeypatch, capsys):
    compare(**arguments())
    monkeypatch.setattr(runs, "execute", None)
    compare(**arguments(set=[*SMALL, f"trainer.logger={__name__}.Notebook"]))
    told = capsys.readouterr().out
    assert "2 of 2 runs are already finished" in told
    assert "Curves, pictures: tensorboard --logdir out" in told
    assert "Notebook: compare knows no groups of it" in told


def test_where_a_group_is_found_is_told():
    comparison = Path("runs/mine")
    given = [configured(CSVLogger), configured(WandbLogger, offline=True), configured(WandbLogger, offline=False)]
    assert where(given, comparison) == [
        "Tables: metrics.csv in csv/ of every run below runs/mine",
        "Curves, pictures: a group in W&B; send it with: wandb sync runs/mine/*/*/wandb/offline-*",
        "Curves, pictures: a group in W&B",
    ]


def stopped_and_resumed(logger):
    """A run that is stopped after three of six rounds, and goes on; its arguments."""
    configs = (SADDLE / "base.yaml", SADDLE / "fed_mm.yaml")
    values = (*(f"--config={file}" for file in configs), *(f"--{value}" for value in (*SMALL, *logger)))
    run = runs.Run("A", 0, values, Path("out/A/seed-0"), metric="distance", comparison=Path("out"))
    rounds = [0]
    with pytest.raises(KeyboardInterrupt):
        runs.execute(run, rounds.append, lambda: rounds[-1] >= 3)
    runs.execute(run, rounds.append)
    return run


def test_a_table_of_a_run_that_goes_on_is_not_lost():
    run = stopped_and_resumed(["trainer.logger=lightning.pytorch.loggers.CSVLogger"])
    steps = []
    for part in (0, 1):
        with (run.folder / "csv" / f"version_{part}" / "metrics.csv").open() as file:
            steps.append([int(row["step"]) for row in csv.DictReader(file) if row["train_loss"]])
    assert steps == [[1, 2, 3], [4, 5, 6]]


def test_wandb_itself_has_one_group(monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "dryrun")  # the logger sets it, and here it is put back
    begun, init = [], wandb.init

    def noted(**given):
        begun.append(init(**given))
        return begun[-1]

    monkeypatch.setattr(wandb, "init", noted)
    logger = ["trainer.logger=lightning.pytorch.loggers.WandbLogger", "trainer.logger.init_args.offline=true"]
    compare(**arguments(set=[*SMALL, *logger]))
    assert [(run.group, run.job_type, run.name) for run in begun] == [
        ("out", "FedMM", "FedMM, seed 0"),
        ("out", "FedAvg", "FedAvg, seed 0"),
    ]
    assert wandb.run is None
    assert len(list(Path("out").glob("*/*/wandb/offline-run-*"))) == 2
    begun.clear()
    stopped_and_resumed(logger)
    assert begun[0].id == begun[1].id


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of mlflow's own dependencies
def test_mlflow_itself_has_one_experiment():
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    from mlflow.tracking import MlflowClient

    logger = ["trainer.logger=lightning.pytorch.loggers.MLFlowLogger"]
    compare(**arguments(set=[*SMALL, *logger]))
    stopped_and_resumed(logger)
    client = MlflowClient(f"sqlite:///{Path('out').absolute()}/mlflow.db")
    found = client.search_runs([client.get_experiment_by_name("out").experiment_id])
    assert sorted(run.info.run_name for run in found) == ["A, seed 0", "FedAvg, seed 0", "FedMM, seed 0"]
    for run in found:
        steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "train_loss")]
        assert steps == list(range(1, 7))
        assert run.info.status == "FINISHED"
