"""Flower accepts the app, which holds no code."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import tomli
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

from fedlightning.flower.deployment.app_folder import CHANGES, CHECKPOINT, FOLDER, app_toml


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's
def test_flower_takes_it_without_a_complaint(tmp_path):
    (tmp_path / "pyproject.toml").write_text(app_toml("Digits-2", "1.41.0"))
    config, warnings = load_and_validate(tmp_path / "pyproject.toml", check_module=False)
    assert warnings == []
    assert config["project"]["dependencies"] == []
    assert set(config["tool"]["flwr"]["app"]["config"]) == {FOLDER, CHECKPOINT, CHANGES}
    assert len(build_fab_from_disk(tmp_path)) < 2000


def test_components_are_modules_of_this_package():
    components = tomli.loads(app_toml("digits", "1.41.0"))["tool"]["flwr"]["app"]["components"]
    assert all(each.startswith("fedlightning.flower.") and each.endswith(":app") for each in components.values())
