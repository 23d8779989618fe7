"""``fedlightning compare``: results, resuming, mistakes."""

from __future__ import annotations

import csv
import json
from functools import partialmethod
from pathlib import Path

import pytest

from fedlightning.callbacks import LastCheckpoint
from fedlightning.cli import main
from fedlightning.compare import compare
from fedlightning.compare import run as runs
from fedlightning.compare.grid import parse_grid
from fedlightning.compare.results import Curve, Goal, markdown_table

CONFIGS = Path(__file__).parents[2] / "configs" / "quadratic_saddle"
SMALL = ["trainer.max_steps=6", "trainer.val_check_interval=2", "trainer.check_val_every_n_epoch=null"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def table(folder):
    with (Path(folder) / "results.csv").open() as file:
        return list(csv.DictReader(file))


def arguments(**changes):
    return {
        "base": [str(CONFIGS / "base.yaml")],
        "algorithms": [f"FedMM={CONFIGS / 'fedmm.yaml'}", f"FedAvg={CONFIGS / 'fed_avg.yaml'}"],
        "metric": "distance",
        "mode": "min",
        "output": "out",
        "set": SMALL,
        **changes,
    }


def test_results_table_and_figure(capsys):
    compare(**arguments(seeds=[0, 1], target=100.0, test=True))
    rows = table("out")
    assert len(rows) == 2 * 2 * 3
    assert {(row["algorithm"], row["seed"]) for row in rows} == {(a, s) for a in ("FedMM", "FedAvg") for s in "01"}
    assert [float(row["round"]) for row in rows[:3]] == [2, 4, 6]
    assert all(float(row["upload"]) > 0 for row in rows)
    written = Path("out/table.md").read_text()
    assert written.startswith("| algorithm | final distance | best | rounds to 100 | upload to 100 |")
    assert "±" in written
    assert written.strip() in capsys.readouterr().out
    assert Path("out/figure.png").stat().st_size > 10_000
    assert json.loads(Path("out/FedMM/seed-1/done.json").read_text())["seed"] == 1


def test_finished_runs_are_not_run_again(monkeypatch, capsys):
    compare(**arguments())
    before = Path("out/results.csv").read_text()
    monkeypatch.setattr(runs, "execute", None)
    compare(**arguments())
    assert Path("out/results.csv").read_text() == before
    assert "2 of 2 runs are already finished" in capsys.readouterr().out


def test_another_configuration_is_run_anew():
    compare(**arguments(algorithms=[f"A={CONFIGS / 'fed_avg.yaml'}"]))
    before = Path("out/results.csv").read_text()
    changed = [*SMALL, "model.init_args.algorithm.init_args.lr=0.001"]
    compare(**arguments(algorithms=[f"A={CONFIGS / 'fed_avg.yaml'}"], set=changed))
    assert Path("out/results.csv").read_text() != before


def test_an_interrupted_run_goes_on_from_its_checkpoint(monkeypatch):
    monkeypatch.setattr(LastCheckpoint, "__init__", partialmethod(LastCheckpoint.__init__, every_n_seconds=0.0))
    only = {"algorithms": [f"A={CONFIGS / 'fedmm.yaml'}"]}
    compare(**arguments(**only, output="whole"))

    class Pulled(Exception):
        pass

    def report_until_four(run, report):
        def report_or_stop(done):
            report(done)
            if done == 5:
                raise Pulled

        return original(run, report_or_stop)

    from fedlightning.compare import command

    original = command.execute
    monkeypatch.setattr(command, "execute", report_until_four)
    with pytest.raises(Pulled):
        compare(**arguments(**only))
    assert Path("out/A/seed-0/last.ckpt").is_file()
    assert not Path("out/A/seed-0/done.json").exists()
    started = []
    monkeypatch.setattr(
        command, "execute", lambda run, report: original(run, lambda done: (started.append(done), report(done)))
    )
    compare(**arguments(**only))
    assert started[0] == 4

    ours, theirs = (table(folder) for folder in ("out", "whole"))
    for row in (*ours, *theirs):
        del row["seconds"]
    assert ours == theirs


def test_runs_side_by_side_give_the_same_numbers():
    compare(**arguments(output="one"))
    compare(**arguments(output="two", jobs=2))

    numbers = [[(row["algorithm"], row["distance"]) for row in table(folder)] for folder in ("one", "two")]
    assert numbers[0] == numbers[1]


def test_from_the_command_line_and_a_config_file(tmp_path):
    config = tmp_path / "comparison.yaml"
    config.write_text(
        f"base: [{CONFIGS / 'base.yaml'}]\nalgorithms: [{CONFIGS / 'fedmm.yaml'}]\nmetric: distance\nmode: min\n"
    )
    main(["compare", f"--config={config}", "--output=out", "--seeds", "0", "1", "--set", *SMALL])
    assert Path("out/fedmm/seed-1/done.json").is_file()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithms": ["missing.yaml"]}, "No such config: missing.yaml"),
        ({"algorithms": [f"A={CONFIGS / 'fedmm.yaml'}", f"A={CONFIGS / 'fed_avg.yaml'}"]}, "called 'A'"),
        ({"set": ["trainer.max_stpes=3"]}, "(?s)configuration of 'FedMM' is not valid.*max_stpes"),
        ({"set": ["trainer.max_steps=-1"]}, "neither trainer.max_steps nor trainer.max_epochs"),
    ],
)
def test_mistakes_are_named_before_any_run(changes, message):
    with pytest.raises(ValueError, match=message):
        compare(**arguments(**changes))
    assert not list(Path().rglob("*.ckpt"))


