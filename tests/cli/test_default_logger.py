"""The logger of runs that choose none."""

from __future__ import annotations

from importlib import import_module

import pytest
from jsonargparse import ArgumentParser
from lightning.pytorch.loggers import Logger

from fedlightning.cli import default_logger
from fedlightning.cli.default_logger import tensorboard_is_installed


@pytest.mark.parametrize(("installed", "name"), [(True, "TensorBoardLogger"), (False, "CSVLogger")])
def test_the_logger_can_be_made_from_its_configuration(installed, name, monkeypatch, tmp_path):
    monkeypatch.setattr(default_logger, "tensorboard_is_installed", lambda: installed)
    monkeypatch.chdir(tmp_path)
    parser = ArgumentParser()
    parser.add_argument("--logger", type=Logger, default=default_logger.default_logger())
    logger = parser.instantiate_classes(parser.parse_args([])).logger
    assert type(logger).__name__ == name
    assert logger.save_dir == "runs"
    assert logger.log_dir.replace("\\", "/") == "runs/version_0"


def test_what_is_installed_is_seen_without_an_import(monkeypatch):
    assert tensorboard_is_installed()
    monkeypatch.setattr(default_logger, "find_spec", {"tensorboard": None}.get)
    assert not tensorboard_is_installed()
    assert import_module("tensorboard")
