"""What is better, what is reached, and which round is reported."""

from __future__ import annotations

import math

import pytest

from fedlightning.compare.goal import Goal, mode_of


def rows(values):
    return tuple({"round": 10.0 * (i + 1), "acc": v} for i, v in enumerate(values))


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        *(("val_accuracy", "max"), ("val_loss", "min"), ("distance", "min"), ("operator_norm", "min")),
        *(("val_cross_entropy", "min"), ("val_kl", "min"), ("train_drift", "min"), ("val_accuracy_std", "min")),
        *(("val_mean_reciprocal_rank", "max"), ("val_rank_correlation", "max")),
        *(("glossary", "max"), ("val-loss", "min"), ("val/wer", "min"), ("val_mape", "min")),
    ],
)
def test_the_name_of_a_metric_says_whether_less_is_better(metric, mode):
    assert mode_of(metric) == mode


def test_costs_are_those_of_the_first_round_that_reaches_the_target():
    assert Goal("acc", "min", 0.15).cost(rows([0.2, 0.1, 0.05]), "round") == 20.0
    assert Goal("acc", "max", 0.15).cost(rows([0.1]), "round") == math.inf


def test_the_reported_round():
    history = rows([0.2, 0.6, 0.6, 0.5])
    assert Goal("acc").reported(history, "round") == 40
    assert Goal("acc", report="best").reported(history, "round") == 20  # the first of the best
    assert Goal("acc", "min", report="best_on_test").reported(history, "round") == 10
    assert Goal("acc").reported(history, "loss") is Goal("acc", report="best").reported(history, "loss") is None
    late = ({"acc": 0.1, "loss": 2.0}, {"acc": 0.2})
    assert Goal("acc").reported(late, "loss") == 2.0


def test_no_number_is_never_the_best():
    history = rows([math.nan, 0.3, math.nan])
    assert Goal("acc", "max").best_row(history) is Goal("acc", "min").best_row(history) is history[1]
    assert not Goal("acc").better(math.nan, math.nan)


def test_rounds_without_the_metric_are_left_out():
    history = [{"round": 1.0}, {"round": 2.0, "acc": 0.6}, {"round": 3.0}, {"round": 4.0, "acc": 0.5}, {"round": 5.0}]
    goal = Goal("acc", target=0.5, report="best")
    assert goal.best_row(history)["round"] == 2
    assert goal.cost(history, "round") == 2
    assert goal.other().reported(history, "acc") == 0.5
