"""``fedlightning compare``: results, resuming, mistakes."""

from __future__ import annotations

import csv
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from functools import partialmethod
from pathlib import Path

import pytest
import yaml

from fedlightning.callbacks import LastCheckpoint
from fedlightning.cli import main
from fedlightning.compare import command, compare
from fedlightning.compare import run as runs
from fedlightning.compare.grid import parse_grid
from fedlightning.compare.results import Curve, Goal, markdown_table
from fedlightning.compare.run import ALGORITHM
from tests.support.paths import CONFIGS, ROOT

CONFIGS = CONFIGS / "quadratic_saddle"
SMALL = [
    "trainer.max_steps=6",
    "trainer.val_check_interval=2",
    "trainer.check_val_every_n_epoch=null",
    "data.init_args.local_steps=5",
]
WILD = "1e60"
"""A step size that ends every run in its first rounds."""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def table(folder):
    with (Path(folder) / "results.csv").open() as file:
        return list(csv.DictReader(file))


def arguments(**changes):
    return {
        "base": [str(CONFIGS / "base.yaml")],
        "algorithms": [f"FedMM={CONFIGS / 'fed_mm.yaml'}", f"FedAvg={CONFIGS / 'fed_avg.yaml'}"],
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
    header = "| algorithm | final distance | best | rounds to 100 | upload to 100 | test_distance | floats up |"
    assert written.startswith(header)
    assert "±" in written
    assert written.strip() in capsys.readouterr().out
    assert Path("out/figure.png").stat().st_size > 10_000
    assert json.loads(Path("out/FedMM/seed-1/done.json").read_text())["seed"] == 1


def test_metrics_of_the_training_data_are_followed():
    options = {
        "base": [str(ROOT / "experiments/fiaelt/base/synthetic.yaml")],
        "algorithms": [f"A={ROOT / 'experiments/fiaelt/algorithms/fed_avg.yaml'}"],
        "metric": "global_train_loss",
        "set": SMALL,
    }
    compare(**arguments(**options))
    assert [float(row["round"]) for row in table("out")] == [2, 4, 6]
    with pytest.raises(
        ValueError, match=r"metric='global_train_los' is not logged by validation. Logged: .*global_train_loss"
    ):
        compare(**arguments(**{**options, "metric": "global_train_los", "output": "misspelt"}))


def test_what_rounds_log_can_be_compared():
    splitting = f"FedPD={ROOT / 'experiments/fiaelt/algorithms/fed_pd.yaml'}"
    compare(**arguments(algorithms=[splitting], metric="inner_steps", set=[*SMALL, "trainer.log_every_n_steps=1"]))
    assert {float(row["inner_steps"]) for row in table("out")} == {5.0}


def test_metrics_of_an_epochs_end_are_no_sign_that_those_of_steps_are_there():
    """Lightning's sanity check of several loaders shows the former only."""
    options = {
        "base": [str(ROOT / "configs/robust/base.yaml")],
        "algorithms": [f"A={ROOT / 'configs/robust/cdma_one.yaml'}"],
        "metric": "val_robust_loss",
        "also": ["val_accuracy", "global_train_accuracy"],
        "set": ["trainer.max_steps=2", *SMALL[1:], "data.init_args.validate_train=true"],
    }
    compare(**arguments(**options))
    assert float(table("out")[0]["global_train_accuracy"]) > 0


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
    only = {"algorithms": [f"A={CONFIGS / 'fed_mm.yaml'}"]}
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


def test_runs_side_by_side_give_the_same_numbers_and_are_told(capsys):
    compare(**arguments(output="one"))
    capsys.readouterr()
    compare(**arguments(output="two", jobs=2))
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(("FedMM, seed 0: distance=", "FedAvg, seed 0: distance=")) for line in lines) == 2
    numbers = [[(row["algorithm"], row["distance"]) for row in table(folder)] for folder in ("one", "two")]
    assert numbers[0] == numbers[1]


