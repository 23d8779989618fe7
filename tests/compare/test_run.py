"""One run of a comparison: stopped, resumed, finished, out of its budget."""

from __future__ import annotations

import json
from functools import partialmethod
from pathlib import Path

import pytest
import torch

from fedlightning.callbacks import LastCheckpoint
from fedlightning.cli import main
from fedlightning.compare import command, compare
from fedlightning.compare import run as runs
from tests.support.comparisons import SADDLE, SMALL, TOO_FEW, WILD, arguments, command_line, table
from tests.support.paths import CONFIGS


def test_finished_runs_are_not_run_again(monkeypatch, capsys):
    compare(**arguments())
    before = Path("out/results.csv").read_text()
    monkeypatch.setattr(runs, "execute", None)
    compare(**arguments())
    assert Path("out/results.csv").read_text() == before
    assert "2 of 2 runs are already finished" in capsys.readouterr().out


def test_runs_share_a_parser_and_keep_hyper_parameters_of_their_own():
    compare(**arguments(set=["trainer.max_steps=1", *SMALL[1:]]))
    stored = [torch.load(f"out/{name}/seed-0/last.ckpt", weights_only=True) for name in ("FedMM", "FedAvg")]
    used = [each["hyper_parameters"]["algorithm"]["class_path"].rpartition(".")[2] for each in stored]
    assert used == ["FedMM", "FedAvg"]


def test_another_configuration_is_run_anew():
    compare(**arguments(algorithms=[f"A={SADDLE / 'fed_avg.yaml'}"]))
    before = Path("out/results.csv").read_text()
    changed = [*SMALL, "model.init_args.algorithm.init_args.lr=0.001"]
    compare(**arguments(algorithms=[f"A={SADDLE / 'fed_avg.yaml'}"], set=changed))
    assert Path("out/results.csv").read_text() != before


def test_another_partition_in_the_same_file_is_run_anew(monkeypatch, capsys):
    """The configuration says the file's name alone."""
    file = Path("split.json")
    file.write_text(json.dumps([[0, 1, 2, 3], [4, 5, 6, 7]]))
    shared = {
        "base": [str(CONFIGS / "classification" / "base.yaml")],
        "algorithms": [f"A={CONFIGS / 'classification' / 'fed_avg.yaml'}"],
        "metric": "val_loss",
        "mode": "min",
        "set": [
            "trainer.max_steps=1",
            "data.init_args.local_epochs=1",
            f"data.init_args.partitioner={{class_path: fedlightning.data.FromFile, init_args: {{path: {file}}}}}",
        ],
    }
    compare(**arguments(**shared))
    compare(**arguments(**shared))
    assert "1 of 1 runs are already finished" in capsys.readouterr().out
    before = table("out")
    file.write_text(json.dumps([[8, 9, 10, 11], [12, 13, 14, 15]]))
    compare(**arguments(**shared))
    assert "already finished" not in capsys.readouterr().out
    assert table("out")[-1]["val_loss"] != before[-1]["val_loss"]
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"split\.json"):
        compare(**arguments(**shared))


def test_an_interrupted_run_goes_on_from_its_checkpoint(monkeypatch):
    monkeypatch.setattr(LastCheckpoint, "__init__", partialmethod(LastCheckpoint.__init__, every_n_seconds=0.0))
    only = {"algorithms": [f"A={SADDLE / 'fed_mm.yaml'}"]}
    compare(**arguments(**only, output="whole"))

    class Pulled(Exception):
        pass

    def report_until_four(run, report, interrupted):
        def report_or_stop(done):
            report(done)
            if done == 5:
                raise Pulled

        return original(run, report_or_stop, interrupted)

    original = command.execute
    monkeypatch.setattr(command, "execute", report_until_four)
    with pytest.raises(Pulled):
        compare(**arguments(**only))
    assert Path("out/A/seed-0/last.ckpt").is_file()
    assert not Path("out/A/seed-0/done.json").exists()
    started = []
    monkeypatch.setattr(
        command,
        "execute",
        lambda run, report, *rest: original(run, lambda done: (started.append(done), report(done)), *rest),
    )
    compare(**arguments(**only))
    assert started[0] == 4

    ours, theirs = (table(folder) for folder in ("out", "whole"))
    for row in (*ours, *theirs):
        del row["seconds"]
    assert ours == theirs


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
    compare(**arguments(set=[*SMALL, f"model.init_args.algorithm.init_args.lr={WILD}"]))
    assert "| FedAvg | diverged |" in Path("out/table.md").read_text()


def test_what_a_run_warns_of_is_told_below_the_table(capsys):
    for _ in range(2):  # a comparison that is finished says so again
        compare(**arguments(set=[*SMALL, TOO_FEW]))
        said = capsys.readouterr().out
        for name in ("FedMM", "FedAvg"):
            assert f"{name}, seed 0: Round 1 was skipped: of 8 clients invited, too few answered." in said
            assert f"{name}, seed 0: Round 3 was skipped" in said
            assert f"{name}, seed 0: 3 more warnings, see out/{name}/seed-0/warnings.json" in said
    assert len(json.loads(Path("out/FedMM/seed-0/warnings.json").read_text())) == 6


