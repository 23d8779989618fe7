"""Networks whose parts are named so that some of them can stay on the clients."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor, nn

from fedlightning.core.requirements import imported


class Chain(nn.Sequential):
    """Applies named parts one after the other, for networks defined in a configuration file."""

    def __init__(self, parts: dict[str, nn.Module]) -> None:
        """Store the parts under the names used in ``personal_parameters``."""
        super().__init__(OrderedDict(parts))


class PersonalMLP(nn.Module):
    """Implements a network with one hidden layer: ``body`` and ``head``."""

    def __init__(self, in_features: int = 64, hidden: int = 32, classes: int = 10) -> None:
        """Build the layers.

        Args:
            in_features: Numbers in one sample.
            hidden: Width of the hidden layer.
            classes: Number of classes.
        """
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(in_features, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map samples ``[B, ...]`` to logits ``[B, classes]``."""
        return self.head(self.body(x))  # type: ignore[no-any-return]


class TwoLayerCNN(nn.Module):
    """Implements FedAPM's network for CIFAR-10 (B.2.1): convolutions ``body`` 16-32 and linear ``head`` 2048-128-C.

    The paper also puts a ReLU on the logits; a class whose logit is negative would get no gradient, so there is none
    here.
    """

    def __init__(self, channels: int = 3, size: int = 32, classes: int = 10, hidden: int = 128) -> None:
        """Build the layers.

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
        """Map images ``[B, channels, size, size]`` to logits ``[B, classes]``."""
        return self.head(self.body(x))  # type: ignore[no-any-return]


def _steps(rnn: nn.GRU, x: Tensor) -> Tensor:
    """Return the outputs of a recurrent layer at all steps, ``[B, T, in]`` to ``[B, T, width]``.

    Made from ``x``, the first state is every client's own under ``vmap``; the layer writes its first step into one that
    is not, where its weights are frozen and so nobody's own (FedCP's received body).
    """
    steps: Tensor = rnn(x, x.new_zeros(1, len(x), rnn.hidden_size))[0]
    return steps


class AttentionPooling(nn.Module):
    """Computes several weighted means over time; a small network weights each step (Lin et al., ICLR 2017)."""

    def __init__(self, width: int, heads: int, hidden: int = 64) -> None:
        """Build the network that computes the weights.

        Args:
            width: Length of a step's features.
            heads: Number of weighted means.
            hidden: Width of the network that gives the weights.
        """
        super().__init__()
        self.score = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, heads))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, T, width]`` to ``[B, heads * width]``."""
        weights: Tensor = self.score(x).softmax(1)
        return (weights.mT @ x).flatten(1)


