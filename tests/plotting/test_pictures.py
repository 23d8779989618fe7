"""Grids of predictions, and maps of features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torchvision.utils import make_grid

from fedlightning.plotting import feature_map, image_grid, prediction_grid


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


@pytest.mark.parametrize("width", [3, 60], ids=["more samples", "more features"])
def test_feature_map_shows_principal_components(width):
    features, domain = torch.randn(40, width) * torch.arange(1.0, width + 1), torch.arange(40) % 2
    by_domain, _ = feature_map(features, domain, torch.arange(40) % 10).axes
    shown = np.concatenate([np.asarray(each.get_offsets()) for each in by_domain.collections])
    expected = PCA(2, svd_solver="full").fit_transform(torch.cat([features[::2], features[1::2]]).double())
    np.testing.assert_allclose(np.abs(shown), np.abs(expected), rtol=1e-4, atol=1e-4)
    assert (shown[np.abs(shown).argmax(0), [0, 1]] > 0).all()


@pytest.mark.parametrize(("count", "columns"), [(5, 2), (3, 8)])
def test_image_grid_joins_images_as_torchvision_does(count, columns):
    images = torch.rand(count, 3, 4, 6)
    (drawn,) = image_grid(images, columns).axes[0].images
    joined = make_grid(images, nrow=columns)
    expected = (joined - joined.min()) / (joined.max() - joined.min())
    np.testing.assert_allclose(drawn.get_array(), expected.permute(1, 2, 0), atol=1e-6)
