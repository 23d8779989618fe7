import gzip
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from fedlightning.data import IID, MNISTM, DigitsM, Office31, RoundLoader
from fedlightning.data.classification import MNIST, Digits
from fedlightning.data.images import ScalePixels, blend, digits_images, read_idx, read_photographs, sample_photographs


def write_mnist(root, train=40, test=20, packed=True):
    """A tiny MNIST in torchvision's layout."""
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for part, count in (("train", train), ("t10k", test)):
        images = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = draw.integers(0, 10, count, dtype=np.uint8)
        files = {
            f"{part}-images-idx3-ubyte": struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes(),
            f"{part}-labels-idx1-ubyte": struct.pack(">II", 2049, count) + labels.tobytes(),
        }
        for name, content in files.items():
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    return root


def write_photographs(folder, count=3):
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        pixels = np.random.default_rng(i).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


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


def fingerprints(data, members):
    return {tuple(image.flatten().tolist()) for image in data.tensors["image"][members]}


def test_digits_m_parts_are_disjoint_and_targets_unlabelled():
    federation = DigitsM(num_clients=4, p=1.0).federation
    train, domain = federation.train.tensors, federation.train.tensors["domain"]
    assert (domain == 0).sum() == (domain == 1).sum() == 650
    assert (train["label"][domain == 1] == -1).all()
    assert (train["label"][domain == 0] >= 0).all()
    source = fingerprints(federation.train, domain == 0)
    for part, size in ((federation.val, 197), (federation.test, 300)):
        assert len(part) == 2 * size
        assert (part.tensors["label"] >= 0).all()
        assert not source & fingerprints(part, part.tensors["domain"] == 0)
    assert [domain[part].float().mean().item() for part in federation.partition] == [0, 0, 1, 1]


def test_digits_m_arrives_scaled():
    data = DigitsM()
    chunk = next(next(iter(RoundLoader(data))).place(torch.device("cpu"), torch.float32).cohorts[0].chunks(2))
    batch = next(chunk.minibatches()).data
    assert batch["image"].shape == (2, 32, 3, 16, 16)
    assert -1 <= batch["image"].min() < batch["image"].max() <= 1


def test_mnist_m_is_cached(tmp_path):
    root, photos = write_mnist(tmp_path), write_photographs(tmp_path / "photos")

    def make(**changes):
        return MNISTM(str(root), str(photos), cache=str(tmp_path / "cache"), batch_size=4, **changes)

    first = make().federation
    files = sorted((tmp_path / "cache").iterdir())
    assert len(files) == 2
    stamps = [file.stat().st_mtime_ns for file in files]
    again = make().federation
    assert [file.stat().st_mtime_ns for file in files] == stamps
    assert torch.equal(first.train.tensors["image"], again.train.tensors["image"])
    binary = make(binary_digits=True).federation
    assert not torch.equal(first.train.tensors["image"], binary.train.tensors["image"])
    assert len(first.train) == 80
    assert first.train.tensors["image"].shape == (80, 3, 28, 28)


def test_office_31_from_folders(tmp_path):
    for domain in ("amazon", "dslr", "webcam"):
        for label in ("bike", "mug"):
            write_photographs(tmp_path / domain / "images" / label, 2)
    data = Office31(str(tmp_path), source="amazon", target="dslr", size=24, batch_size=2, local_steps=2)
    assert data.num_clients == 2
    chunk = next(next(iter(RoundLoader(data))).place(torch.device("cpu"), torch.float32).cohorts[0].chunks(2))
    batch = next(chunk.minibatches()).data
    assert batch["image"].shape == (2, 2, 3, 24, 24)
    assert batch["domain"].tolist() == [[0, 0], [1, 1]]
    assert (batch["label"][1] == -1).all()
    evaluated = next(iter(data.val_dataloader()))
    assert evaluated["domain"].tolist() == [0] * 4 + [1] * 4
    assert evaluated["label"].tolist() == [0, 0, 1, 1] * 2
    with pytest.raises(FileNotFoundError, match=r"no folder .*caltech"):
        _ = Office31(str(tmp_path), source="caltech").federation


def test_classification_sets(tmp_path):
    digits = Digits().federation
    assert [len(d) for d in (digits.train, digits.val, digits.test)] == [1197, 300, 300]
    mnist = MNIST(str(write_mnist(tmp_path)), partitioner=IID(8)).federation
    assert (len(mnist.train), len(mnist.partition)) == (40, 8)
    assert mnist.train.tensors[0].shape == (40, 1, 28, 28)


@pytest.mark.shared_data
def test_real_mnist_m(shared_data, tmp_path):
    data = MNISTM(f"{shared_data}/mnist", f"{shared_data}/bsds500/bsds500_trainval_jpeg.npz", cache=str(tmp_path))
    federation = data.federation
    assert len(federation.train) == 120_000
    assert torch.bincount(federation.train.tensors["label"][:60_000])[:3].tolist() == [5923, 6742, 5958]
    assert federation.train.tensors["label"][:5].tolist() == [5, 0, 4, 1, 9]
