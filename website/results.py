"""Where an algorithm stands in configs, measurements and results of papers."""

from __future__ import annotations

import csv
import re
from functools import cache

from website.sources import PAPERS, ROOT

REACHED = ROOT / "docs" / "reached.csv"
"""What every algorithm reaches with its config; ``benchmarks/reached.py`` writes it."""


@cache
def aliases() -> dict[str, str]:
    """Return class by alias, as assigned in ``fedlightning/algorithms``."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "fedlightning/algorithms").glob("*.py")))
    return dict(re.findall(r"^(\w+) = ([A-Z]\w+)$", text, re.MULTILINE))


def algorithm_of(text: str) -> str:
    """Return the class that a config names, or an empty string."""
    found = re.search(r"fedlightning\.algorithms\.(\w+)", text)
    return aliases().get(found[1], found[1]) if found else ""


def configs_of(name: str) -> list[tuple[str, str]]:
    """Return folder and name of the files in ``configs/`` that use an algorithm."""
    files = sorted((ROOT / "configs").glob("*/*.yaml"))
    return [(file.parent.name, file.stem) for file in files if algorithm_of(file.read_text()) == name]


def papers_of(name: str) -> list[str]:
    """Return the papers whose comparisons use an algorithm."""
    return [
        paper
        for paper in PAPERS
        if any(algorithm_of(file.read_text()) == name for file in (ROOT / "experiments" / paper).rglob("*.yaml"))
    ]


@cache
def measured() -> list[dict[str, str]]:
    """Return the rows of :data:`REACHED`."""
    if not REACHED.exists():
        return []
    with REACHED.open(newline="") as file:
        return list(csv.DictReader(file))


def paper_name(paper: str) -> str:
    """Return the name of the method that a paper proposes."""
    return re.search(r"^# (.+)$", (ROOT / "experiments" / paper / "README.md").read_text(), re.MULTILINE)[1]  # type: ignore[index]


def reached(name: str) -> list[str]:
    """Return the section on what an algorithm reaches."""
    lines = ["## What it reaches", ""]
    rows = [row for row in measured() if (row["task"], row["config"]) in configs_of(name)]
    if rows:
        lines += [
            "With the configs above: the last value, mean ± standard deviation over seeds 0 to 2. Step sizes were not",
            "searched for, so these figures say that a config works, not which method is better.",
            "",
            "| config | rounds | metric | value |",
            "| --- | ---: | --- | ---: |",
        ]
        lines += ["| `{task}/{config}` | {rounds} | `{metric}` | {value} |".format(**row) for row in rows]
        lines += ["", "`python benchmarks/reached.py` measures them again.", ""]
    papers = ", ".join(f"[{paper_name(paper)}](../results/{paper}.md)" for paper in papers_of(name))
    return [*lines, f"Compared on the results pages of: {papers}.", ""] if papers else lines
