"""Tables of results: means, spreads, costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedlightning.compare import compare
from fedlightning.compare.goal import Goal
from fedlightning.compare.results import Curve, caption, collect, markdown_table, shortened
from fedlightning.core.errors import InvalidValueError
from tests.support.comparisons import SMALL, arguments, table


def rows(values):
    return tuple({"round": 10.0 * (i + 1), "upload": 6e5 * (i + 1), "acc": v} for i, v in enumerate(values))


def test_table_numbers():
    """With two seeds, half the interval of 0.5 and 0.7 is t s / sqrt(2) = 12.706 * 0.1."""
    curves = [Curve("A", (rows([0.2, 0.6, 0.5]), rows([0.5, 0.7, 0.7]))), Curve("B", (rows([0.1, 0.1, 0.2]),))]
    table = markdown_table(curves, Goal("acc", "max", 0.5)).splitlines()
    assert table[0].startswith("| algorithm | final acc | difference to A | best (highest) | rounds to 0.5 |")
    assert table[2] == "| A | 0.600 ± 1.271 | - | 0.650 ± 0.635 | 15 | 900 k | 1.8 M |"
    assert table[3] == "| B | 0.200 | -0.300 | 0.200 | not reached | not reached | 1.8 M |"


def test_differences_are_paired_by_seed():
    """Seeds move both algorithms alike: means are uncertain, their difference of 0.1 is not."""
    seeds = (3, 5, 8)
    base = Curve("A", tuple(rows([value]) for value in (0.2, 0.5, 0.8)), seeds=seeds)
    other = Curve("B", tuple(rows([value]) for value in (0.9, 0.3, 0.6)), seeds=(8, 3, 5))
    (_, first, second) = markdown_table([base, other], Goal("acc")).splitlines()[1:]
    assert first.startswith("| A | 0.500 ± 0.745 | - |")  # 4.303 * 0.3 / sqrt(3)
    assert second.startswith("| B | 0.600 ± 0.745 | +0.100 ± 0.000 |")
    reversed_ = markdown_table([base, other], Goal("acc"), baseline="B").splitlines()
    assert "difference to B" in reversed_[0]
    assert reversed_[2].startswith("| A | 0.500 ± 0.745 | -0.100 ± 0.000 |")


def test_seeds_that_diverged_have_no_pair():
    base = Curve("A", (rows([0.2]), rows([0.5])), diverged=1, seeds=(0, 2))
    other = Curve("B", (rows([0.3]), rows([0.4]), rows([0.7])), seeds=(0, 1, 2))
    line = markdown_table([base, other], Goal("acc")).splitlines()[3]
    assert "| +0.150 ± 0.635 (2 of 3 seeds) |" in line
    nothing = markdown_table([Curve("A", (), 3), other], Goal("acc")).splitlines()[3]
    assert nothing.split(" | ")[2] == "-"
    assert markdown_table([base], Goal("acc")).splitlines()[2].startswith("| A (1 seed diverged) |")
    assert "of a mean over the seeds that did not diverge, 3 at most (St" in caption([base, other], Goal("acc"))
    assert "of a mean over 3 seeds (St" in caption([Curve("A", (), 3), other], Goal("acc"))


def test_the_best_round_is_reported_with_all_metrics():
    history = tuple(row | {"loss": loss} for row, loss in zip(rows([0.2, 0.6, 0.5]), (3.0, 2.0, 1.0), strict=True))
    header, _, line = markdown_table([Curve("A", (history,))], Goal("acc", report="best"), ["loss"]).splitlines()
    assert header == "| algorithm | best acc (highest) | final | loss at the best round | floats up |"
    assert line == "| A | 0.600 | 0.500 | 2.000 | 1.8 M |"
    on_test = markdown_table([Curve("A", (history,))], Goal("acc", report="best_on_test"), ["loss"]).splitlines()[0]
    assert on_test.startswith("| algorithm | best on test acc (highest) | final | loss at the best round on test |")


@dataclass
class Ended:
    """Stands for a finished run."""

    name: str
    history: Sequence[Mapping[str, float]]
    seed: int = 0
    diverged: bool = False

    @property
    def summary(self):
        return {"diverged": self.diverged, "test": {}}


def test_a_run_whose_metric_is_not_finite_counts_as_diverged():
    values = [[0.1, 0.2], [0.1, math.inf], [math.nan, math.nan], [math.inf, 0.4]]
    runs = [Ended("A", rows(each), seed) for seed, each in enumerate(values)] + [Ended("A", rows([1.0]), 4, True)]
    (last,) = collect(runs, ["A"], Goal("acc", "min"))
    assert (last.seeds, last.diverged) == ((0, 3), 3)
    (best,) = collect(runs, ["A"], Goal("acc", "min", report="best"))
    assert (best.seeds, best.diverged) == ((0, 1, 3), 2)
    line = markdown_table([best], Goal("acc", "min", report="best")).splitlines()[2]
    assert line.startswith(
        "| A (2 seeds diverged) | 0.200 ± 0.430 | inf |"
    )  # one of them is infinite in the last round


def test_the_grid_is_said_to_be_chosen():
    curve = Curve("A", (rows([0.5]),))
    assert caption([curve], Goal("acc"), False, 3).endswith(
        "The grid's values were chosen by seed 3 on validation data."
    )
    assert caption([curve], Goal("acc"), True, 3).endswith("chosen by seed 3, on test data: too good by the choice.")


def test_captions_say_what_is_reported():
    one, three = Curve("A", (rows([0.1]),)), Curve("B", (rows([0.1]),) * 3)
    assert caption([one], Goal("acc")) == "Reported: the last round, chosen by nothing. One seed: there is no interval."
    said = caption([one, three], Goal("acc", report="best"), validates_on_test=True)
    assert said == (
        "Reported: each seed's best round on validation data. ±: half the width of the 95% confidence interval of a "
        "mean over 3 seeds (Student's t). Differences are paired by seed. The validation data are the test data."
    )
    assert "best round on test data, which is too good" in caption([one], Goal("acc", report="best_on_test"))


def test_costs_are_counted_along_the_axes():
    history = tuple(row | {"upload_bytes": 2 * row["upload"]} for row in rows([0.2, 0.6, 0.7]))
    table = markdown_table([Curve("A", (history,))], Goal("acc", "max", 0.5), axes=("upload_bytes", "round"))
    assert table.splitlines()[0].endswith("| bytes up to 0.5 | rounds to 0.5 | floats up | bytes up |")
    assert table.splitlines()[2] == "| A | 0.700 | 0.700 | 2.4 M | 20 | 1.8 M | 3.6 M |"


def test_runs_on_a_clock_are_compared_by_virtual_time():
    clock = "data.participation=fedlightning.participation.Timed"
    seconds = "data.participation.durations=fedlightning.participation.FixedDuration"
    options = {"target": 100.0, "axes": ["virtual_seconds", "round"]}
    compare(**arguments(set=[*SMALL, clock, seconds, "data.participation.durations.seconds=2.5"], **options))
    assert [(float(row["round"]), float(row["virtual_seconds"])) for row in table("out")[:3]] == [
        (2.0, 5.0),
        (4.0, 10.0),
        (6.0, 15.0),
    ]
    assert "| virtual seconds to 100 | rounds to 100 |" in Path("out/table.md").read_text()
    with pytest.raises(InvalidValueError, match=r"--axes virtual_seconds: FedAvg, FedMM has no virtual clock\. Give"):
        compare(**arguments(output="without", **options))
    assert not list(Path("without").rglob("history.csv"))


@pytest.mark.parametrize("axes", [["bits"], ["round", "round"], []])
def test_unknown_axes_are_refused_before_the_runs(axes):
    with pytest.raises(
        InvalidValueError, match=r"--axes .*: expected one or more of round, seconds, upload, download, up"
    ):
        compare(**arguments(axes=axes))
    assert not Path("out").exists()


def test_small_numbers_keep_their_digits():
    curve = Curve("A", (rows([2.41e-4]), rows([2.45e-4])))
    (line,) = markdown_table([curve], Goal("acc", "min")).splitlines()[2:]
    assert line == "| A | 2.43e-04 ± 2.54e-05 | 2.43e-04 ± 2.54e-05 | 600 k |"


def test_small_differences_have_the_digits_of_their_intervals():
    base = Curve("A", (rows([0.85]), rows([0.86]), rows([0.87])))
    other = Curve("B", (rows([0.84]), rows([0.862]), rows([0.881])))
    line = markdown_table([base, other], Goal("acc")).splitlines()[3]
    assert "| +0.001 ± 0.026 |" in line  # -0.010, 0.002, 0.011


def test_further_metrics_and_logarithmic_axes():
    compare(**arguments(also=["operator_norm"], log_scale=True))
    assert (
        Path("out/table.md")
        .read_text()
        .startswith(
            "| algorithm | final distance | difference to FedMM | best (lowest) | final operator_norm | floats up |"
        )
    )


@pytest.mark.parametrize(
    ("number", "shown"),
    [(9999, "9999"), (12345, "12.3 k"), (999_499, "999 k"), (999_999, "1 M"), (999_600_000, "1 G"), (5e9, "5 G")],
)
def test_large_numbers_have_three_digits_and_a_unit(number, shown):
    assert shortened(number) == shown
