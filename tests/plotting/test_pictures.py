"""Grids of predictions, and maps of features."""

from __future__ import annotations

import torch

from fedlightning.plotting import feature_map, prediction_grid


def test_prediction_grid_marks_right_and_wrong():
    image, domain = torch.rand(6, 3, 4, 4), torch.tensor([0, 0, 0, 1, 1, 1])
    label, predicted = torch.tensor([0, 1, 2, 3, 4, 5]), torch.tensor([0, 1, 9, 3, 9, 9])
    figure = prediction_grid(image, label, predicted, domain, columns=3)
    titled = [(ax.get_title(), ax.title.get_color()) for ax in figure.axes if ax.get_title()]
    green, red = "tab:green", "tab:red"
    assert titled == [("0", green), ("1", green), ("9", red), ("3", green), ("9", red), ("9", red)]


def test_feature_map_shows_both_domains():
    features, domain = torch.randn(40, 5), torch.arange(40) % 2
    figure = feature_map(features, domain, torch.arange(40) % 10, most=15)
    by_domain, by_class = figure.axes
    assert [len(c.get_offsets()) for c in by_domain.collections] == [15, 15]
    assert len(by_class.collections) == 2
