"""Every run has a folder of its own, whatever its logger."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from fedlightning.callbacks import LastCheckpoint
from fedlightning.callbacks.run_folder import run_folder
from fedlightning.cli.app import FederatedCLI
from tests.support.paths import CONFIGS
from tests.support.small import Line, regression_data, trainer


class Shared(Logger):
    """A logger whose runs share a folder, as those of W&B do."""

    def __init__(self, save_dir: str, version: str = "abc"):
        super().__init__()
        self.folder, self.id = save_dir, version

    name = property(lambda self: "project")
    version = property(lambda self: self.id)
    save_dir = property(lambda self: self.folder)

    def log_metrics(self, metrics, step=None):
        pass

    def log_hyperparams(self, *_, **__):
        pass


@pytest.mark.parametrize(
    ("loggers", "expected"),
    [
        ([], "root"),
        ([TensorBoardLogger("runs", name="", version=3), CSVLogger("logs")], "runs/version_3"),
        ([CSVLogger("logs", version="mine")], "logs/lightning_logs/mine"),
        ([Shared("wandb")], "wandb/project/abc"),
        ([Shared(None, 7)], "root/project/version_7"),
    ],
    ids=["none", "TensorBoard", "CSV", "shared", "remote"],
)
def test_the_first_logger_says_where(loggers, expected):
    assert run_folder(SimpleNamespace(loggers=loggers, default_root_dir="root")).as_posix() == expected


def test_checkpoints_of_runs_with_one_folder_lie_apart(tmp_path):
    for run in ("one", "two"):
        fit = trainer(
            tmp_path,
            logger=Shared(str(tmp_path), run),
            callbacks=[LastCheckpoint()],
            max_steps=1,
            enable_checkpointing=True,
        )
        fit.fit(Line(), regression_data())
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("last.ckpt")}
    assert found == {"project/one/checkpoints/last.ckpt", "project/two/checkpoints/last.ckpt"}


def test_so_do_their_configurations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedlightning"])
    saddle = CONFIGS / "quadratic_saddle"
    for run in ("one", "two"):
        FederatedCLI(
            [
                *("fit", f"--config={saddle / 'base.yaml'}", f"--config={saddle / 'fed_mm.yaml'}"),
                *("--trainer.max_steps=1", "--trainer.enable_progress_bar=false"),
                *(f"--trainer.logger={__name__}.Shared", "--trainer.logger.save_dir=runs"),
                f"--trainer.logger.version={run}",
            ]
        )
        assert f"version: {run}" in (tmp_path / "runs" / "project" / run / "config.yaml").read_text()
