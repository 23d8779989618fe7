"""Feature extractors: images ``[B, channels, height, width]`` to features ``[B, out_features]``."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from fedlightning.core.errors import InvalidValueError, MissingFileError
from fedlightning.core.requirements import imported


class DigitFeatures(nn.Sequential):
    """Implements the extractor of FedMM's digit experiments: conv 32 - pool - conv 48 - pool, kernels 5 x 5, ReLU.

    The text of the paper has three convolutional layers, its code two; ``layers=3`` adds conv 64, 3 x 3. Weights begin
    as truncated normal numbers of deviation 0.1, biases at zero.

    Attributes:
        out_features: Length of a feature vector; 768 at 28 x 28 pixels with two layers.
    """

    def __init__(
        self, channels: int = 3, size: int = 28, widths: tuple[int, int] = (32, 48), kernel: int = 5, layers: int = 2
    ) -> None:
        """Build the layers.

        Args:
            channels: Channels of the image.
            size: Height and width.
            widths: Channels of the first and second layer.
            kernel: Their kernel size.
            layers: 2 or 3.
        """
        if layers not in (2, 3):
            raise InvalidValueError(f"DigitFeatures(layers={layers}): expected 2 or 3.")
        first, second = widths
        modules: list[nn.Module] = [
            nn.Conv2d(channels, first, kernel),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, kernel),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        side, width = ((size - kernel + 1) // 2 - kernel + 1) // 2, second
        if layers == 3:
            modules += [nn.Conv2d(second, 64, 3), nn.ReLU()]
            side, width = side - 2, 64
        if side < 1:
            raise InvalidValueError(
                f"DigitFeatures(size={size}, kernel={kernel}, layers={layers}): the image is too small."
            )
        super().__init__(*modules, nn.Flatten())
        self.out_features = width * side * side
        self.apply(init_truncated_normal)


def init_truncated_normal(module: nn.Module) -> None:
    """Draw weights of linear and convolutional layers from N(0, 0.1^2) cut at two deviations; zero the biases."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=0.1, a=-0.2, b=0.2)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class MobileNetV2Features(nn.Module):
    """Wraps torchvision's MobileNetV2 without the classifier; features are averaged over the image.

    Attributes:
        out_features: 1280.
    """

    def __init__(self, weights: str | None = None, download: bool = False) -> None:
        """Build the network and load weights if asked for.

        Args:
            weights: File with a state dict of torchvision's MobileNetV2; null for random weights.
            download: Fetch torchvision's ImageNet weights.

        Raises:
            FileNotFoundError: If ``weights`` names no file.
        """
        super().__init__()
        if weights is not None and not Path(weights).is_file():
            raise MissingFileError(f"MobileNetV2Features(weights={weights!r}): no such file.")
        models = imported("torchvision.models")
        network = models.mobilenet_v2(weights=models.MobileNet_V2_Weights.DEFAULT if download else None)
        if weights is not None:
            network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        self.features = network.features
        self.out_features = 1280

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``[B, 3, h, w]`` to features ``[B, 1280]``."""
        return self.features(x).mean(dim=(2, 3))  # type: ignore[no-any-return]
