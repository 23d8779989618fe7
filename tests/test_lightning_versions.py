"""Why pyproject.toml excludes some versions of Lightning, with what they lack."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import lightning
import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningCLI
from packaging.specifiers import SpecifierSet

from fedlightning import FederatedDataModule, FederatedLightningModule
from tests.support.paths import CONFIGS, ROOT

ADMITTED = SpecifierSet(re.search(r'"lightning(>=[^"]+)"', (ROOT / "pyproject.toml").read_text())[1])


@pytest.mark.parametrize(
    ("version", "admitted"),
    [
        ("2.4.0", False),  # a resume within an epoch runs a round too many
        ("2.5.0.post0", False),  # LightningCLI does not take the class of its parsers
        ("2.5.4", False),  # test_evaluation_takes_weights_only fails, and test_validation_by_the_clock
        ("2.5.5", False),  # test_a_cli_of_ones_own_goes_on_from_a_checkpoint fails
        ("2.5.6", False),  # likewise
        ("2.6.0", True),
        ("2.6.2", False),  # malicious: https://github.com/advisories/GHSA-w37p-236h-pfx3
        ("2.6.3", False),  # likewise
        ("2.6.6", True),
    ],
)
def test_bad_versions_are_not_admitted(version, admitted):
    assert (version in ADMITTED) == admitted


def test_the_installed_lightning_is_no_malicious_one():
    assert lightning.__version__ in ADMITTED
    assert not (Path(lightning.__file__).parent / "_runtime").exists()


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_evaluation_takes_weights_only(stage):
    """Lightning 2.5 reads checkpoints as it likes."""
    assert "weights_only" in inspect.signature(getattr(Trainer, stage)).parameters


def test_a_cli_of_ones_own_goes_on_from_a_checkpoint(tmp_path, monkeypatch):
    """Lightning 2.5.5 and 2.5.6 end with "Parsing of ckpt_path hyperparameters failed!" in subclass mode."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py"])

    def run(*more):
        configs = [f"--config={CONFIGS}/classification/{name}.yaml" for name in ("base", "fed_avg")]
        quiet = [f"--trainer.{name}=false" for name in ("enable_progress_bar", "enable_model_summary", "logger")]
        return LightningCLI(
            FederatedLightningModule,
            FederatedDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            save_config_callback=None,
            args=[
                "fit",
                *configs,
                *quiet,
                "--trainer.accelerator=cpu",
                "--seed_everything=0",
                "--data.init_args.seed=0",
                *more,
            ],
        )

    first = run("--trainer.max_steps=2", "--trainer.limit_val_batches=0")
    first.trainer.save_checkpoint(tmp_path / "two.ckpt")
    second = run("--trainer.max_steps=3", "--trainer.limit_val_batches=0", f"--ckpt_path={tmp_path / 'two.ckpt'}")
    assert second.trainer.global_step == 3
    assert repr(second.model.algorithm) == repr(first.model.algorithm)
