"""A package that is not installed is named together with the extra that installs it."""

from __future__ import annotations

import json

import pytest

from fedlightning import FedlightningError
from fedlightning.core import requirements
from fedlightning.core.requirements import imported
from tests.support.paths import ROOT


@pytest.mark.parametrize("package", requirements.EXTRAS)
def test_the_extra_is_named(package, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(FedlightningError, match=rf"'{package}'.* pip install 'fedlightning\[hf\]'") as caught:
        imported(package)
    assert isinstance(caught.value, ModuleNotFoundError)
    assert caught.value.name == package


def test_the_extras_install_the_packages():
    project = (ROOT / "pyproject.toml").read_text()
    for package, extra in requirements.EXTRAS.items():
        listed = project.split(f"\n{extra} = [\n")[1].split("]\n")[0]
        assert f'"{package}>=' in listed


def test_what_is_installed_is_imported(monkeypatch):
    monkeypatch.setitem(requirements.EXTRAS, "json", "plain")
    assert imported("json") is json


def test_what_an_installed_package_misses_is_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there") as caught:
        imported("half_installed")
    assert not isinstance(caught.value, FedlightningError)