def test_from_the_command_line_and_a_config_file(tmp_path):
    config = tmp_path / "comparison.yaml"
    config.write_text(
        f"base: [{CONFIGS / 'base.yaml'}]\nalgorithms: [{CONFIGS / 'fed_mm.yaml'}]\nmetric: distance\nmode: min\n"
        f"set: [{SMALL[0]}]\n"
    )
    more = ["--set", SMALL[1], "--set", *SMALL[2:]]  # adds to the file's
    main(["compare", f"--config={config}", "--output=out", "--seeds", "0", "1", *more])
    assert Path("out/fed_mm/seed-1/done.json").is_file()
    assert max(float(row["round"]) for row in table("out")) == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithms": ["missing.yaml"]}, "No such config: missing.yaml"),
        ({"algorithms": [f"A={CONFIGS / 'fed_mm.yaml'}", f"A={CONFIGS / 'fed_avg.yaml'}"]}, "called 'A'"),
        (
            {"set": ["trainer.max_stpes=3"]},
            "configuration of FedMM, seed 0 is not valid: .*Did you mean 'trainer.max_steps'",
        ),
        ({"set": ["trainer.max_steps=-1"]}, "neither trainer.max_steps nor trainer.max_epochs"),
    ],
)
def test_mistakes_are_named_before_any_run(changes, message):
    with pytest.raises(ValueError, match=message):
        compare(**arguments(**changes))
    assert not list(Path().rglob("*.ckpt"))


@pytest.mark.parametrize("changes", [{"metric": "accuracy"}, {"metric": "accuracy", "grid": ["lr=0.1"]}])
def test_an_unknown_metric_is_named_after_the_first_validation(changes):
    with pytest.raises(ValueError, match=r"metric='accuracy' is not logged by validation\. Logged: .*distance"):
        compare(**arguments(**changes))
    assert not list(Path().rglob("done.json"))


def test_further_metrics_need_not_be_logged_by_every_algorithm(capsys):
    personal = "configs/personalized"
    compare(
        [str(ROOT / personal / "base.yaml")],
        [f"FedAvg={ROOT / personal / 'fed_avg.yaml'}", f"Ditto={ROOT / personal / 'ditto.yaml'}"],
        "val_accuracy",
        also=["drift", "val_global_accuracy", "val_acuracy"],
        output="out",
        test=True,
        set=["trainer.max_steps=2", "trainer.val_check_interval=1", "data.init_args.local_steps=1"],
    )
    printed = capsys.readouterr().out
    assert "No run logged val_acuracy. Logged: " in printed
    header, _, averaged, ditto = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in Path("out/table.md").read_text().splitlines()
    )
    assert header[-3:] == ["test_accuracy", "test_global_accuracy", "floats up"]
    at = header.index("final val_global_accuracy")
    assert averaged[at] == averaged[-2] == "-"
    assert averaged[header.index("final val_acuracy")] == "-"
    done = json.loads(Path("out/Ditto/seed-0/done.json").read_text())
    assert ditto[-3:-1] == [f"{done['test'][name]:.3f}" for name in header[-3:-1]]
    drifts = [float(row["drift"]) for row in table("out")]
    assert len({*drifts[:2]}) == len({*drifts[2:]}) == 2  # each round's own, with log_every_n_steps = 50
    assert float(ditto[header.index("final drift")]) == pytest.approx(drifts[-1], abs=5e-4)


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


def test_a_grid_over_an_unknown_name():
    known = r"FedMM: .*lr, .*mu; FedAvg: local_clip, local_optimizer, lr\.$"
    with pytest.raises(ValueError, match=rf"--grid lrr=\.\.\.: no .* 'lrr'\. Did you mean 'lr'\? {known}"):
        compare(**arguments(grid=["lrr=0.1"]))


def rows(values):
    return tuple({"round": 10.0 * (i + 1), "upload": 6e5 * (i + 1), "acc": v} for i, v in enumerate(values))


