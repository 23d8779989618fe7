"""The runs of a comparison: which config files and which values belong to each algorithm."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlightning.cli.one_seed import LARGEST
from fedlightning.compare.arguments import Mode, Report
from fedlightning.compare.grid import Values, label, split_outside_brackets
from fedlightning.compare.run import ALGORITHM, Run, hyper_parameters
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.misspelt import did_you_mean


@dataclass(frozen=True)
class Algorithm:
    """Represents one algorithm of a comparison.

    Attributes:
        name: As shown in tables and legends.
        path: Its config file.
        values: What it changes in that file, ``name=value`` each, with names as in ``--grid``.
    """

    name: str
    path: str
    values: tuple[str, ...] = ()

    @classmethod
    def parse(cls, entry: str) -> Algorithm:
        """Parse an entry of ``--algorithms``.

        Args:
            entry: ``path``, ``Name=path`` or ``Name=path name=value ...``. A value may be a pair or a mapping
                with spaces in it. Values need a path that ends in ``.yaml`` or ``.yml``.

        Raises:
            ValueError: If what follows the path is not ``name=value``, a bracket is not closed, or a name comes twice.
        """
        followed = re.fullmatch(r"(.+?\.ya?ml)\s+(.+)", entry, re.DOTALL)
        head, rest = followed.groups() if followed else (entry, "")
        values = tuple(filter(None, split_outside_brackets(rest, " ")))
        for value in values:
            name, _, given = value.partition("=")
            if not name or not given:
                raise InvalidValueError(f"--algorithms {entry}: expected name=value after the path, got '{value}'.")
            if given.count("[") != given.count("]") or given.count("{") != given.count("}"):
                raise InvalidValueError(f"--algorithms {entry}: a bracket is not closed.")
        names = [value.partition("=")[0] for value in values]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InvalidValueError(f"--algorithms {entry}: '{twice}' is given twice.")
        name, path = head.rsplit("=", 1) if "=" in head else (Path(head).stem, head)
        return cls(name, path, values)


def parse_algorithms(entries: Sequence[str]) -> dict[str, Algorithm]:
    """Parse the entries of ``--algorithms``, and return the algorithms by name.

    Raises:
        ValueError: If an entry is not valid, or two algorithms have one name.
    """
    named: dict[str, Algorithm] = {}
    for algorithm in map(Algorithm.parse, entries):
        if file_name(algorithm.name) in map(file_name, named):
            raise InvalidValueError(
                f"Two algorithms are called '{algorithm.name}'. Name them: --algorithms A=path B=path."
            )
        named[algorithm.name] = algorithm
    return named


def require_seeds(seeds: Sequence[int], values: Sequence[str]) -> None:
    """Make sure that every run has one seed, which generators take.

    Args:
        seeds: Of the runs.
        values: Of all runs, ``key=value`` each, where the seed of a run would replace another one.

    Raises:
        ValueError: If there is no seed, one comes twice or is out of range, or the values have one.
    """
    if not seeds or len({*seeds}) < len(seeds):
        raise InvalidValueError(f"--seeds {' '.join(map(str, seeds))}: expected at least one, each once.")
    if wrong := [seed for seed in seeds if not 0 <= seed <= LARGEST]:
        raise InvalidValueError(f"--seeds {wrong[0]}: expected seeds from 0 to {LARGEST}.")
    for value in values:
        if value.partition("=")[0] == "seed_everything":
            raise InvalidValueError(f"--set {value}: every run has a seed of --seeds. Give it there.")


def file_name(*parts: str) -> str:
    """Return a folder name for an algorithm or for one of its grid points."""
    return re.sub(r"[^\w.-]+", "_", "_".join(part.replace(f"{ALGORITHM}.", "") for part in parts))


@dataclass(frozen=True)
class Plan:
    """Holds what all runs of a comparison have in common.

    Attributes:
        algorithms: Arguments of ``fedlightning fit`` by name of the algorithm, before those of all runs.
        overrides: Arguments of all runs; they win over those of an algorithm.
        test: Whether to test the models of the reported rounds.
        budget_upload: Stop after the round in which so many floats have been uploaded; None for no such limit.
        metric: Metric of the comparison.
        comparison: Folder of the comparison.
        report: The round that is reported.
        mode: Whether more or less of the metric is better.
    """

    algorithms: Mapping[str, tuple[str, ...]]
    overrides: tuple[str, ...] = ()
    test: bool = False
    budget_upload: float | None = None
    metric: str = ""
    comparison: Path | None = None
    report: Report = "last"
    mode: Mode = "max"

    def run(self, name: str, seed: int, values: Values, folder: Path, searching: bool = False) -> Run:
        """Return one run of an algorithm.

        Args:
            name: Of the algorithm.
            seed: Of everything random.
            values: Of this run alone, ``key=value`` each.
            folder: Results go to a folder in it.
            searching: Whether this is a run of a search, which tests nothing.
        """
        return Run(
            name,
            seed,
            (*self.algorithms[name], *self.overrides, *(f"--{value}" for value in values)),
            folder / f"seed-{seed}",
            self.test and not searching,
            self.budget_upload,
            self.metric,
            label(values),
            comparison=self.comparison,
            report=self.report,
            mode=self.mode,
        )


def algorithm_arguments(
    base: Sequence[str], algorithms: Mapping[str, Algorithm], overrides: Sequence[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return the arguments of ``fedlightning fit`` per algorithm: all configs, then the algorithm's own values.

    Args:
        base: Config files of task, data and trainer.
        algorithms: What to compare, by name.
        overrides: Further arguments of all runs, without which a config may not be valid.

    Raises:
        ValueError: If a config is missing or not valid, or an algorithm has no hyper-parameter of a value's name.
    """
    files = [*base, *(algorithm.path for algorithm in algorithms.values())]
    if missing := [file for file in files if not Path(file).is_file()]:
        raise InvalidValueError(f"No such config: {missing[0]}.")
    keys: dict[str, dict[str, str]] = {}  # by config: reading one takes a third of a second
    arguments = {}
    for name, algorithm in algorithms.items():
        configs = tuple(f"--config={file}" for file in (*base, algorithm.path))
        if algorithm.path not in keys and any(map(_is_short, algorithm.values)):
            keys[algorithm.path] = hyper_parameters(Run(name, 0, (*configs, *overrides), Path()))
        arguments[name] = (*configs, *_own(algorithm, keys.get(algorithm.path, {})))
    return arguments


def _is_short(value: str) -> bool:
    return "." not in value.partition("=")[0]


def _own(algorithm: Algorithm, known: Mapping[str, str]) -> list[str]:
    """Return an algorithm's own values as arguments of ``fedlightning fit``."""
    arguments = []
    for value in algorithm.values:
        name, _, given = value.partition("=")
        if _is_short(value) and name not in known:
            raise InvalidValueError(
                f"--algorithms {algorithm.name}={algorithm.path} {value}: it has no hyper-parameter '{name}'."
                f"{did_you_mean(name, known)} Known: {', '.join(sorted(known))}."
            )
        arguments.append(f"--{known.get(name, name)}={given}")
    return arguments
