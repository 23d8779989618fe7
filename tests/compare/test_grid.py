"""Searches over a grid: what is searched, chosen and tabled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from fedlightning.compare import command, compare
from fedlightning.compare import run as runs
from fedlightning.compare.grid import parse_grid, untuned
from fedlightning.compare.run import ALGORITHM
from tests.support.comparisons import SADDLE, SMALL, TOO_FEW, WILD, arguments, table
from tests.support.paths import ROOT


def test_a_grid_over_an_unknown_name():
    known = r"FedMM: .*lr, .*mu; FedAvg: local_clip, local_optimizer, lr\.$"
    with pytest.raises(ValueError, match=rf"--grid lrr=\.\.\.: no .* 'lrr'\. Did you mean 'lr'\? {known}"):
        compare(**arguments(grid=["lrr=0.1"]))


@pytest.mark.slow
def test_grid_search_takes_the_best_values_and_tables_all(capsys):
    compare(
        **arguments(
            algorithms=[f"FedMM={SADDLE / 'fed_mm.yaml'}", f"FedAvg={SADDLE / 'fed_avg.yaml'}"],
            grid=[f"lr=0.05,0.0001,{WILD}", "mu=1.0,2.0"],
            seeds=[0, 1],
        )
    )
    lines = Path("out/grid.md").read_text().splitlines()
    assert len(lines) == 2 + 6 + 3  # FedAvg has no mu
    chosen = [line for line in lines if line.endswith("| chosen |")]
    assert [line.split("|")[1].strip() for line in chosen] == ["FedMM", "FedAvg"]
    assert "lr=0.05" in chosen[1]
    assert sum("diverged" in line for line in lines) == 3
    assert Path("out/table.md").read_text().endswith(" Not tuned by all of the grid: FedAvg has no mu.\n")
    assert {row["seed"] for row in table("out")} == {"0", "1"}
    assert "FedAvg: lr=0.05" in capsys.readouterr().out
    final = float(table("out")[-4]["distance"])
    assert f"{final:.4g}" in chosen[1]  # the first seed's run is the one that was chosen


def test_algorithms_without_a_name_of_the_grid_are_told_of():
    grid = parse_grid(["lr=0.1", "solver.momentum=0.5", "mu=[1=2]"])
    chosen = {"A": ("a.lr=0.1", "b.mu=1"), "B": ("b.lr=0.1",), "C": ("solver.momentum=0.5",)}
    assert untuned(grid, chosen) == "Not tuned by all of the grid: B has no mu; C has no lr, mu."
    assert untuned(grid, {"A": chosen["A"]}) == untuned({}, {"A": ()}) == ""


def test_grid_where_all_diverge():
    with pytest.raises(ValueError, match=r"--grid: every run diverged, see out/grid\.md"):
        compare(**arguments(algorithms=[f"FedAvg={SADDLE / 'fed_avg.yaml'}"], grid=["lr=1e60,1e70"]))
    assert Path("out/grid.md").read_text().count("| diverged |") == 2


def test_an_algorithm_whose_grid_diverges_does_not_end_the_others(capsys):
    algorithm = f"{{class_path: fedlightning.algorithms.FedAvg, init_args: {{lr: {WILD}}}}}"
    Path("wild.yaml").write_text(f"model: {{init_args: {{algorithm: {algorithm}}}}}")
    both = ["Wild=wild.yaml", f"FedMM={SADDLE / 'fed_mm.yaml'}"]
    compare(**arguments(algorithms=both, seeds=[0, 1], grid=["mu=1.0,2.0"]))
    written = Path("out/table.md").read_text()
    assert "| Wild | diverged | - |" in written
    assert "| FedMM | diverged" not in written
    assert "Wild: every run diverged" in capsys.readouterr().out
    assert "| Wild |  | diverged | 1 |  |" in Path("out/grid.md").read_text()
    assert not Path("out/Wild").exists()


def test_runs_of_a_grid_that_warn_are_counted_and_told_of(capsys):
    both = [f"{name}={SADDLE / file}" for name, file in (("FedMM", "fed_mm.yaml"), ("FedAvg", "fed_avg.yaml"))]
    compare(**arguments(algorithms=both, set=[*SMALL, TOO_FEW], grid=["mu=1.0,2.0"]))
    counts = [line.split("|")[4].strip() for line in Path("out/grid.md").read_text().splitlines()[2:]]
    assert counts == ["6", "6", "6"]
    first = "out/grid/FedMM_mu_1.0/seed-0/warnings.json"
    assert f"3 of 3 runs of the grid warned: out/grid.md says which, and {first} what." in capsys.readouterr().out


@pytest.mark.slow
def test_the_chosen_grid_point_is_not_run_again(monkeypatch):
    executed = []
    monkeypatch.setattr(
        command, "execute", lambda run, *rest: (executed.append(str(run.folder)), runs.execute(run, *rest))
    )
    compare(**arguments(grid=["lr=0.05,0.0001"], seeds=[0, 1], test=True))
    assert sum("grid" in folder for folder in executed) == 4
    assert sorted(folder for folder in executed if "grid" not in folder) == [
        f"out/{name}/seed-{seed}" for name in ("FedAvg", "FedMM") for seed in (0, 1)
    ]  # with --test, the first seed's is only tested
    assert all(json.loads(path.read_text())["test"] for path in Path("out").glob("Fed*/*/done.json"))
    executed.clear()
    compare(**arguments(grid=["lr=0.05,0.0001"], seeds=[0, 1], output="again"))
    assert [folder for folder in executed if "grid" not in folder] == ["again/FedMM/seed-1", "again/FedAvg/seed-1"]
    ours, theirs = (table(folder) for folder in ("out", "again"))
    for row in (*ours, *theirs):
        del row["seconds"]
    assert ours == theirs
    alone = [f"FedMM={SADDLE / 'fed_mm.yaml'}"]
    compare(**arguments(algorithms=alone, output="alone", set=[*SMALL, f"{ALGORITHM}.lr=0.05"]))
    assert [row["distance"] for row in table("alone")] == [row["distance"] for row in theirs[:3]]


def test_a_grid_reaches_the_step_size_of_a_local_solver():
    splitting = f"FedPD={ROOT / 'experiments/fiaelt/algorithms/fed_pd.yaml'}"
    averaging = f"FedAvg={SADDLE / 'fed_avg.yaml'}"
    compare(**arguments(algorithms=[splitting, averaging], grid=["lr=0.05,0.01", "eta=0.5"]))
    assert Path("out/grid.md").read_text().count("lr=") == 4
    assert {path.name for path in Path("out/grid").iterdir()} == {
        "FedAvg_lr_0.05", "FedAvg_lr_0.01",
        "FedPD_solver.init_args.lr_0.05_eta_0.5", "FedPD_solver.init_args.lr_0.01_eta_0.5",
    }  # fmt: skip
    steps = {
        yaml.safe_load((path / "seed-0/config.yaml").read_text())["model"]["init_args"]["algorithm"]["init_args"][
            "solver"
        ]["init_args"]["lr"]
        for path in Path("out/grid").glob("FedPD*")
    }
    assert steps == {0.05, 0.01}


def test_without_a_terminal_every_finished_run_is_told(capsys):
    compare(**arguments(algorithms=[f"FedAvg={SADDLE / 'fed_avg.yaml'}"], grid=[f"lr=0.05,{WILD}"]))
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("FedAvg, seed 0, lr=0.05: distance=") for line in lines)
    assert f"FedAvg, seed 0, lr={WILD}: diverged" in lines


@pytest.mark.parametrize("entry", ["lr", "lr=", "=1,2"])
def test_grid_entries_are_checked(entry):
    with pytest.raises(ValueError, match=rf"--grid {entry}: expected name=value,value"):
        compare(**arguments(grid=[entry]))


def test_grid_values_may_be_pairs():
    grid = parse_grid(["lr=[0.1,0.3],0.2,[1, 2]", "mu=1"])
    assert grid == {"lr": ["[0.1,0.3]", "0.2", "[1, 2]"], "mu": ["1"]}
    assert parse_grid(["lr={x: 0.1, y: 0.2},0.3"]) == {"lr": ["{x: 0.1, y: 0.2}", "0.3"]}
    compare(**arguments(algorithms=[f"FedMM={SADDLE / 'fed_mm.yaml'}"], grid=["lr=[0.05,0.02],{x: 0.04, y: 0.03}"]))
    assert "lr=[0.05,0.02] |" in Path("out/grid.md").read_text()
    assert "lr={x: 0.04, y: 0.03} |" in Path("out/grid.md").read_text()


def test_grid_values_may_be_schedules():
    falling = "{class_path: fedlightning.schedules.Exponential, init_args: {start: 0.05, gamma: 0.9}}"
    wild = f"{{class_path: fedlightning.schedules.Milestones, init_args: {{values: {{0: 0.01, 1: {WILD}}}}}}}"
    compare(**arguments(algorithms=[f"FedAvg={SADDLE / 'fed_avg.yaml'}"], grid=[f"lr={wild},{falling}"]))
    rows = [line for line in Path("out/grid.md").read_text().splitlines() if line.startswith("| FedAvg")]
    assert ["diverged" in row for row in rows] == [True, False]
    assert rows[1].startswith(f"| FedAvg | lr={falling} |")
    assert rows[1].endswith("| chosen |")
    (made,) = (yaml.safe_load(path.read_text()) for path in Path("out/FedAvg").rglob("config.yaml"))
    assert made["model"]["init_args"]["algorithm"]["init_args"]["lr"]["init_args"]["gamma"] == 0.9
