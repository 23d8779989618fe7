"""Lazy packages have all their names, and import them when they are asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from tests.support.paths import ROOT

LAZY = ("callbacks", "compare", "data", "metrics", "plotting", "tasks")


@pytest.mark.parametrize("package", LAZY)
def test_lazy_packages_have_all_their_names(package):
    module = import_module(f"fedlightning.{package}")
    for name in module.__all__:
        assert name in dir(module)
        assert getattr(module, name).__name__ == name
    with pytest.raises(AttributeError, match=f"module 'fedlightning.{package}' has no attribute 'Nothing'"):
        module.Nothing  # noqa: B018


def test_subpackages_are_reached_without_an_import_of_their_own():
    code = "import fedlightning; print(fedlightning.algorithms.FedAvg(lr=0.1).lr, fedlightning.participation.Full())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("0.1 ")
