"""Images: reading, scaling, blending with photographs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedlightning.data.images import ScalePixels, blend, digits_images, read_idx, read_photographs, sample_photographs
from tests.support.image_files import write_mnist, write_photographs


def test_blend_is_the_absolute_difference():
    digits = torch.tensor([[[0, 255], [128, 10]]], dtype=torch.uint8)
    photograph = np.full((2, 2, 3), 100, np.uint8)
    photograph[..., 1] = 200
    out = blend(digits, [photograph], seed=0)
    assert out.shape == (1, 3, 2, 2)
    assert out[0, 0].tolist() == [[100, 155], [28, 90]]
    assert out[0, 1].tolist() == [[200, 55], [72, 190]]


def test_blend_repeats_with_its_seed():
    digits = torch.zeros(5, 8, 8, dtype=torch.uint8)
    one, same, other = (blend(digits, sample_photographs(), seed) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_scale_pixels():
    out = ScalePixels(0.5, 0.25)({"image": torch.tensor([0, 255], dtype=torch.uint8), "label": torch.tensor(1)})
    torch.testing.assert_close(out["image"], torch.tensor([-2.0, 2.0]))
    first, second = ScalePixels()((torch.tensor([0, 255], dtype=torch.uint8), torch.tensor(1)))
    torch.testing.assert_close(first, torch.tensor([-1.0, 1.0]))
    assert second == 1


@pytest.mark.parametrize("packed", [True, False])
def test_read_idx_equals_torchvision(tmp_path, packed):
    write_mnist(tmp_path, packed=packed)
    images, labels = read_idx(tmp_path, "MNIST", train=True)
    assert images.shape == (40, 28, 28)
    if not packed:
        from torchvision.datasets import MNIST as Reference

        reference = Reference(tmp_path, train=True)
        assert torch.equal(images, reference.data)
        assert torch.equal(labels, reference.targets)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte.*download to true"):
        read_idx(tmp_path, "MNIST", train=True)
    with pytest.raises(FileNotFoundError, match="No photographs in"):
        read_photographs(tmp_path)


def test_photographs_from_folder_array_and_archive(tmp_path):
    folder = write_photographs(tmp_path / "photos")
    from_folder = read_photographs(folder)
    np.save(tmp_path / "photos.npy", np.stack(from_folder))
    encoded = [path.read_bytes() for path in sorted(folder.iterdir())]
    offsets = np.cumsum([0, *map(len, encoded)])
    np.savez(tmp_path / "photos.npz", blob=np.frombuffer(b"".join(encoded), np.uint8), offsets=offsets)
    for other in (read_photographs(tmp_path / "photos.npy"), read_photographs(tmp_path / "photos.npz")):
        assert all(np.array_equal(a, b) for a, b in zip(from_folder, other, strict=True))


def test_digits_are_scikit_learns():
    images, labels = digits_images(8)
    assert images.shape == (1797, 8, 8)
    assert images.max() == 255
    assert torch.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
