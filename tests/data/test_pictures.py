"""CIFAR-10, CIFAR-100 and Tiny ImageNet from files in their makers' layouts."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from fedlightning.data import CIFAR10, CIFAR100, TinyImageNet
from fedlightning.data.pictures import read_cifar10, read_cifar100, read_tiny_imagenet
from tests.support.image_files import archive, cifar100, colours, write_binary, write_python, write_tiny_imagenet


@pytest.mark.parametrize("write", [write_binary, write_python])
def test_cifar100(tmp_path, write, monkeypatch):
    import torchvision.datasets

    monkeypatch.setattr(torchvision.datasets.CIFAR100, "_check_integrity", lambda self: True)  # knows the real files
    monkeypatch.setattr(torchvision.datasets.CIFAR100, "_load_meta", lambda self: None)
    parts = cifar100()
    images, labels, test_images, test_labels = read_cifar100(write(tmp_path, parts))
    for tensor, array in zip((images, labels, test_images, test_labels), (*parts[0][:2], *parts[1][:2]), strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    assert labels.dtype == torch.long


def test_tiny_imagenet(tmp_path):
    colours = write_tiny_imagenet(tmp_path)
    for root in (tmp_path, tmp_path / "tiny-imagenet-200", tmp_path):  # the last time from the cache
        images, labels, val_images, val_labels = read_tiny_imagenet(root, cache=tmp_path / "cache")
        assert images.shape == (12, 3, 64, 64)
        assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        assert val_labels.tolist() == [1, 0, 2, 1, 0, 2]
        names = [f"{wnid}_{i}.JPEG" for wnid in ("n01", "n02", "n03") for i in range(4)]
        for picture, name in zip((*images, *val_images), [*names, *(f"val_{i}.JPEG" for i in range(6))], strict=True):
            assert np.abs(picture[:, 20, 30].numpy().astype(int) - colours[name]).max() <= 3, name
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_what_is_missing_or_broken_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cifar-100-python: point root .* or at one with cifar-100-binary/"):
        CIFAR100(str(tmp_path)).setup()
    with pytest.raises(FileNotFoundError, match=r"wnids\.txt: point root at the unpacked"):
        TinyImageNet(str(tmp_path)).setup()
    with pytest.raises(ValueError, match=r"fetch http://cs231n\.stanford\.edu"):
        TinyImageNet(str(tmp_path), download=True).setup()
    write_binary(tmp_path, cifar100(2, 1))
    (tmp_path / "cifar-100-binary" / "test.bin").write_bytes(b"123")
    with pytest.raises(ValueError, match="has 3 bytes, which is no multiple of 3074"):
        CIFAR100(str(tmp_path)).setup()
    (tmp_path / "cifar-100-binary" / "test.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"test\.bin: expected"):
        CIFAR100(str(tmp_path)).setup()


def test_archive(tmp_path):
    pictures = colours()
    path = archive(tmp_path / "cifar.npz", pictures)
    for _ in range(2):  # the second time from the cache
        images, labels, test_images, test_labels = read_cifar10(path, cache=tmp_path / "cache")
        np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), pictures[:4])
        np.testing.assert_array_equal(test_images.permute(0, 2, 3, 1).numpy(), pictures[4:])
        assert labels.tolist() == [0, 1, 2, 3]
        assert test_labels.tolist() == [4, 5, 6, 7]
    assert len(list((tmp_path / "cache").iterdir())) == 1
    size = path.stat().st_size
    archive(path, pictures[::-1])
    assert path.stat().st_size == size  # as before, but for the pictures
    images, *_ = read_cifar10(path, cache=tmp_path / "cache")
    np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), pictures[:3:-1])


def test_torchvision_folder(tmp_path, monkeypatch):
    pictures = colours()
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
