"""Source and target domains: who holds which digits, and what is cached."""

from __future__ import annotations

import pytest
import torch

from fedlightning.data import MNISTM, DigitsM, Office31, RoundLoader
from tests.support.image_files import write_mnist, write_photographs


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
    write_photographs(photos, 5)  # more of them, under the same path
    assert not torch.equal(first.train.tensors["image"], make().federation.train.tensors["image"])
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


@pytest.mark.shared_data
def test_real_mnist_m(shared_data, tmp_path):
    data = MNISTM(f"{shared_data}/mnist", f"{shared_data}/bsds500/bsds500_trainval_jpeg.npz", cache=str(tmp_path))
    federation = data.federation
    assert len(federation.train) == 120_000
    assert torch.bincount(federation.train.tensors["label"][:60_000])[:3].tolist() == [5923, 6742, 5958]
    assert federation.train.tensors["label"][:5].tolist() == [5, 0, 4, 1, 9]
