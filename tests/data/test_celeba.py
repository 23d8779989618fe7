"""CelebA from a small folder in its layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from fedlightning.algorithms import FedAvg
from fedlightning.data import ByGroup, CelebA, RoundLoader, Shards


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "celeba" / "img_align_celeba"
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    people, parts = [3, 1, 2, 1, 3, 2, 9, 9], [0, 0, 0, 0, 0, 0, 1, 2]
    for i in range(8):
        Image.fromarray(draw.integers(256, size=(218, 178, 3), dtype=np.uint8)).save(folder / f"{i}.jpg")
    for name, values in (("identity_CelebA.txt", people), ("list_eval_partition.txt", parts)):
        (tmp_path / "celeba" / name).write_text("".join(f"{i}.jpg {v}\n" for i, v in enumerate(values)))
    return str(tmp_path)


def test_clients_are_people(root):
    data = CelebA(root, ByGroup(), size=16)
    train, partition = data.federation.train, data.federation.partition
    assert [{train[int(i)][1] for i in partition[c]} for c in range(3)] == [{1}, {2}, {3}]
    image, _ = train[0]
    assert image.shape == (3, 16, 16)
    assert -1 <= image.min() < image.max() <= 1
    assert len(data.federation.val) == len(data.federation.test) == 1


def test_equal_parts_sorted_by_identity_are_dealt(root):
    data = CelebA(root, Shards(3, shards_per_client=1), size=16, batch_size=2, local_steps=1, rounds_per_epoch=1)
    batch = next(iter(RoundLoader(data, FedAvg(0.1).phases))).place(torch.device("cpu"), torch.float32)
    chunk = next(batch.cohorts[0].chunks(3))
    image, identity = next(chunk.minibatches()).data
    assert image.shape == (3, 2, 3, 16, 16)
    assert identity.sort(1).values.tolist() == [[1, 1], [2, 2], [3, 3]]


def test_missing_lists_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"identity_CelebA.txt: expected CelebA in torchvision's layout"):
        CelebA(str(tmp_path)).setup()
