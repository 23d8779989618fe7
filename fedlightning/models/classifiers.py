"""Image classifiers of the federated learning literature; input ``[B, channels, size, size]``, output logits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedlightning.core.errors import InvalidValueError


class LogisticRegression(nn.Sequential):
    """Implements multinomial logistic regression on the flattened input."""

    def __init__(self, in_features: int = 784, classes: int = 10) -> None:
        """Build the linear layer.

        Args:
            in_features: Numbers in one sample.
            classes: Number of classes.
        """
        super().__init__(nn.Flatten(), nn.Linear(in_features, classes))


class LeNet5(nn.Sequential):
    """Implements LeNet-5 with ReLU and max pooling: 61,706 parameters at 28 x 28 grey pixels and 10 classes."""

    def __init__(self, channels: int = 1, size: int = 28, classes: int = 10) -> None:
        """Build the layers.

        Args:
            channels: Channels of the image.
            size: Height and width, at least 12.
            classes: Number of classes.
        """
        side = (size // 2 - 4) // 2
        super().__init__(
            nn.Conv2d(channels, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * side * side, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )


class CNN(nn.Sequential):
    """Implements the CNN of McMahan et al. (2017): 1,663,370 parameters at 28 x 28 grey pixels, 10 classes."""

    def __init__(self, channels: int = 1, size: int = 28, classes: int = 10) -> None:
        """Build the layers.

        Args:
            channels: Channels of the image.
            size: Height and width, a multiple of 4.
            classes: Number of classes.
        """
        super().__init__(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (size // 4) ** 2, 512),
            nn.ReLU(),
            nn.Linear(512, classes),
        )


class ThreeLayerCNN(nn.Sequential):
    """Has 16, 32 and 64 filters of 3 x 3, each layer with ReLU and 2 x 2 max pooling (FeDualEx, A.4)."""

    def __init__(self, channels: int = 3, size: int = 32, classes: int = 10) -> None:
        """Build the layers.

        Args:
            channels: Channels of the image.
            size: Height and width, at least 8.
            classes: Number of classes.
        """
        layers: list[nn.Module] = []
        for width in (16, 32, 64):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            channels = width
        super().__init__(*layers, nn.Flatten(), nn.Linear(64 * (size // 8) ** 2, classes))


class MLP(nn.Sequential):
    """Applies linear layers with ReLU between to the flattened input; 784-200-200-10 in CDMA, 60-32-10 in FIAELT."""

    def __init__(self, widths: Sequence[int] = (784, 200, 200, 10)) -> None:
        """Build the layers.

        Args:
            widths: Numbers in one sample, units of the hidden layers, classes.

        Raises:
            ValueError: If there are fewer than two.
        """
        if len(widths) < 2:
            raise InvalidValueError(f"MLP(widths={list(widths)}): expected the input's, hidden and the output's width.")
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(*layers[:-1])
