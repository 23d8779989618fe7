"""Augmentation of images inside a network, where it is drawn anew for every sample of every minibatch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.validation import require


class RandomCropFlip(nn.Module):
    """Crops every image at a place of its own and mirrors half of them, in training mode only.

    An image is continued by reflection at its border, and cut back to its size: a crop of the padded image, as usual
    for CIFAR-10 (He et al., CVPR 2016, with reflection in place of zeros). As the first layer of a network it needs no
    loader, and validation, test and prediction see images as they are.

    Args:
        padding: Pixels >= 0 by which images are continued on each side, less than height and width.
        flip: Probability in [0, 1] that an image is mirrored from left to right.

    Shape:
        Images ``[n, channels, height, width]``, returned alike.
    """

    def __init__(self, padding: int = 4, flip: float = 0.5) -> None:
        super().__init__()
        self.padding = padding
        self.flip = flip
        require(self, "padding", at_least=0, whole=True)
        require(self, "flip", at_least=0.0, at_most=1.0)

    def forward(self, images: Tensor) -> Tensor:
        """Return the images, in training mode each at a random place."""
        if not self.training:
            return images
        rows, columns = self._places(images, -2), self._places(images, -1)
        mirrored = torch.rand(len(images), 1, device=images.device) < self.flip
        columns = torch.where(mirrored, columns.flip(1), columns)
        places = rows[:, :, None] * images.shape[-1] + columns[:, None, :]
        pixels = images.flatten(2)
        return pixels.gather(2, places.flatten(1)[:, None].expand_as(pixels)).view_as(images)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"padding={self.padding}, flip={self.flip}"

    def _places(self, images: Tensor, axis: int) -> Tensor:
        """Return where the pixels of each crop lie along an axis, ``[n, size]``, reflected into the image."""
        size = images.shape[axis]
        if self.padding >= size:
            raise InvalidValueError(f"RandomCropFlip(padding={self.padding}): images are {size} pixels wide or high.")
        shift = torch.randint(-self.padding, self.padding + 1, (len(images), 1), device=images.device)
        places = (torch.arange(size, device=images.device) + shift).abs()
        return size - 1 - (size - 1 - places).abs()