def test_table_numbers():
    curves = [Curve("A", (rows([0.2, 0.6, 0.5]), rows([0.5, 0.7, 0.7]))), Curve("B", (rows([0.1, 0.1, 0.2]),))]
    table = markdown_table(curves, Goal("acc", "max", 0.5)).splitlines()
    assert table[2] == "| A | 0.600 ± 0.141 | 0.650 ± 0.071 | 15 | 900 k | 1.8 M |"
    assert table[3] == "| B | 0.200 | 0.200 | not reached | not reached | 1.8 M |"
    assert Goal("acc", "min", 0.15).cost(rows([0.2, 0.1]), "round") == 20.0


def test_small_numbers_keep_their_digits():
    curve = Curve("A", (rows([2.41e-4]), rows([2.45e-4])))
    (line,) = markdown_table([curve], Goal("acc", "min")).splitlines()[2:]
    assert line == "| A | 2.43e-04 ± 2.83e-06 | 2.43e-04 ± 2.83e-06 | 600 k |"


def test_grid_search_takes_the_best_values_and_tables_all(capsys):
    compare(
        **arguments(
            algorithms=[f"FedMM={CONFIGS / 'fed_mm.yaml'}", f"FedAvg={CONFIGS / 'fed_avg.yaml'}"],
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
    assert {row["seed"] for row in table("out")} == {"0", "1"}
    assert "FedAvg: lr=0.05" in capsys.readouterr().out
    final = float(table("out")[-4]["distance"])
    assert f"{final:.4g}" in chosen[1]  # the first seed's run is the one that was chosen


def test_grid_where_all_diverge():
    with pytest.raises(ValueError, match=r"--grid: every run diverged, see out/grid\.md"):
        compare(**arguments(algorithms=[f"FedAvg={CONFIGS / 'fed_avg.yaml'}"], grid=["lr=1e60,1e70"]))
    assert Path("out/grid.md").read_text().count("| diverged |") == 2


def test_an_algorithm_whose_grid_diverges_does_not_end_the_others(capsys):
    algorithm = f"{{class_path: fedlightning.algorithms.FedAvg, init_args: {{lr: {WILD}}}}}"
    Path("wild.yaml").write_text(f"model: {{init_args: {{algorithm: {algorithm}}}}}")
    both = ["Wild=wild.yaml", f"FedMM={CONFIGS / 'fed_mm.yaml'}"]
    compare(**arguments(algorithms=both, seeds=[0, 1], grid=["mu=1.0,2.0"]))
    written = Path("out/table.md").read_text()
    assert "| Wild | diverged | - |" in written
    assert "| FedMM | diverged" not in written
    assert "Wild: every run diverged" in capsys.readouterr().out
    assert "| Wild |  | diverged |  |" in Path("out/grid.md").read_text()
    assert not Path("out/Wild").exists()


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
    alone = [f"FedMM={CONFIGS / 'fed_mm.yaml'}"]
    compare(**arguments(algorithms=alone, output="alone", set=[*SMALL, f"{ALGORITHM}.lr=0.05"]))
    assert [row["distance"] for row in table("alone")] == [row["distance"] for row in theirs[:3]]


def test_a_grid_reaches_the_step_size_of_a_local_solver():
    splitting = f"FedPD={ROOT / 'experiments/fiaelt/algorithms/fed_pd.yaml'}"
    averaging = f"FedAvg={CONFIGS / 'fed_avg.yaml'}"
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
    compare(**arguments(algorithms=[f"FedAvg={CONFIGS / 'fed_avg.yaml'}"], grid=[f"lr=0.05,{WILD}"]))
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("FedAvg, seed 0, lr=0.05: distance=") for line in lines)
    assert f"FedAvg, seed 0, lr={WILD}: diverged" in lines


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_stopped_run_goes_on_with_the_same_numbers(stop):
    def of(folder):
        configs = (CONFIGS / "base.yaml", CONFIGS / "fed_mm.yaml")
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


SLOW = '''
import os, time
from lightning.pytorch import Callback

class Slow(Callback):
    def on_train_batch_start(self, *args):
        time.sleep(float(os.environ.get("SECONDS_A_ROUND", 0)))

class Long(Callback):
    def on_train_batch_start(self, *args):
        open(f"begun-{os.getpid()}", "w").close()
        time.sleep(100)

class Killed(Callback):
    def on_train_batch_start(self, *args):
        os._exit(3)

class Pressed(Callback):
    """Ctrl-C in the middle of something, once."""

    when = None

    def _press(self, hook):
        import signal
        if Pressed.when == hook:
            Pressed.when = None
            os.kill(os.getpid(), signal.SIGINT)

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 3:
            self._press("round")

    def on_validation_start(self, trainer, *args):
        if trainer.global_step == 4:
            self._press("validation")

        if trainer.global_step == trainer.max_steps:
            self._press("last round")

    def on_test_start(self, *args):
        self._press("test")

class Broken(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == 3:
            raise ValueError("a fault of the user's own")
'''


@pytest.fixture
def slow(tmp_path, monkeypatch):
    (tmp_path / "slow_rounds.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}{os.pathsep}{ROOT}")
    monkeypatch.syspath_prepend(tmp_path)


def command_line(jobs, output, seeds=("0", "1", "2")):
    return [
        sys.executable, "-m", "fedlightning", "compare", "--base", str(CONFIGS / "base.yaml"),
        "--algorithms", f"A={CONFIGS / 'fed_mm.yaml'}", "--metric=distance", "--mode=min", "--seeds", *seeds,
        f"--output={output}", f"--jobs={jobs}",
        "--set", "trainer.max_steps=12", *SMALL[1:], "trainer.callbacks=slow_rounds.Slow",
    ]  # fmt: skip


def _alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _started(jobs, **options):
    """A comparison in a session of its own, some rounds on."""
    process = subprocess.Popen(
        command_line(jobs, "out", **options),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "SECONDS_A_ROUND": "0.4"},
    )  # fmt: skip
    while not list(Path().glob("out/A/seed-0/events*")):
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.3)
    return process


