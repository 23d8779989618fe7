"""The API pages name all that packages export."""

from __future__ import annotations

import importlib

import pytest

pytest.importorskip("griffe", reason="needs the extra docs")

from website.api import PACKAGES, definitions, page


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "fedlightning.participation"])
def test_everything_exported_is_somewhere(package):
    exported = {name for name in importlib.import_module(package).__all__ if not name.startswith("__")}
    everywhere = {name for names in definitions().values() for name in names}
    assert exported <= everywhere


def test_nothing_is_on_two_pages():
    paths = [path for names in definitions().values() for path in names.values()]
    assert len(paths) == len(set(paths))


def test_algorithms_are_on_pages_of_their_own():
    text = page("fedlightning.algorithms")
    assert "::: fedlightning.algorithms.base.Phase" in text
    assert "FedMM" not in text
