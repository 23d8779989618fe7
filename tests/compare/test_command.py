"""``fedlightning compare``: results, resuming, mistakes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from fedlightning.cli import main
from fedlightning.compare import compare
from fedlightning.compare.run import ALGORITHM
from tests.support.comparisons import SADDLE, SMALL, arguments, command_line, table
from tests.support.paths import ROOT


def test_results_table_and_figure(capsys):
    compare(**arguments(seeds=[0, 1], target=100.0, test=True))
    rows = table("out")
    assert len(rows) == 2 * 2 * 3
    assert {(row["algorithm"], row["seed"]) for row in rows} == {(a, s) for a in ("FedMM", "FedAvg") for s in "01"}
    assert [float(row["round"]) for row in rows[:3]] == [2, 4, 6]
    assert all(float(row["upload"]) > 0 for row in rows)
    written = Path("out/table.md").read_text()
    header = (
        "| algorithm | final distance | difference to FedMM | best (lowest) | rounds to 100 | upload to 100 "
        "| test_distance | floats up |"
    )
    assert written.startswith(header)
    assert "±" in written
    assert "\n\nReported: the last round, chosen by nothing. ±: half the width of the 95% confidence " in written
    assert written.strip() in capsys.readouterr().out
    assert Path("out/figure.png").stat().st_size > 10_000
    assert json.loads(Path("out/FedMM/seed-1/done.json").read_text())["seed"] == 1


def test_an_unknown_baseline_is_refused_before_the_runs():
    with pytest.raises(ValueError, match="--baseline FedAvgM: expected one of the algorithms, FedMM, FedAvg"):
        compare(**arguments(baseline="FedAvgM"))
    assert not Path("out").exists()


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
        ValueError,
        match=r"metric='global_train_los' is not logged by .*\. Did you mean 'global_train_loss'\? Logged: ",
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


@pytest.mark.slow
def test_runs_side_by_side_give_the_same_numbers_and_are_told(capsys):
    compare(**arguments(output="one"))
    capsys.readouterr()
    compare(**arguments(output="two", jobs=2))
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(("FedMM, seed 0: distance=", "FedAvg, seed 0: distance=")) for line in lines) == 2
    numbers = [[(row["algorithm"], row["distance"]) for row in table(folder)] for folder in ("one", "two")]
    assert numbers[0] == numbers[1]


@pytest.mark.slow
def test_runs_of_two_processes_are_written_once():
    alone = [each for each in command_line(1, "out", seeds=["0"]) if not each.startswith("trainer.callbacks")]
    several = ["trainer.devices=2", "trainer.strategy=ddp", "trainer.accelerator=cpu"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*alone, *several], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("Figure: out/figure.png") == 1
    longer = ["trainer.max_steps=12", *SMALL[1:]]
    compare(**arguments(output="one", algorithms=[f"A={SADDLE / 'fed_mm.yaml'}"], set=longer))
    for mine, theirs in zip(table("out"), table("one"), strict=True):
        assert float(mine["distance"]) == pytest.approx(float(theirs["distance"]), rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithms": ["missing.yaml"]}, "No such config: missing.yaml"),
        ({"algorithms": [f"A={SADDLE / 'fed_mm.yaml'}", f"A={SADDLE / 'fed_avg.yaml'}"]}, "called 'A'"),
        (
            {"set": ["trainer.max_stpes=3"]},
            "configuration of FedMM, seed 0 is not valid: .*Did you mean 'trainer.max_steps'",
        ),
        (
            {"set": [*SMALL, "trainer.devices=2", "trainer.strategy=ddp", "trainer.accelerator=cpu"], "jobs": 2},
            r"--jobs 2: FedMM has 2 processes \(trainer\.devices\), .* Give --jobs 1, or --set trainer\.devices=1\.",
        ),
        ({"set": ["trainer.max_steps=-1"]}, "neither trainer.max_steps nor trainer.max_epochs"),
    ],
)
def test_mistakes_are_named_before_any_run(changes, message):
    with pytest.raises(ValueError, match=message):
        compare(**arguments(**changes))
    assert not list(Path().rglob("*.ckpt"))


def test_a_mistake_in_values_for_all_runs_takes_one_line():
    values = ["--set", *SMALL, "trainer.max_stpes=3"]
    with pytest.raises(SystemExit) as exit_:
        main(
            [
                "compare",
                "--base",
                str(SADDLE / "base.yaml"),
                "--algorithms",
                str(SADDLE / "fed_mm.yaml"),
                "--metric=distance",
                *values,
            ]
        )
    assert str(exit_.value) == (
        "fedlightning: The configuration of fed_mm, seed 0 is not valid: --trainer.max_stpes=3: no such argument. "
        "Did you mean 'trainer.max_steps'?"
    )


@pytest.mark.parametrize("changes", [{"metric": "accuracy"}, {"metric": "accuracy", "grid": ["lr=0.1"]}])
def test_an_unknown_metric_is_named_after_the_first_round(changes):
    with pytest.raises(ValueError, match=r"metric='accuracy' is not logged by validation\. Logged: .*distance"):
        compare(**arguments(**changes))
    assert not list(Path().rglob("done.json"))


def test_a_misspelt_metric_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"metric='distnce' is not logged by .*\. Did you mean 'distance'\? Logged: "):
        compare(**arguments(metric="distnce"))


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
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in Path("out/table.md").read_text().splitlines()[:4]
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


def test_one_file_serves_several_algorithms_with_values_of_their_own():
    file = SADDLE / "fed_avg.yaml"
    compare(**arguments(algorithms=[f"small={file} lr=0.01", f"large={file} lr=0.1", f"as it is={file}"]))
    assert [row["algorithm"] for row in table("out")[::3]] == ["small", "large", "as it is"]
    compare(**arguments(algorithms=[f"A={file}"], set=[*SMALL, f"{ALGORITHM}.lr=0.01"], output="alone"))
    assert [row["distance"] for row in table("alone")] == [row["distance"] for row in table("out")[:3]]
    assert len({row["distance"] for row in table("out")[2::3]}) == 3
