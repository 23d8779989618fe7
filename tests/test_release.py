"""What a release consists of says the same everywhere, and CI tries what is promised."""

from __future__ import annotations

import re
from fnmatch import fnmatch

import pytest
import yaml

import fedlightning
from tests.support.paths import ROOT

PROJECT = (ROOT / "pyproject.toml").read_text()


def test_citation_and_changelog_know_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == fedlightning.__version__
    release, date = re.search(
        r"^## (\d+\.\d+\.\d+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    ).groups()
    assert (release, date) == (fedlightning.__version__, citation["date-released"])
    assert citation["license"] == re.search(r'^license = "(.*)"', PROJECT, re.MULTILINE)[1]


def test_the_suite_runs_on_three_systems_and_all_pythons():
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    matrix = workflow["jobs"]["tests"]["strategy"]["matrix"]
    assert [system.partition("-")[0] for system in matrix["os"]] == ["ubuntu", "macos", "windows"]
    assert matrix["python"] == re.findall(r"Python :: (3\.\d+)", PROJECT)


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_files_for_github_are_yaml(path):
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_the_sdist_has_every_file_of_pinned_versions_that_the_makefile_installs_from():
    included = re.search(r"^include = \[(.*)\]$", PROJECT, re.MULTILINE)[1]
    patterns = [pattern.lstrip("/") for pattern in re.findall(r'"([^"]+)"', included)]
    needed = set(re.findall(r"constraints[\w-]*\.txt", (ROOT / "Makefile").read_text()))
    assert needed == {"constraints.txt", "constraints-flower.txt"}
    assert not [name for name in needed if not any(fnmatch(name, pattern) for pattern in patterns)]
