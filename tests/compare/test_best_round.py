"""The best round of a run: kept, tested, and chosen on the data that the comparison names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedlightning.compare import compare
from fedlightning.compare.best_round import require_choice
from tests.support.comparisons import SMALL, arguments, table
from tests.support.paths import ROOT

SYNTHETIC = {
    "base": [str(ROOT / "experiments/fiaelt/base/synthetic.yaml")],
    "algorithms": [f"A={ROOT / 'experiments/fiaelt/algorithms/fed_avg.yaml'} lr=1.0"],
    "metric": "val_accuracy",
    "mode": "max",
}
"""Data that validate on their test data, and steps so long that rounds get better and worse."""


def test_the_best_round_is_tested():
    compare(**arguments(**SYNTHETIC, report="best_on_test", test=True, set=[*SMALL, "trainer.max_steps=8"]))
    values = [float(row["val_accuracy"]) for row in table("out")]
    best = values.index(max(values))
    assert (len(values), best) == (4, 2)
    done = json.loads(Path("out/A/seed-0/done.json").read_text())
    assert done["test"]["test_accuracy"] == pytest.approx(max(values))
    assert done["validates_on_test"] is True
    assert torch.load("out/A/seed-0/best.ckpt", weights_only=True)["global_step"] == 2 * (best + 1)
    compare(**arguments(**SYNTHETIC, test=True, set=[*SMALL, "trainer.max_steps=8"]))
    done = json.loads(Path("out/A/seed-0/done.json").read_text())
    assert done["test"]["test_accuracy"] == pytest.approx(values[-1])


@pytest.mark.parametrize(
    ("report", "validates_on_test", "message"),
    [
        ("best", True, "--report best: the validation data are the test data"),
        ("best_on_test", False, "data of their own"),
    ],
)
def test_a_choice_on_other_data_is_refused(report, validates_on_test, message):
    with pytest.raises(ValueError, match=message):
        require_choice(report, validates_on_test)
    require_choice(report, not validates_on_test)
    require_choice("last", validates_on_test)


DIGITS = {
    "base": [str(ROOT / "configs/classification/base.yaml")],
    "algorithms": [f"A={ROOT / 'configs/classification/fed_avg.yaml'}"],
    "metric": "val_accuracy",
    "mode": "max",
}
"""Data with validation data beside the test data."""


def test_other_data_are_refused_before_and_after_the_runs(capsys):
    refused = "--report best_on_test: the data have validation data of their own"
    with pytest.raises(ValueError, match=refused):
        compare(**arguments(**DIGITS, report="best_on_test"))
    assert not Path("out/A/seed-0/done.json").exists()
    compare(**arguments(**DIGITS))
    assert "chosen by nothing" in Path("out/table.md").read_text()
    capsys.readouterr()
    compare(**arguments(**DIGITS, report="best"))
    assert "1 of 1 runs are already finished" in capsys.readouterr().out
    written = Path("out/table.md").read_text()
    assert written.startswith("| algorithm | best val_accuracy (highest) | final | floats up |")
    assert "each seed's best round on validation data" in written
    with pytest.raises(ValueError, match=refused):
        compare(**arguments(**DIGITS, report="best_on_test"))