@pytest.mark.parametrize(
    "changes", [{"metric": "accuracy"}, {"also": ["accuracy"]}, {"metric": "accuracy", "grid": ["lr=0.1"]}]
)
def test_an_unknown_metric_is_named_after_the_first_validation(changes):
    with pytest.raises(ValueError, match=r"metric='accuracy' is not logged by validation\. Logged: .*distance"):
        compare(**arguments(**changes))
    assert not list(Path().rglob("done.json"))


def test_results_of_another_configuration_are_moved_aside_and_the_end_is_validated():
    compare(**arguments())
    compare(**arguments(set=[*SMALL[1:], "trainer.max_steps=5"]))
    assert {row["round"] for row in table("out")} == {"2.0", "4.0", "5.0"}
    assert len(list(Path("out/FedMM").glob("seed-0.before-1/done.json"))) == 1


def test_a_finished_run_can_still_be_tested(monkeypatch):
    compare(**arguments())
    trained = Path("out/results.csv").read_text()
    compare(**arguments(test=True))
    assert Path("out/results.csv").read_text() == trained
    assert "test_distance" in json.loads(Path("out/FedMM/seed-0/done.json").read_text())["test"]


def test_a_diverging_run_does_not_end_the_others():
    compare(**arguments(set=[*SMALL, "model.init_args.algorithm.init_args.lr=1e6"]))
    assert "| FedAvg | diverged |" in Path("out/table.md").read_text()


def test_a_grid_over_an_unknown_name():
    with pytest.raises(ValueError, match=r"--grid lrr=\.\.\.: no algorithm here has a hyper-parameter of this name"):
        compare(**arguments(grid=["lrr=0.1"]))


def rows(values):
    return tuple({"round": 10.0 * (i + 1), "upload": 6e5 * (i + 1), "acc": v} for i, v in enumerate(values))


def test_table_numbers():
    curves = [Curve("A", (rows([0.2, 0.6, 0.5]), rows([0.5, 0.7, 0.7]))), Curve("B", (rows([0.1, 0.1, 0.2]),))]
    table = markdown_table(curves, Goal("acc", "max", 0.5)).splitlines()
    assert table[2] == "| A | 0.600 ± 0.141 | 0.650 ± 0.071 | 15 | 900 k |"
    assert table[3] == "| B | 0.200 | 0.200 | not reached | not reached |"
    assert Goal("acc", "min", 0.15).cost(rows([0.2, 0.1]), "round") == 20.0


def test_small_numbers_keep_their_digits():
    curve = Curve("A", (rows([2.41e-4]), rows([2.45e-4])))
    (line,) = markdown_table([curve], Goal("acc", "min")).splitlines()[2:]
    assert line == "| A | 2.43e-04 ± 2.83e-06 | 2.43e-04 ± 2.83e-06 |"


def test_grid_search_takes_the_best_values_and_tables_all(capsys):
    compare(
        **arguments(
            algorithms=[f"FedMM={CONFIGS / 'fedmm.yaml'}", f"FedAvg={CONFIGS / 'fed_avg.yaml'}"],
            grid=["lr=0.05,0.0001,1e6", "mu=1.0,2.0"],
            seeds=[0, 1],
        )
    )
    lines = Path("out/grid.md").read_text().splitlines()
    assert len(lines) == 2 + 6 + 3  # FedAvg has no mu
    chosen = [line for line in lines if line.endswith("| chosen |")]
    assert [line.split("|")[1].strip() for line in chosen] == ["FedMM", "FedAvg"]
    assert "lr=0.05" in chosen[1]
    assert sum("diverged" in line for line in lines) == 3
    assert {row["seed"] for row in table("out")} == {"0", "1"}
    assert "FedAvg: lr=0.05" in capsys.readouterr().out
    final = float(table("out")[-4]["distance"])
    assert f"{final:.4g}" in chosen[1]  # the first seed's run is the one that was chosen


def test_grid_where_all_diverge():
    with pytest.raises(ValueError, match=r"every run of 'FedAvg' diverged"):
        compare(**arguments(algorithms=[f"FedAvg={CONFIGS / 'fed_avg.yaml'}"], grid=["lr=1e6,1e7"]))


def test_upload_budget_stops_runs_at_equal_upload():
    compare(**arguments(budget_upload=3 * 8 * 8))  # 8 clients, 8 floats each, three rounds
    last = {row["algorithm"]: row for row in table("out")}
    assert {row["round"] for row in last.values()} == {"3.0"}
    assert all(float(row["upload"]) == 192 for row in last.values())


def test_further_metrics_and_logarithmic_axes():
    compare(**arguments(also=["operator_norm"], log_scale=True))
    assert Path("out/table.md").read_text().startswith("| algorithm | final distance | best | final operator_norm |")


@pytest.mark.parametrize("entry", ["lr", "lr=", "=1,2"])
def test_grid_entries_are_checked(entry):
    with pytest.raises(ValueError, match=rf"--grid {entry}: expected name=value,value"):
        compare(**arguments(grid=[entry]))


def test_grid_values_may_be_pairs():
    grid = parse_grid(["lr=[0.1,0.3],0.2,[1, 2]", "mu=1"])
    assert grid == {"lr": ["[0.1,0.3]", "0.2", "[1, 2]"], "mu": ["1"]}
    compare(**arguments(algorithms=[f"FedMM={CONFIGS / 'fedmm.yaml'}"], grid=["lr=[0.05,0.02],0.0001"]))
    assert "lr=[0.05,0.02] |" in Path("out/grid.md").read_text()
