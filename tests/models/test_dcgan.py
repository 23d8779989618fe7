"""DCGAN's networks."""

from __future__ import annotations

import pytest
import torch

from fedlightning.models import DCGANDiscriminator, DCGANGenerator


@pytest.mark.parametrize(("size", "channels"), [(28, 1), (32, 3), (64, 3)])
def test_dcgan_shapes(size, channels):
    generator = DCGANGenerator(size, channels, width=4, latent=7)
    images = generator(torch.rand(2, 7))
    assert images.shape == (2, channels, size, size)
    assert images.abs().max() <= 1
    assert DCGANDiscriminator(size, channels, width=4)(images).shape == (2, 1)


def test_dcgan_of_another_size():
    with pytest.raises(ValueError, match=r"DCGAN\(size=30\): expected one of \[28, 32, 64\]"):
        DCGANGenerator(30)
