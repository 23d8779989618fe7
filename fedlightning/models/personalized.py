"""Networks whose parts are named so that some of them can stay on the clients."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PersonalMLP(nn.Module):
    """One hidden layer: ``body`` and ``head``."""

    def __init__(self, in_features: int = 64, hidden: int = 32, classes: int = 10) -> None:
        """Build it.

        Args:
            in_features: Numbers in one sample.
            hidden: Width of the hidden layer.
            classes: Number of classes.
        """
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(in_features, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Samples ``[B, ...]`` to logits ``[B, classes]``."""
        return self.head(self.body(x))  # type: ignore[no-any-return]


class TwoLayerCNN(nn.Module):
    """FedAPM's network for CIFAR-10 (B.2.1): convolutions ``body`` 16-32 and fully connected ``head`` 2048-128-C.

    The paper also puts a ReLU on the logits; a class whose logit is negative would get no gradient, so there is none
    here.
    """

    def __init__(self, channels: int = 3, size: int = 32, classes: int = 10, hidden: int = 128) -> None:
        """Build it.

        Args:
            channels: Channels of the image.
            size: Height and width, a multiple of 4.
            classes: Number of classes.
            hidden: Width of the first fully connected layer.
        """
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(32 * (size // 4) ** 2, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[B, channels, size, size]`` to logits ``[B, classes]``."""
        return self.head(self.body(x))  # type: ignore[no-any-return]


class AttentionPooling(nn.Module):
    """Several weighted means over time, their weights a small network of each step (Lin et al., ICLR 2017)."""

    def __init__(self, width: int, heads: int, hidden: int = 64) -> None:
        """Build it.

        Args:
            width: Length of a step's features.
            heads: Number of weighted means.
            hidden: Width of the network that gives the weights.
        """
        super().__init__()
        self.score = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, heads))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, width]`` to ``[B, heads * width]``."""
        weights: Tensor = self.score(x).softmax(1)
        return (weights.mT @ x).flatten(1)


class SensorStream(nn.Module):
    """One sensor: ``conv``, three convolutions over time with kernels of 5, and ``rnn``, a gated recurrent layer."""

    def __init__(self, channels: int = 3, widths: tuple[int, int, int] = (32, 64, 128)) -> None:
        """Build it.

        Args:
            channels: Axes of the sensor.
            widths: Channels of the convolutions; the recurrent layer is as wide as the last.
        """
        super().__init__()
        layers: list[nn.Module] = []
        for width in widths:
            layers += [nn.Conv1d(channels, width, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2)]
            channels = width
        self.conv = nn.Sequential(*layers)
        self.rnn = nn.GRU(channels, channels, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, channels, T]`` to ``[B, T // 8, width]``."""
        steps: Tensor = self.rnn(self.conv(x).mT)[0]
        return steps


class HARNet(nn.Module):
    """FedAPM's network for activity recognition (B.2.3): ``acc``, ``gyro``, ``fusion``, ``head``.

    Two :class:`SensorStream`, joined along time, pooled by attention with six heads, classified through 64 units. The
    paper's split-input personalisation keeps ``acc.conv`` on the clients. The paper does not mention pooling between
    the convolutions; halving time after each keeps the recurrent layers at 16 steps for windows of 128.
    """

    def __init__(self, classes: int = 6, widths: tuple[int, int, int] = (32, 64, 128), heads: int = 6) -> None:
        """Build it.

        Args:
            classes: Number of classes.
            widths: Channels of each stream's convolutions.
            heads: Weighted means of the fusion.
        """
        super().__init__()
        self.acc = SensorStream(3, widths)
        self.gyro = SensorStream(3, widths)
        self.fusion = AttentionPooling(widths[-1], heads)
        self.head = nn.Sequential(nn.Linear(heads * widths[-1], 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, 6, T]``, three axes of acceleration and three of rotation, to logits ``[B, classes]``."""
        steps = torch.cat([self.acc(x[:, :3]), self.gyro(x[:, 3:])], dim=1)
        return self.head(self.fusion(steps))  # type: ignore[no-any-return]
