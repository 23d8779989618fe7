"""What a ``ClientValuesFile`` has written."""

from __future__ import annotations

import csv
from collections import defaultdict


def rows(path):
    """The rows of a file by round and stage."""
    found = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            found[int(row["round"]), row["stage"]].append(row)
    return dict(found)


def numbers(row):
    return {name: float(value) for name, value in row.items() if value and name != "stage"}
