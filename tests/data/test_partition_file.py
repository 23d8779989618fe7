"""Partitions written to files and read from them, by this package and by others."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from fedlightning.data import Dirichlet, FromFile, Partition, PersonalDigits, write_partition
from fedlightning.data.classification import Digits
from fedlightning.data.partition_file import FORMAT, digest_of
from fedlightning.data.partitioners import Parts

LABELS = torch.arange(10).repeat(60)


def same(one, other):
    return torch.equal(one.order, other.order) and torch.equal(one.offsets, other.offsets)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "deep" / "split.json")


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return FromFile(str(path))


def test_a_partition_comes_back_as_it_was(path):
    partition = Dirichlet(7, alpha=0.3).split(LABELS, 3)
    write_partition(path, Parts(partition), LABELS)
    assert same(FromFile(path).split(LABELS, 99), partition)
    assert FromFile(path).parts(LABELS, 0).test is None


def test_the_format_is_as_documented(path):
    write_partition(
        path, Parts(Partition.of([[2, 0], [1]]), test=Partition.of([[], [3]], allow_empty=True)), LABELS[:4]
    )
    content = json.loads(Path(path).read_text())
    clients = [{"train": [2, 0], "test": []}, {"train": [1], "test": [3]}]
    assert content == {"format": FORMAT, "samples": 4, "digest": digest_of(LABELS[:4]), "clients": clients}


def test_the_digest_is_that_of_the_numbers():
    """SHA-256 of the labels as little-endian integers of eight bytes."""
    assert digest_of(torch.tensor([1, 2])) == hashlib.sha256(b"\1" + 7 * b"\0" + b"\2" + 7 * b"\0").hexdigest()[:16]
    assert digest_of(torch.tensor([1, 2], dtype=torch.int32)) == digest_of(torch.tensor([1, 2]))


def test_the_fingerprint_is_that_of_the_file(path):
    write_partition(path, Dirichlet(5, 0.5).parts(LABELS, seed=0), LABELS)
    before = FromFile(path).fingerprint()
    assert before == hashlib.sha256(Path(path).read_bytes()).hexdigest() == FromFile(path, digest=None).fingerprint()
    write_partition(path, Dirichlet(5, 0.5).parts(LABELS, seed=1), LABELS)
    assert FromFile(path).fingerprint() != before
    assert Dirichlet(5, 0.5).fingerprint() == ""
    with pytest.raises(FileNotFoundError, match="no such file"):
        FromFile(f"{path}.not").fingerprint()


def test_other_data_are_refused(path, tmp_path):
    write_partition(path, Parts(Dirichlet(3, alpha=1.0).split(LABELS, 0)), LABELS)
    with pytest.raises(ValueError, match=rf"it is of data with digest {digest_of(LABELS)}; these have .*, 600 sam"):
        FromFile(path).split(LABELS.flip(0), 0)
    plain = write(tmp_path / "plain.json", [[0, 1], [2]])
    assert [part.tolist() for part in FromFile(plain.path, digest=digest_of(LABELS)).split(LABELS, 0)] == [[0, 1], [2]]
    with pytest.raises(ValueError, match="it is of data with digest 0123"):
        FromFile(plain.path, digest="0123").split(LABELS, 0)


FEDML = "{\n0: [\n5, 3, \n1\n],\n1: [\n2\n]\n}\n"


@pytest.mark.parametrize(
    "content", [[[5, 3, 1], [2]], {"0": [5, 3, 1], "1": [2]}, {"1": [2], "0": [5, 3, 1]}, FEDML], ids=str
)
def test_formats_of_others(content, tmp_path):
    partition = write(tmp_path / "theirs", content).split(LABELS, 0)
    assert [part.tolist() for part in partition] == [[5, 3, 1], [2]]


@pytest.mark.parametrize("content", [json.dumps([[5, 3, 1], [2]]), FEDML], ids=["JSON", "FedML"])
def test_files_may_begin_with_a_byte_order_mark(content, tmp_path):
    path = tmp_path / "theirs"
    path.write_text(content, encoding="utf-8-sig")
    assert [part.tolist() for part in FromFile(path).split(LABELS, 0)] == [[5, 3, 1], [2]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nothing of the kind", "expected a file of fedlightning data --save"),
        ([], "expected a file of"),
        ([1, 2], "expected a file of"),
        ({"0": [1], "2": [2]}, "expected clients 0 to 1, each once"),
        ([[0.5]], "train of a client is no list of whole numbers"),
        ([[True]], "train of a client is no list of whole numbers"),
        ([[0, 600]], "it names sample 600 of 600"),
        ([[0, -1]], "it names sample -1 of 600"),
        ([[0], [0]], "Sample 0 belongs to more than one client"),
        ([[0], []], "Client 1 has no samples"),
        ({"format": "fedlightning partition 9", "clients": []}, "format 'fedlightning partition 9'. Expected 'fed"),
        ("{\n0: [\n1\n],\n1: [\n2", "expected a file of"),
        ("{\n0: [\n1\n],\n1: [\n]\n}", "Client 1 has no samples"),
        ("{\n0: [\n1\n],\n1: [\n2, ..., 9\n]\n}", "train of a client is no list of whole numbers"),
        ("{\n0: [\n1\n],\n0: [\n2\n]\n}", "'0' comes twice. Expected every name and client once"),
        ('{"0": [1], "0": [2]}', "'0' comes twice"),
        ({"format": FORMAT, "clients": [{"train": [0], "valid": [1]}]}, "client 0 has 'train', 'valid'"),
        ({"format": FORMAT, "clients": [[0]]}, r"client 0 has \[0\]. Expected lists named train, val and test"),
        ({"format": FORMAT, "clients": [{"train": [0], "test": [0]}]}, "a sample is in two of train, val and test"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_read_is_named(content, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "split.json", content).split(LABELS, 0)


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"FromFile\(path='nowhere.json', digest=None\): no such file"):
        FromFile("nowhere.json").split(LABELS, 0)


def test_clients_of_their_own_get_the_very_same_samples(path):
    """Training, validation and test samples of another seed's module are those of the file."""
    drawn = PersonalDigits(Dirichlet(6, 0.5, min_size=20), seed=1)
    held = drawn.federation
    column = drawn.samples()[1]
    write_partition(path, Parts(held.partition, held.val_partition, held.test_partition), column)
    read = PersonalDigits(FromFile(path), seed=2).federation
    for name in ("partition", "val_partition", "test_partition"):
        assert same(getattr(read, name), getattr(held, name))