def _wait_until_nobody_is_left(process):
    deadline = time.monotonic() + 30
    while _alive(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_command_that_is_killed_leaves_no_processes(slow):
    process = _started(2, seeds=["0"])  # one process beside the command
    process.kill()
    process.communicate(timeout=60)
    _wait_until_nobody_is_left(process)
    assert not list(Path().rglob("done.json"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The table of a comparison that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "slow_rounds.py").write_text(SLOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.delitem(sys.modules, "slow_rounds", raising=False)
        main(command_line(1, folder / "out")[3:])
        patch.delitem(sys.modules, "slow_rounds")
    return table(folder / "out")


@pytest.mark.parametrize(("jobs", "group"), [(2, False), (2, True), (1, True)])
def test_an_interrupt_stops_all_and_the_same_command_goes_on(jobs, group, slow, whole):
    process = _started(jobs)
    (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "fedlightning compare: interrupted. The same command goes on where it stopped."
    assert "Traceback" not in errors
    assert not list(Path().rglob("done.json"))
    assert not Path("out/A/seed-2").exists()  # those that waited are not begun
    _wait_until_nobody_is_left(process)
    main(command_line(1, "out")[3:])
    ours = table("out")
    for row in ours:
        del row["seconds"]
    assert ours == [{key: value for key, value in row.items() if key != "seconds"} for row in whole]


@pytest.mark.parametrize("moment", ["round", "validation", "test"])
def test_an_interrupt_at_any_moment_ends_the_command_and_loses_nothing(moment, slow):
    options = {"algorithms": [f"A={CONFIGS / 'fed_mm.yaml'}"], "test": True}
    options["set"] = [*SMALL, "trainer.callbacks=slow_rounds.Pressed"]
    compare(**arguments(**options, output="whole"))
    importlib.import_module("slow_rounds").Pressed.when = moment
    with pytest.raises(KeyboardInterrupt):
        compare(**arguments(**options))
    assert not Path("out/A/seed-0/done.json").exists()
    compare(**arguments(**options))
    ours, theirs = (table(folder) for folder in ("out", "whole"))
    for row in (*ours, *theirs):
        del row["seconds"]
    assert ours == theirs


def test_an_interrupt_in_the_last_round_of_a_search_begins_nothing_new(slow):
    options = {"algorithms": [f"A={CONFIGS / 'fed_mm.yaml'}"], "grid": ["lr=0.05"], "seeds": [0, 1]}
    importlib.import_module("slow_rounds").Pressed.when = "last round"
    with pytest.raises(KeyboardInterrupt):
        compare(**arguments(**options, set=[*SMALL, "trainer.callbacks=slow_rounds.Pressed"]))
    assert len(list(Path("out").rglob("done.json"))) == 1
    assert not Path("out/A").exists()


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_second_interrupt_does_not_wait_for_the_round(jobs, slow):
    command = [*command_line(jobs, "out")[:-1], "trainer.callbacks=slow_rounds.Long"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while len(list(Path().glob("begun-*"))) < jobs:
        assert process.poll() is None
        time.sleep(0.05)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(1)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "fedlightning compare: interrupted. The same command goes on where it stopped."
    _wait_until_nobody_is_left(process)


def test_a_fault_in_one_run_stops_the_others_and_keeps_its_own_name(slow):
    broken = Path("broken.yaml")
    broken.write_text((CONFIGS / "fed_avg.yaml").read_text() + "\ntrainer: {callbacks: slow_rounds.Broken}\n")
    both = [f"A={CONFIGS / 'fed_mm.yaml'}", "B=broken.yaml"]
    base = [str(CONFIGS / "base.yaml")]
    values = ["trainer.max_steps=100000", *SMALL[1:]]
    began = time.monotonic()
    with pytest.raises(ValueError, match="a fault of the user's own"):
        compare(**arguments(base=base, algorithms=both, set=values, jobs=2))
    assert time.monotonic() - began < 100
    assert Path("out/A/seed-0/fingerprint").exists()
    assert not Path("out/A/seed-0/done.json").exists()


def test_a_killed_process_is_told(slow):
    with pytest.raises(RuntimeError, match=r"A run's process was killed.*--jobs"):
        compare(
            **arguments(
                algorithms=[f"A={CONFIGS / 'fed_mm.yaml'}"],
                set=[*SMALL, "trainer.callbacks=slow_rounds.Killed"],
                jobs=2,
            )
        )


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


def test_further_metrics_and_logarithmic_axes():
    compare(**arguments(also=["operator_norm"], log_scale=True))
    assert (
        Path("out/table.md")
        .read_text()
        .startswith("| algorithm | final distance | best | final operator_norm | floats up |")
    )


@pytest.mark.parametrize("entry", ["lr", "lr=", "=1,2"])
def test_grid_entries_are_checked(entry):
    with pytest.raises(ValueError, match=rf"--grid {entry}: expected name=value,value"):
        compare(**arguments(grid=[entry]))


def test_grid_values_may_be_pairs():
    grid = parse_grid(["lr=[0.1,0.3],0.2,[1, 2]", "mu=1"])
    assert grid == {"lr": ["[0.1,0.3]", "0.2", "[1, 2]"], "mu": ["1"]}
    assert parse_grid(["lr={x: 0.1, y: 0.2},0.3"]) == {"lr": ["{x: 0.1, y: 0.2}", "0.3"]}
    compare(**arguments(algorithms=[f"FedMM={CONFIGS / 'fed_mm.yaml'}"], grid=["lr=[0.05,0.02],{x: 0.04, y: 0.03}"]))
    assert "lr=[0.05,0.02] |" in Path("out/grid.md").read_text()
    assert "lr={x: 0.04, y: 0.03} |" in Path("out/grid.md").read_text()


def test_one_file_serves_several_algorithms_with_values_of_their_own():
    file = CONFIGS / "fed_avg.yaml"
    compare(**arguments(algorithms=[f"small={file} lr=0.01", f"large={file} lr=0.1", f"as it is={file}"]))
    assert [row["algorithm"] for row in table("out")[::3]] == ["small", "large", "as it is"]
    compare(**arguments(algorithms=[f"A={file}"], set=[*SMALL, f"{ALGORITHM}.lr=0.01"], output="alone"))
    assert [row["distance"] for row in table("alone")] == [row["distance"] for row in table("out")[:3]]
    assert len({row["distance"] for row in table("out")[2::3]}) == 3
