"""The figures of how-tos and benchmarks are drawn from the numbers of their tables."""

from __future__ import annotations

import csv
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def rows_of(name):
    return list(csv.DictReader((DOCS / "figures" / name).read_text().splitlines()))


def cells_of(page, first, folder="how-to"):
    """The lines of the tables of a page whose first heading is given, with their headings."""
    headings = None
    for line in (DOCS / folder / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else None
        if cells is None:
            headings = None
        elif headings is not None and not cells[0].startswith("-"):
            yield dict(zip(headings, cells, strict=True))
        elif cells[0] == first:
            headings = cells


def percent(accuracy):
    return "diverges" if accuracy == "nan" else f"{100 * float(accuracy):.1f}"


def test_robust_means():
    printed = [
        (line["attack"], mean, value)
        for line in cells_of("robust-means.md", "attack")
        for mean, value in line.items()
        if mean != "attack"
    ]
    assert printed == [(row["attack"], row["mean"], percent(row["accuracy"])) for row in rows_of("robust_means.csv")]
    assert len(printed) == 8 * 7 * 7


def test_private_mnist():
    drawn = {
        (row["model"], row["clipped"], row["epsilon"]): percent(row["accuracy"]) for row in rows_of("private_mnist.csv")
    }
    printed = {}
    for line in cells_of("privacy.md", "model"):
        printed[line["model"], "", ""] = line["no privacy"]
        for epsilon in ("8", "2", "1"):
            printed[line["model"], line["clipped"], epsilon] = line[f"epsilon {epsilon}"]
    assert {key: value.removesuffix(" %") for key, value in printed.items() if value != "not run"} == drawn


def test_conformance():
    printed = [
        (line["framework"], job, cell)
        for line in cells_of("benchmarks.md", "framework", folder="")
        for job, cell in line.items()
        if job != "framework"
    ]
    assert printed == [(row["framework"], row["job"], row["cell"]) for row in rows_of("conformance.csv")]
    assert len(printed) == 10 * 9


def test_tables_of_others():
    methods = ("FedAvg", "FedProx", "SCAFFOLD", "FedNova")
    printed = [
        (line["data"], line["split"], method, *line[method].split(" / "))
        for line in cells_of("benchmarks.md", "data", folder="")
        for method in methods
    ]
    assert printed == [tuple(row.values()) for row in rows_of("tables.csv")]
    assert len(printed) == 17 * 4