def test_what_a_row_does_not_mean_is_told_below_the_table(capsys):
    """Of a method whose clients' own models cannot be evaluated, and of an option that another one overrules."""
    folder = CONFIGS / "classification"
    shared = {"base": [str(folder / "base.yaml")], "metric": "val_loss", "mode": "min"}
    chosen = ["trainer.max_steps=1", "data.init_args.local_steps=2"]
    compare(
        **arguments(
            **shared,
            algorithms=[f"A={folder / 'fed_avg.yaml'}", f"B={folder / 'fed_avg.yaml'} data.init_args.local_epochs=5"],
            set=chosen,
        )
    )
    told = "B, seed 0: Digits: local_steps=2 says how long clients train in a round, so local_epochs=5.0 is not used."
    assert told in capsys.readouterr().out
    ditto = "{class_path: fedlightning.algorithms.Ditto, init_args: {lr: 0.05}}"
    Path("ditto.yaml").write_text(f"model: {{init_args: {{algorithm: {ditto}}}}}")
    compare(**arguments(**shared, algorithms=["Ditto=ditto.yaml"], set=chosen))
    assert "The global model is evaluated." in capsys.readouterr().out


def test_what_a_run_warned_of_before_an_interruption_is_kept():
    configs = (SADDLE / "base.yaml", SADDLE / "fed_mm.yaml")
    values = (*(f"--config={file}" for file in configs), *(f"--{value}" for value in [*SMALL, TOO_FEW]))
    run, rounds = runs.Run("A", 0, values, Path("stopped"), metric="distance"), [0]
    with pytest.raises(KeyboardInterrupt):
        runs.execute(run, rounds.append, lambda: rounds[-1] >= 2)
    assert [message.partition(" was")[0] for message in run.warnings] == ["Round 1", "Round 2"]
    runs.execute(run, rounds.append)
    assert [message.partition(" was")[0] for message in run.warnings] == [f"Round {k}" for k in range(1, 7)]


def test_a_run_without_warnings_is_told_of_without_any(capsys):
    compare(**arguments())
    assert "warning" not in capsys.readouterr().out
    assert json.loads(Path("out/FedMM/seed-0/warnings.json").read_text()) == []


def test_a_run_that_explodes_says_so(capsys):
    compare(**arguments(set=[*SMALL, "model.init_args.algorithm.init_args.lr=1e3"]))
    assert "FedAvg, seed 0: train_loss has grown more than a million-fold" in capsys.readouterr().out


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_stopped_run_goes_on_with_the_same_numbers(stop):
    def of(folder):
        configs = (SADDLE / "base.yaml", SADDLE / "fed_mm.yaml")
        values = (*(f"--config={file}" for file in configs), *(f"--{value}" for value in SMALL))
        return runs.Run("A", 0, values, Path(folder), metric="distance")

    runs.execute(of("whole"), lambda done: None)
    rounds = [0]
    with pytest.raises(KeyboardInterrupt):
        runs.execute(of("stopped"), rounds.append, lambda: rounds[-1] >= stop)
    assert rounds[-1] == stop
    assert not Path("stopped/done.json").exists()
    runs.execute(of("stopped"), rounds.append)
    assert rounds[-1] == 6
    ours, theirs = (of(folder).history for folder in ("stopped", "whole"))
    for row in (*ours, *theirs):
        del row["seconds"]
    assert ours == theirs


def test_upload_budget_stops_runs_at_equal_upload():
    compare(**arguments(budget_upload=3 * 8 * 8))  # 8 clients, 8 floats each, three rounds
    last = {row["algorithm"]: row for row in table("out")}
    assert {row["round"] for row in last.values()} == {"3.0"}
    assert all(float(row["upload"]) == 192 for row in last.values())
    assert all(float(row["round_upload_bytes"]) == 64 * 8 for row in last.values())


def test_a_run_stopped_by_its_budget_stays_stopped():
    budget = {"budget_upload": 3 * 8 * 8}
    compare(**arguments(**budget))
    before = table("out")
    compare(**arguments(**budget, test=True))  # taken up again, for the test only
    after = table("out")
    for row in (*before, *after):
        del row["seconds"]
    assert after == before


def test_a_budget_that_is_not_used_up_is_told(capsys):
    command_line_ = command_line(1, "out", seeds=["0"])[3:]
    main([*command_line_[:-1], "--budget-upload=1e6"])  # dashes do, too
    told = capsys.readouterr().out
    assert "A ended at an upload of 768, below the budget of 1e+06: raise trainer.max_steps." in told


@pytest.mark.parametrize("path", [None, "values/each.csv"])
def test_each_run_has_a_file_of_its_clients_values_in_its_folder(path):
    own = {"class_path": "fedlightning.callbacks.ClientValuesFile", "init_args": {"path": path}}
    compare(**arguments(set=[*SMALL, f"trainer.callbacks={json.dumps([own])}"]))
    name = "clients.csv" if path is None else "each.csv"
    for algorithm, has_duals in (("FedMM", True), ("FedAvg", False)):
        lines = Path(f"out/{algorithm}/seed-0/{name}").read_text().splitlines()
        assert ("dual_norm" in lines[0]) is has_duals
        assert {line.split(",")[0] for line in lines[1:]} == {str(n) for n in range(1, 7)}
    assert len(list(Path().rglob(name))) == 2
