"""DCGAN (Radford, Metz, Chintala, ICLR 2016) for images of 28, 32 or 64 pixels."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from fedlightning.core.errors import InvalidValueError

_FIRST_SIDE = {28: 7, 32: 4, 64: 4}


class DCGANGenerator(nn.Module):
    """Maps noise ``[B, latent]`` to images ``[B, channels, size, size]`` in [-1, 1].

    Attributes:
        latent: Length of a noise vector.
    """

    def __init__(self, size: int = 28, channels: int = 1, width: int = 64, latent: int = 100) -> None:
        """Build the layers.

        Args:
            size: Height and width: 28, 32 or 64.
            channels: Channels of the image.
            width: Channels before the last layer; every layer before has twice as many.
            latent: Length of a noise vector.

        Raises:
            ValueError: If the size is none of these.
        """
        super().__init__()
        self.latent = latent
        side, ups = _sides(size)
        widths = [width * 2 ** (ups - 1 - i) for i in range(ups)]
        layers: list[nn.Module] = [
            nn.Linear(latent, widths[0] * side * side, bias=False),
            nn.Unflatten(1, (widths[0], side, side)),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(),
        ]
        for before, after in pairwise(widths):
            layers += [nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.ConvTranspose2d(widths[-1], channels, 4, 2, 1), nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        self.apply(_init)

    def forward(self, noise: Tensor) -> Tensor:
        """Return the images generated from noise."""
        return self.layers(noise)  # type: ignore[no-any-return]


class DCGANDiscriminator(nn.Sequential):
    """Maps images ``[B, channels, size, size]`` to logits ``[B, 1]``, positive for real images."""

    def __init__(self, size: int = 28, channels: int = 1, width: int = 64) -> None:
        """Build the layers.

        Args:
            size: Height and width: 28, 32 or 64.
            channels: Channels of the image.
            width: Channels of the first layer; every further one has twice as many.

        Raises:
            ValueError: If the size is none of these.
        """
        side, downs = _sides(size)
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 4, 2, 1), nn.LeakyReLU(0.2)]
        for _ in range(downs - 1):
            layers += [nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2)]
            width *= 2
        super().__init__(*layers, nn.Flatten(), nn.Linear(width * side * side, 1))
        self.apply(_init)


def _sides(size: int) -> tuple[int, int]:
    """Return the side of the innermost layer, and how often the side doubles."""
    if size not in _FIRST_SIDE:
        raise InvalidValueError(f"DCGAN(size={size}): expected one of {sorted(_FIRST_SIDE)}.")
    side = _FIRST_SIDE[size]
    return side, (size // side).bit_length() - 1


def _init(module: nn.Module) -> None:
    """Draw normal weights of deviation 0.02, as in the paper, and normalisation scales around one."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, mean=1.0, std=0.02)
