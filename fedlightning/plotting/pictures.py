"""Pictures of a model's inputs, predictions and features, of attacks, and of generated images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedlightning.plotting.canvas import empty_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def prediction_grid(image: Tensor, label: Tensor, predicted: Tensor, domain: Tensor, columns: int = 10) -> Figure:
    """Draw samples of both domains with the predicted labels, green if right, red if wrong.

    Args:
        image: ``[n, C, h, w]``.
        label: ``[n]``.
        predicted: ``[n]``.
        domain: ``[n]``, 0 for source and 1 for target.
        columns: Samples a row.
    """
    figure = empty_figure(columns, 5)
    axes = figure.subplots(4, columns, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for half, name in ((0, "source"), (1, "target")):
        members = (domain == half).nonzero().flatten()[: 2 * columns].tolist()
        for place, sample in enumerate(members):
            ax = axes[2 * half + place // columns][place % columns]
            ax.imshow(_displayable(image[sample]), cmap="gray")
            right = bool(label[sample] == predicted[sample])
            ax.set_title(f"{int(predicted[sample])}", color="tab:green" if right else "tab:red", fontsize=10)
        axes[2 * half][0].text(-0.3, 0.5, name, transform=axes[2 * half][0].transAxes, rotation=90, va="center")
    return figure


def feature_map(features: Tensor, domain: Tensor, label: Tensor, most: int = 1000) -> Figure:
    """Draw the first two principal components of the features, coloured by domain and by class.

    Args:
        features: ``[n, F]``.
        domain: ``[n]``, 0 for source and 1 for target.
        label: ``[n]``.
        most: Samples shown of each domain.
    """
    shown = torch.cat([(domain == half).nonzero().flatten()[:most] for half in (0, 1)])
    points = _principal_components(features[shown].float().cpu()).numpy()
    where, classes = domain[shown].cpu().numpy(), label[shown].cpu().numpy()
    figure = empty_figure(10, 4.5)
    by_domain, by_class = figure.subplots(1, 2)
    for half, name in ((0, "source"), (1, "target")):
        members = where == half
        by_domain.scatter(*points[members].T, s=8, alpha=0.6, label=name)
        by_class.scatter(
            *points[members].T, s=8, alpha=0.6, c=classes[members], cmap="tab10", vmin=0, vmax=9, marker="ox"[half]
        )
    by_domain.legend()
    by_domain.set_title("by domain")
    by_class.set_title("by class (dots: source, crosses: target)")
    for ax in (by_domain, by_class):
        ax.set_xlabel("first principal component")
        ax.set_ylabel("second")
    return figure


def attack_figure(attack: Tensor) -> Figure:
    """Draw an image perturbation, in blue (lower) to red (higher) if grey, and where the perturbation is not zero.

    Args:
        attack: ``[C, h, w]``.
    """
    attack = attack.float().cpu()
    figure = empty_figure(8, 4)
    left, right = figure.subplots(1, 2)
    bound = float(attack.abs().max()) or 1.0
    if len(attack) == 1:
        image = left.imshow(attack[0].numpy(), cmap="bwr", vmin=-bound, vmax=bound)
        figure.colorbar(image, ax=left, shrink=0.8)
    else:
        left.imshow((0.5 + attack / (2 * bound)).permute(1, 2, 0).numpy())
    left.set_title(f"perturbation, largest {bound:.2g}")
    present = (attack.abs() > 1e-5).float()
    right.imshow(present.amax(0).numpy(), cmap="gray_r", vmin=0, vmax=1)
    right.set_title(f"not zero: {float(present.mean()):.1%}")
    for ax in (left, right):
        ax.set_axis_off()
    return figure


def image_grid(images: Tensor, columns: int = 8) -> Figure:
    """Draw images side by side.

    Args:
        images: ``[n, C, h, w]``.
        columns: Images a row.
    """
    figure = empty_figure(6, 6)
    ax = figure.subplots()
    ax.imshow(_displayable(_side_by_side(images.float().cpu(), columns)))
    ax.set_axis_off()
    return figure


def _principal_components(features: Tensor) -> Tensor:
    """Return the first two principal components ``[n, 2]`` of features ``[n, F]``.

    They come from the scalar products of the samples or of the features, whichever are fewer. The largest value of
    either component in absolute terms is positive.
    """
    points: Tensor
    centred = (features - features.mean(0)).double()
    if len(centred) > centred.shape[1]:
        points = centred @ torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -2:].flip(1)
    else:
        squares, directions = torch.linalg.eigh(centred @ centred.T)
        points = (directions * squares.clamp(min=0).sqrt())[:, -2:].flip(1)
    return points.mul_(points.gather(0, points.abs().argmax(0, keepdim=True)).sign())


def _side_by_side(images: Tensor, columns: int, gap: int = 2) -> Tensor:
    """Join images ``[n, C, h, w]`` into one, with ``gap`` pixels of zeros between and around the images."""
    count, channels, height, width = images.shape
    columns = min(columns, count)
    rows = -(-count // columns)
    joined = images.new_zeros(channels, rows * (height + gap) + gap, columns * (width + gap) + gap)
    for number, image in enumerate(images):
        top, left = gap + number // columns * (height + gap), gap + number % columns * (width + gap)
        joined[:, top : top + height, left : left + width] = image
    return joined


def _displayable(image: Tensor) -> np.ndarray:
    """Stretch an image ``[C, h, w]`` to the range 0..1 and put the channels last."""
    image = image.float().cpu()
    low, high = image.min(), image.max()
    stretched = (image - low) / (high - low).clamp(min=1e-8)
    return stretched.permute(1, 2, 0).squeeze(-1).numpy()