class SensorStream(nn.Module):
    """Processes one sensor: ``conv``, three convolutions over time with kernels of 5, and ``rnn``, a GRU."""

    def __init__(self, channels: int = 3, widths: tuple[int, int, int] = (32, 64, 128)) -> None:
        """Build the layers.

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
        """Map ``[B, channels, T]`` to ``[B, T // 8, width]``."""
        return _steps(self.rnn, self.conv(x).mT)


class HARNet(nn.Module):
    """Implements FedAPM's network for activity recognition (B.2.3): ``acc``, ``gyro``, ``fusion``, ``head``.

    Two :class:`SensorStream`, joined along time, pooled by attention with six heads, classified through 64 units. The
    paper's split-input personalisation keeps ``acc.conv`` on the clients. The paper does not mention pooling between
    the convolutions; halving time after each keeps the recurrent layers at 16 steps for windows of 128.
    """

    def __init__(self, classes: int = 6, widths: tuple[int, int, int] = (32, 64, 128), heads: int = 6) -> None:
        """Build the layers.

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

    def features(self, x: Tensor | dict[str, Tensor]) -> Tensor:
        """Return the features that enter the head, ``[B, heads * width]``."""
        acc, gyro = (x["acc"].mT, x["gyro"].mT) if isinstance(x, dict) else (x[:, :3], x[:, 3:])
        steps = torch.cat([self.acc(acc), self.gyro(gyro)], dim=1)
        return self.fusion(steps)  # type: ignore[no-any-return]

    def forward(self, x: Tensor | dict[str, Tensor]) -> Tensor:
        """Map ``[B, 6, T]``, three axes of acceleration and three of rotation, to logits ``[B, classes]``.

        Also from ``acc`` and ``gyro``, ``[B, T, 3]`` each, as precomputed features come.
        """
        return self.head(self.features(x))  # type: ignore[no-any-return]


class ImageTextNet(nn.Module):
    """Implements FedAPM's network for image and text features (B.2.2): ``image``, ``text``, ``fusion``, ``head``.

    An image's features, projected, are one step beside the text's recurrent steps; attention pools them.
    Input personalisation keeps ``image`` and ``text`` on the clients.
    """

    def __init__(
        self,
        classes: int = 8,
        image_features: int = 1280,
        text_features: int = 512,
        width: int = 64,
        heads: int = 4,
        dropout: float = 0.1,
    ) -> None:
        """Build the layers.

        Args:
            classes: Number of classes.
            image_features: Length of an image's features (MobileNetV2: 1280).
            text_features: Length of a text step's features (MobileBERT: 512).
            width: Length of both after their first layers.
            heads: Weighted means of the fusion.
            dropout: Share of the image's projected features that is dropped in training.
        """
        super().__init__()
        self.image = nn.Sequential(nn.Linear(image_features, width), nn.ReLU(), nn.Dropout(dropout))
        self.text = nn.GRU(text_features, width, batch_first=True)
        self.fusion = AttentionPooling(width, heads)
        self.head = nn.Sequential(nn.Linear(heads * width, 64), nn.ReLU(), nn.Linear(64, classes))

    def features(self, x: dict[str, Tensor]) -> Tensor:
        """Return the features that enter the head, ``[B, heads * width]``."""
        steps = torch.cat([self.image(x["image"]).unsqueeze(1), _steps(self.text, x["text"])], dim=1)
        return self.fusion(steps)  # type: ignore[no-any-return]

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        """Map ``image [B, features]`` and ``text [B, T, features]`` to logits ``[B, classes]``."""
        return self.head(self.features(x))  # type: ignore[no-any-return]


class AudioVideoNet(nn.Module):
    """Implements FedAPM's network for audio and video features (B.2.4): ``audio``, ``video``, ``fusion``, ``head``.

    Audio goes through a :class:`SensorStream`, video through a recurrent layer, both through attention with six heads.
    Input personalisation keeps ``audio`` and ``video`` on the clients.
    """

    def __init__(
        self,
        classes: int = 6,
        audio_features: int = 80,
        video_features: int = 1280,
        widths: tuple[int, int, int] = (32, 64, 128),
        heads: int = 6,
    ) -> None:
        """Build the layers.

        Args:
            classes: Number of classes.
            audio_features: Length of an audio step's features (80 cepstral coefficients).
            video_features: Length of a video frame's features (MobileNetV2: 1280).
            widths: Channels of the audio convolutions; both recurrent layers are as wide as the last.
            heads: Weighted means of the fusion.
        """
        super().__init__()
        self.audio = SensorStream(audio_features, widths)
        self.video = nn.GRU(video_features, widths[-1], batch_first=True)
        self.fusion = AttentionPooling(widths[-1], heads)
        self.head = nn.Linear(heads * widths[-1], classes)

    def features(self, x: dict[str, Tensor]) -> Tensor:
        """Return the features that enter the head, ``[B, heads * width]``."""
        steps = torch.cat([self.audio(x["audio"].mT), _steps(self.video, x["video"])], dim=1)
        return self.fusion(steps)  # type: ignore[no-any-return]

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        """Map ``audio [B, T, features]``, T >= 8, and ``video [B, T', features]`` to logits ``[B, classes]``."""
        return self.head(self.features(x))  # type: ignore[no-any-return]


class ResNet18(nn.Module):
    """Wraps torchvision's ResNet-18, split into ``body`` and ``head``.

    For images of 64 pixels and less the first convolution is 3 x 3 without stride and the first pooling is left out, as
    is usual for CIFAR-100 and Tiny ImageNet. Batch statistics are averaged like parameters, or stay local (``buffers:
    local``); group normalisation has none, and is what clients of few classes are often given in place of them.
    """

    def __init__(self, classes: int = 100, size: int = 32, groups: int | None = None) -> None:
        """Build the layers.

        Args:
            classes: Number of classes.
            size: Height and width of the images.
            groups: Groups of channels, a divisor of 64, for group normalisation; null for batch normalisation.
        """
        super().__init__()
        models = imported("torchvision.models")
        network = models.resnet18(weights=None, norm_layer=None if groups is None else partial(nn.GroupNorm, groups))
        if size <= 64:
            network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
            network.maxpool = nn.Identity()
        self.head = nn.Linear(network.fc.in_features, classes)
        network.fc = nn.Identity()
        self.body = network

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``[B, 3, size, size]`` to logits ``[B, classes]``."""
        return self.head(self.body(x))  # type: ignore[no-any-return]