def test_what_the_file_leaves_open_is_set_aside(path):
    column = PersonalDigits().samples()[1]
    whole = Partition.equal(torch.arange(1797), 3)
    train, test = whole.hold_out(0.25, 0)
    write_partition(path, Parts(train, test=test), column)
    read = PersonalDigits(FromFile(path)).federation
    assert same(read.test_partition, test)
    assert read.val_partition.sizes.tolist() == [45, 45, 45]  # a tenth of 449, 450, 449
    shared = PersonalDigits(FromFile(path), val_share=0).federation
    assert same(shared.partition, train)
    assert same(shared.val_partition, test)
    assert shared.validates_on_test


def test_data_with_a_common_test_part_refuse_clients_test_samples(path):
    labels = torch.zeros(1197, dtype=torch.long)
    write_partition(path, Parts(Partition.of([[0]]), test=Partition.of([[1]])), labels)
    with pytest.raises(ValueError, match="it sets samples of every client aside"):
        FromFile(path).split(labels, 0)
    with pytest.raises(ValueError, match="it is of data with digest"):
        Digits(FromFile(path)).build()


def test_a_file_without_clients_is_refused(path):
    Path(path).parent.mkdir()
    Path(path).write_text('{"format": "fedlightning partition 1"}')
    with pytest.raises(ValueError, match="it has no list of 'clients'"):
        FromFile(path).split(torch.zeros(3, dtype=torch.long), 0)
