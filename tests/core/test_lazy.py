"""Lazy packages have all their names, and import them when they are asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from tests.support.paths import ROOT

LAZY = (
    "algorithms",
    "callbacks",
    "channel",
    "channel.compression",
    "channel.robust",
    "compare",
    "data",
    "metrics",
    "plotting",
    "tasks",
)


@pytest.mark.parametrize("package", LAZY)
def test_lazy_packages_have_all_their_names(package):
    module = import_module(f"fedlightning.{package}")
    for name in module.__all__:
        assert name in dir(module)
        value = getattr(module, name)
        if isinstance(value, type):
            assert getattr(module, value.__name__) is value  # an alias has its first name as well
    with pytest.raises(AttributeError, match=f"module 'fedlightning.{package}' has no attribute 'Nothing'"):
        module.Nothing  # noqa: B018


def test_subpackages_are_reached_without_an_import_of_their_own():
    code = "import fedlightning; print(fedlightning.algorithms.FedAvg(lr=0.1).lr, fedlightning.participation.Full())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("0.1 ")


def test_a_run_imports_the_algorithms_and_channels_that_it_uses_alone():
    code = "import sys; from fedlightning.algorithms import FedMM; from fedlightning.tasks import Classification\n"
    code += "print(*(m.rsplit('.')[-1] for m in sys.modules if m.startswith('fedlightning.')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "fed_mm" in done.stdout.split()
    assert not {"fed_dyn", "scaffold", "krum", "top_k"} & set(done.stdout.split())
