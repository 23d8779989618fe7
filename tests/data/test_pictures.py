"""CIFAR-100 and Tiny ImageNet from folders in their makers' layouts."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from fedlightning.data import (
    CIFAR100,
    IID,
    Dirichlet,
    PersonalCIFAR100,
    PersonalTinyImageNet,
    ScalePixels,
    TinyImageNet,
)
from fedlightning.data.pictures import read_cifar100, read_tiny_imagenet


def cifar100(train=20, test=10):
    draw = np.random.default_rng(0)
    return [
        (draw.integers(256, size=(n, 3, 32, 32), dtype=np.uint8), draw.integers(100, size=n), draw.integers(20, size=n))
        for n in (train, test)
    ]


def write_binary(root, parts):
    folder = root / "cifar-100-binary"
    folder.mkdir()
    for name, (pictures, fine, coarse) in zip(("train", "test"), parts, strict=True):
        with (folder / f"{name}.bin").open("wb") as file:
            for picture, f, c in zip(pictures, fine, coarse, strict=True):
                file.write(bytes([c, f]) + picture.tobytes())
    return root


def write_python(root, parts):
    folder = root / "cifar-100-python"
    folder.mkdir()
    for name, (pictures, fine, coarse) in zip(("train", "test"), parts, strict=True):
        content = {
            "filenames": ["a.png"] * len(fine),
            "batch_label": "batch",
            "fine_labels": fine.tolist(),
            "coarse_labels": coarse.tolist(),
            "data": pictures.reshape(len(pictures), -1),
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    names = {"fine_label_names": ["x"] * 100, "coarse_label_names": ["y"] * 20}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    return root


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


def test_cifar100_over_clients(tmp_path):
    root = str(write_binary(tmp_path, cifar100(300, 100)))
    data = CIFAR100(root, IID(3), ScalePixels(mean=0.0, std=1.0))
    assert [len(part) for part in (data.federation.train, data.federation.val, data.federation.test)] == [300, 50, 50]
    personal = PersonalCIFAR100(root, Dirichlet(4, 0.5, min_size=20))
    federation = personal.federation
    whole = Dirichlet(4, 0.5, min_size=20).split(personal.samples()[1], personal.seed)
    parts = federation.partition, federation.val_partition, federation.test_partition
    for i, own in enumerate(whole):
        assert sorted(torch.cat([part[i] for part in parts]).tolist()) == sorted(own.tolist())
        assert len(parts[2][i]) == round(0.2 * len(own))


def write_tiny_imagenet(root, ids=("n02", "n01", "n03"), train=4, val=6):
    """Every picture in one colour of its own; returns the colours by part and class."""
    folder = root / "tiny-imagenet-200"
    draw = np.random.default_rng(0)
    colours = {}

    def save(path, mode="RGB"):
        path.parent.mkdir(parents=True, exist_ok=True)
        colour = tuple(int(c) for c in draw.integers(256, size=3)) if mode == "RGB" else int(draw.integers(256))
        Image.new(mode, (64, 64), colour).save(path, "JPEG", quality=100, subsampling=0)
        colours[path.name] = colour if mode == "RGB" else (colour,) * 3

    for wnid in ids:
        for i in range(train):
            save(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", "L" if i == 2 else "RGB")
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t63\t63\n")
    notes = []
    for i in range(val):
        save(folder / "val" / "images" / f"val_{i}.JPEG")
        notes.append(f"val_{i}.JPEG\t{ids[i % len(ids)]}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(notes))
    save(folder / "test" / "images" / "test_0.JPEG")
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in ids))
    (folder / "words.txt").write_text("n01\tgoldfish\n")
    return colours


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


def test_tiny_imagenet_over_clients(tmp_path):
    write_tiny_imagenet(tmp_path)
    data = TinyImageNet(str(tmp_path), IID(2))
    assert [len(part) for part in (data.federation.train, data.federation.val, data.federation.test)] == [12, 3, 3]
    personal = PersonalTinyImageNet(str(tmp_path), IID(3), val_share=0.2)
    assert [len(part) for part in personal.federation.test_partition] == [1, 1, 1]
    image, _ = personal.federation.train[torch.tensor([0])]
    assert image.shape == (1, 3, 64, 64)
    assert -1 <= image.min() <= image.max() <= 1


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
