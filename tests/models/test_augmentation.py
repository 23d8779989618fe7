"""Augmentation of images: every crop is one of torchvision's, drawn anew, in training only."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import seed_everything
from torch import nn
from torchvision.transforms.v2 import functional as T

from fedlightning.algorithms import FedAvg
from fedlightning.data import IID, Digits
from fedlightning.models import RandomCropFlip
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.tasks import Classification
from tests.support.small import trainer


def crops(image, padding):
    """Return all crops of a padded image, and their mirror images."""
    height, width = image.shape[-2:]
    padded = T.pad(image, [padding] * 4, padding_mode="reflect")
    places = range(2 * padding + 1)
    straight = [T.crop(padded, top, left, height, width) for top in places for left in places]
    return torch.stack(straight + [T.horizontal_flip(crop) for crop in straight])


def test_every_image_gets_a_crop_of_its_own():
    image = torch.rand(3, 7, 9)
    drawn = RandomCropFlip(padding=2)(image.expand(2000, -1, -1, -1))
    same = (drawn[:, None] == crops(image, 2)[None]).flatten(2).all(2)
    assert torch.equal(same.sum(1), torch.ones(2000, dtype=torch.long))
    counts = same.sum(0)  # 50 places of 40 images each, deviation 6.3
    assert counts.min() >= 15
    assert counts.max() <= 75
    assert counts[25:].sum() == pytest.approx(1000, abs=120)  # mirrored


def test_without_padding_and_mirrors_images_stay():
    images = torch.rand(5, 3, 7, 9)
    assert torch.equal(RandomCropFlip(padding=0, flip=0.0)(images), images)
    assert torch.equal(RandomCropFlip(padding=0, flip=1.0)(images), images.flip(3))
    assert torch.equal(RandomCropFlip(padding=3).eval()(images), images)


def test_oracles_draw_the_same_crops():
    def parameters(oracle):
        seed_everything(0, verbose=False)
        network = nn.Sequential(RandomCropFlip(2), nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 10))
        task = Classification(FedAvg(0.1), network=network, oracle=oracle)
        trainer(max_steps=2).fit(task, Digits(IID(3), batch_size=10, local_steps=3))
        return torch.cat([each.detach().flatten() for each in task.parameters()])

    one = parameters(Sequential())
    for oracle in (Vectorized(), Vectorized(replay=True), Vectorized(backward="each")):
        torch.testing.assert_close(parameters(oracle), one, rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", [{"padding": -1}, {"padding": 1.5}, {"flip": -0.1}, {"flip": 1.1}])
def test_settings_out_of_range_are_refused(options):
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        RandomCropFlip(**options)


def test_padding_beyond_the_image_is_refused():
    with pytest.raises(ValueError, match=r"padding=4.*: images are 4 pixels"):
        RandomCropFlip()(torch.rand(1, 1, 8, 4))
