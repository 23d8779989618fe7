"""Curves of a comparison: means, spreads, axes."""

from __future__ import annotations

import numpy as np
import pytest

from fedlightning.plotting import comparison_figure


def rows(values, every=10):
    return [{"round": every * (i + 1), "upload": 100.0 * (i + 1), "accuracy": v} for i, v in enumerate(values)]


def test_comparison_draws_mean_and_spread():
    curves = {"A": [rows([0.1, 0.2]), rows([0.3, 0.4])], "B": [rows([0.5, 0.6])]}
    figure = comparison_figure(curves, "accuracy", target=0.35)
    left, right = figure.axes
    np.testing.assert_allclose(left.lines[0].get_xydata(), [[10, 0.2], [20, 0.3]])
    np.testing.assert_allclose(right.lines[0].get_xydata(), [[100, 0.2], [200, 0.3]])
    assert len(left.collections) == 1  # the spread of A; B has one seed
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["A", "B"]
    assert left.get_xlabel() == "communication round"
    assert right.get_xlabel() == "floats uploaded"


@pytest.mark.parametrize("first", [0, 1])
def test_no_seed_is_continued_beyond_its_end(first):
    """Seeds of 60 and of 30 rounds, the order of which does not matter; one begins later as well."""
    long, short = rows([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), rows([0.3, 0.4, 0.5])[1:]
    (panel,) = comparison_figure({"A": [long, short] if first else [short, long]}, "accuracy", axes=["round"]).axes
    np.testing.assert_allclose(panel.lines[0].get_xydata(), [[20, 0.3], [30, 0.4]])


@pytest.mark.parametrize("first", [0, 1])
def test_all_points_of_all_seeds_are_drawn(first):
    coarse, fine = rows([0.1, 0.5], every=20), rows([0.1, 0.3, 0.7, 0.5])[1:]
    both = [coarse, fine] if first else [fine, coarse]
    (panel,) = comparison_figure({"A": both}, "accuracy", axes=["round"]).axes
    np.testing.assert_allclose(panel.lines[0].get_xydata(), [[20, 0.2], [30, 0.5], [40, 0.5]])


def test_infinite_values_are_gaps():
    (panel,) = comparison_figure({"A": [rows([0.1, np.inf, 0.3])] * 2}, "accuracy", axes=["round"]).axes
    np.testing.assert_allclose(panel.lines[0].get_ydata(), [0.1, np.nan, 0.3])


def test_seeds_without_a_common_point_are_drawn():
    later = [row | {"round": row["round"] + 5} for row in rows([0.2])]
    (panel,) = comparison_figure({"A": [rows([0.1]), later]}, "accuracy", axes=["round"]).axes
    np.testing.assert_allclose(panel.lines[0].get_xydata(), [[10, 0.15], [15, 0.15]])


def test_the_axes_are_chosen_and_named():
    history = [row | {"upload_bytes": 4 * row["upload"]} for row in rows([1.0, 0.5])]
    (panel,) = comparison_figure({"A": [history]}, "accuracy", axes=["upload_bytes"]).axes
    np.testing.assert_allclose(panel.lines[0].get_xydata(), [[400, 1.0], [800, 0.5]])
    assert panel.get_xlabel() == "bytes uploaded"


def test_only_the_metric_itself_gets_logarithmic_axes():
    history = [row | {"sparsity": 0.7} for row in rows([1.0, 0.01])]
    figure = comparison_figure({"A": [history]}, ["accuracy", "sparsity"], log_scale=True)
    assert [panel.get_yscale() for panel in figure.axes] == ["log", "log", "linear", "linear"]


def test_the_caption_stands_below_the_panels():
    one = comparison_figure({"A": [rows([1.0, 0.5])]}, "accuracy", caption="Reported: the last round.")
    assert one.get_supxlabel() == "Reported: the last round."
    two = comparison_figure({"A": [rows([1.0, 0.5])] * 2}, "accuracy", caption="Reported: the last round.")
    assert two.get_supxlabel() == (
        "Mean over seeds, as far as all of them go, one standard deviation shaded. Reported: the last round."
    )
    assert comparison_figure({"A": [rows([1.0])]}, "accuracy").get_supxlabel() == ""
