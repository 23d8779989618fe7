"""Flipped labels are those of some clients' training samples, and of nothing else."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from torch.utils.data import Dataset

from fedlightning import FederatedDataModule
from fedlightning.channel import SignFlip
from fedlightning.data import (
    Digits,
    Federation,
    LabelFlip,
    MixedTensorData,
    Partition,
    PersonalDigits,
    TensorData,
)
from fedlightning.data.images import ScalePixels
from fedlightning.participation import Uniform

PARTITION = Partition.of([[0, 3], [1, 4], [2]])
LABELS = torch.tensor([0, 1, 2, 3, -1, 7])  # the last sample is nobody's
FLIPPED = torch.tensor([0, 6, 2, 3, -1, 7])  # those of client 1, of 8 classes
Pair = namedtuple("Pair", "x y")


def images():
    return torch.arange(6.0)[:, None]


class Loaded(Dataset):
    """Samples that are loaded one by one."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def flipped(data, partition=PARTITION, **options):
    given = Federation(data, partition, val=data)
    found = LabelFlip(**{"clients": [1], **options}).apply(given)
    assert found.partition is partition
    assert found.val is data
    return found.train


def test_labels_of_tensors_are_flipped_in_a_copy():
    data = TensorData((images(), LABELS.clone()), ScalePixels())
    found = flipped(data)
    assert torch.equal(found.tensors[1], FLIPPED)
    assert found.tensors[0] is data.tensors[0]
    assert found.transform is data.transform
    assert torch.equal(data.tensors[1], LABELS)


@pytest.mark.parametrize(
    ("tensors", "label"),
    [
        ({"x": images(), "y": LABELS}, "y"),
        ([images(), LABELS], 1),
        (Pair(images(), LABELS), 1),
        ((LABELS, images()), 0),
        ((images(), LABELS), -1),
    ],
)
def test_labels_lie_anywhere_in_a_sample(tensors, label):
    found = flipped(TensorData(tensors), label=label).tensors
    assert type(found) is type(tensors)
    assert torch.equal(found[label], FLIPPED)


def test_flipping_twice_gives_the_labels_back():
    once = flipped(TensorData((images(), LABELS)), classes=10)
    assert once.tensors[1].tolist() == [0, 8, 2, 3, -1, 7]
    assert torch.equal(flipped(once, classes=10).tensors[1], LABELS)


def test_samples_of_several_shapes_are_counted_through():
    data = MixedTensorData([TensorData((images()[:2], LABELS[:2])), TensorData((torch.zeros(4, 3), LABELS[2:]))])
    found = flipped(data)
    assert isinstance(found, MixedTensorData)
    assert torch.equal(torch.cat([part.tensors[1] for part in found.parts]), FLIPPED)


@pytest.mark.parametrize("make", [int, lambda label: label])
def test_labels_of_loaded_samples_are_flipped_as_they_come(make):
    found = flipped(Loaded([(image, make(label)) for image, label in zip(images(), LABELS, strict=True)]), classes=8)
    assert len(found) == 6
    assert [int(found[place][1]) for place in range(6)] == FLIPPED.tolist()
    assert type(found[1][1]) is type(found[0][1])
    assert torch.equal(found[1][0], images()[1])


def test_loaded_samples_may_be_dicts():
    found = flipped(Loaded([{"y": int(label)} for label in LABELS]), label="y", classes=8)
    assert found[1] == {"y": 6}


def test_loaded_labels_need_the_number_of_classes():
    with pytest.raises(ValueError, match=r"LabelFlip\(classes=None\): the labels of a Loaded .* Give classes"):
        flipped(Loaded([(0, 1)] * 6))


@pytest.mark.parametrize(
    ("data", "label"),
    [
        (TensorData((images(), LABELS)), 0),
        (TensorData((images(), LABELS)), 2),
        (TensorData((images(), LABELS)), "y"),
        (TensorData(LABELS), 1),
        (TensorData((images(), torch.zeros(6, 2, dtype=torch.long))), 1),
    ],
)
def test_samples_without_a_label_there_are_refused(data, label):
    with pytest.raises(TypeError, match=r"LabelFlip\(label=.*hold no whole number there.*label=1"):
        flipped(data, label=label)


@pytest.mark.parametrize("sample", [(0.5, 0.5), (0.5,), {"x": 1}, (0.5, torch.zeros(2))])
def test_loaded_samples_without_a_label_are_refused(sample):
    found = flipped(Loaded([sample] * 6), classes=8)
    assert found[0] is sample
    with pytest.raises(TypeError, match="hold no whole number there"):
        found[1]


def test_labels_beyond_the_classes_are_refused():
    with pytest.raises(ValueError, match=r"LabelFlip\(classes=5\): there is a label 7. Give the number of all"):
        flipped(TensorData((images(), LABELS)), classes=5)
    with pytest.raises(ValueError, match=r"LabelFlip\(classes=1\): expected >= 2"):
        LabelFlip(share=0.1, classes=1)


def test_every_data_module_takes_it():
    plain, poisoned = Digits(), Digits(poisoning=LabelFlip(share=0.25, seed=3))
    before, after = (data.federation.train.tensors[1] for data in (plain, poisoned))
    changed = {client for client, own in enumerate(plain.federation.partition) if (before != after)[own].any()}
    assert changed == SignFlip(share=0.25, seed=3).among(20)  # the clients of an adversary of the channel
    assert len(changed) == 5
    for client in changed:
        own = plain.federation.partition[client]
        assert torch.equal(after[own], 9 - before[own])
    assert torch.equal(poisoned.federation.val.tensors[1], plain.federation.val.tensors[1])
    assert plain.differs_from(poisoned.identity) is not None


def test_counts_of_true_labels_do_not_go_with_flipped_ones():
    with pytest.raises(ValueError, match="the counts that come with the samples would be those of the true labels"):
        PersonalDigits(class_counts=True, poisoning=LabelFlip(share=0.5))


def test_only_a_poisoning_is_taken():
    with pytest.raises(
        TypeError, match=r"from_datasets\(poisoning=Uniform.*expected a Poisoning object, e\.g\. LabelFlip"
    ):
        FederatedDataModule.from_datasets([TensorData(images())], poisoning=Uniform(1))
