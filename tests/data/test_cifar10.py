"""CIFAR-10 from torchvision's folder and from an archive of encoded pictures."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from fedlightning.data import CIFAR10, IID, ScalePixels
from fedlightning.data.pictures import read_cifar10


@pytest.fixture
def pictures():
    return np.random.default_rng(0).integers(256, size=(8, 32, 32, 3), dtype=np.uint8)


def archive(path, pictures):
    blobs = []
    for picture in pictures:
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "png")
        blobs.append(buffer.getvalue())
    np.savez(
        path,
        blob=np.frombuffer(b"".join(blobs), np.uint8),
        offsets=np.cumsum([0, *map(len, blobs)]),
        label=np.arange(8),
        split=np.array([0, 0, 0, 0, 1, 1, 1, 1]),
    )
    return path


def test_archive(tmp_path, pictures):
    path = archive(tmp_path / "cifar.npz", pictures)
    for _ in range(2):  # the second time from the cache
        images, labels, test_images, test_labels = read_cifar10(path, cache=tmp_path / "cache")
        np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), pictures[:4])
        np.testing.assert_array_equal(test_images.permute(0, 2, 3, 1).numpy(), pictures[4:])
        assert labels.tolist() == [0, 1, 2, 3]
        assert test_labels.tolist() == [4, 5, 6, 7]
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_data_module(tmp_path, pictures):
    path = archive(tmp_path / "cifar.npz", pictures)
    data = CIFAR10(str(path), IID(2), ScalePixels(mean=0.0, std=1.0), batch_size=2)
    image, label = data.federation.train[torch.tensor([1])]
    np.testing.assert_allclose(image[0].permute(1, 2, 0).numpy(), pictures[1] / 255, atol=1e-6)
    assert label == 1
    assert len(data.federation.val) == len(data.federation.test) == 2
    held_out = data.federation.val.tensors[1].tolist() + data.federation.test.tensors[1].tolist()
    assert sorted(held_out) == [4, 5, 6, 7]


def test_torchvision_folder(tmp_path, pictures, monkeypatch):
    import torchvision.datasets

    monkeypatch.setattr(torchvision.datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "_load_meta", lambda self: None)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    flat = pictures.transpose(0, 3, 1, 2).reshape(8, -1)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        with (folder / name).open("wb") as file:
            pickle.dump({"data": flat, "labels": list(range(8))}, file)
    images, labels, test_images, _ = read_cifar10(tmp_path)
    assert images.shape == (40, 3, 32, 32)
    assert len(labels) == 40
    np.testing.assert_array_equal(test_images.permute(0, 2, 3, 1).numpy(), pictures)


@pytest.mark.parametrize(("root", "message"), [("nowhere", "cifar-10-batches-py"), ("no.npz", "no such file")])
def test_missing_files_are_named(tmp_path, root, message):
    with pytest.raises(FileNotFoundError, match=message):
        CIFAR10(str(tmp_path / root)).setup()
