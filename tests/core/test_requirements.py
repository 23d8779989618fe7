"""Packages of extras: errors that name the extra, and what pyproject.toml says of them."""

from __future__ import annotations

import ast
import re
import sys

import pytest

from fedlightning import FedlightningError
from fedlightning.core import requirements
from fedlightning.core.requirements import EXTRAS, imported
from tests.support.paths import ROOT

PROJECT = (ROOT / "pyproject.toml").read_text()
DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow", "dp_accounting": "dp-accounting"}


def listed(table):
    """Names of the distributions in a list of pyproject.toml."""
    table = re.search(rf"^{table} = \[\n(.*?)^\]", PROJECT, re.DOTALL | re.MULTILINE)[1]
    return {re.match(r"[\w-]+", line)[0] for line in re.findall(r'^ *"([^"]+)"', table, re.MULTILINE)}


def test_a_package_that_is_installed_is_imported():
    assert imported("sklearn.datasets") is sys.modules["sklearn.datasets"]


@pytest.mark.parametrize(("module", "extra"), [("torchvision.datasets", "vision"), ("sklearn", "data")])
def test_a_missing_package_is_named_with_its_extra(module, extra, monkeypatch):
    package = module.partition(".")[0]

    def missing(name):
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(requirements, "import_module", missing)
    with pytest.raises(FedlightningError, match=rf"'{package}'.*pip install 'fedlightning\[{extra}\]'") as caught:
        imported(module)
    assert isinstance(caught.value, ModuleNotFoundError)
    assert caught.value.name == package


def test_what_a_package_itself_misses_is_left_as_it_is():
    with pytest.raises(ModuleNotFoundError, match=r"sklearn\.nothing") as caught:
        imported("sklearn.nothing")
    assert not isinstance(caught.value, FedlightningError)


@pytest.mark.parametrize(("package", "extra"), EXTRAS.items())
def test_extras_have_the_packages_that_errors_say(package, extra):
    assert DISTRIBUTIONS.get(package, package) in listed(extra)
    assert DISTRIBUTIONS.get(package, package) not in listed("dependencies")


def test_everybody_who_develops_has_all_extras_but_language_models_and_flower():
    parts = re.search(r'^all = \["fedlightning\[(.*)\]"\]', PROJECT, re.MULTILINE)[1].split(",")
    assert {*EXTRAS.values()} - {"hf", "flower", "privacy"} == {*parts}
    assert '"fedlightning[all,privacy]"' in PROJECT  # privacy holds attrs below 24, so users choose it by itself


def unguarded(tree):
    """Import statements of a module that are carried out, so not those for type checkers."""
    guarded = {
        each
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for each in ast.walk(node)
    }
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) and node not in guarded]


def test_no_module_imports_a_package_of_an_extra_by_a_statement():
    """But for fedlightning.flower, which cannot be imported without Flower."""
    found = []
    for path in sorted((ROOT / "fedlightning").rglob("*.py")):
        refused = {*EXTRAS} - ({"flwr"} if path.parent.name == "flower" else set())
        for node in unguarded(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"{path.name}:{node.lineno}: {name}" for name in names if name.partition(".")[0] in refused]
    assert found == [], "use fedlightning.core.requirements.imported"
