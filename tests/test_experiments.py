"""Every experiment's files exist and are valid, without its data."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedlightning.compare.grid import parse_grid
from fedlightning.compare.run import Run, hyper_parameters, prepare

ROOT = Path(__file__).parents[1]
COMPARISONS = [
    path for path in sorted(ROOT.glob("configs/**/*.yaml")) if "algorithms" in (yaml.safe_load(path.read_text()) or {})
]


@pytest.mark.slow
@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_comparison_is_valid(path, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = yaml.safe_load(path.read_text())
    assert set(config) >= {"base", "algorithms", "metric", "output"}
    given = [f"--config={file}" for file in config["base"]]
    if "gan" in path.stem:
        given.append("--model.init_args.classifier_weights=null")  # comes from a run of its own
    given += [f"--{value}" for value in config.get("set", ())]
    known = set()
    for algorithm in config["algorithms"]:
        name, _, file = algorithm.rpartition("=")
        run = Run(name, 0, (*given, f"--config={file}"), tmp_path)
        rounds, done = prepare(run)
        assert rounds > 0
        assert not done
        if "grid" in config:
            known |= hyper_parameters(run).keys()
    assert {name for name in parse_grid(config.get("grid", ())) if "." not in name} <= known


def test_femnist_takes_the_place_of_its_stand_in(tmp_path):
    files = ("femnist_base.yaml", "algorithms/fashion/fiaelt.yaml")
    given = tuple(f"--config={ROOT / 'experiments/fiaelt' / file}" for file in files)
    assert prepare(Run("FIAELT", 0, given, tmp_path)) == (60, False)


def test_there_are_experiments_of_every_paper():
    assert {path.parent.name for path in COMPARISONS} >= {"fedmm", "fedualex", "cdma", "fiaelt", "fedapm"}
