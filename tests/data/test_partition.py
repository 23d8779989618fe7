"""Who holds which samples, and setting some aside."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedlightning.data import ByGroup, Partition


def test_equal_parts_need_a_sample_each():
    with pytest.raises(ValueError, match="11 clients cannot share 10 samples: every client needs at least one"):
        Partition.equal(torch.arange(10), 11)


def test_clients_without_samples_are_refused_unless_they_may_be():
    with pytest.raises(ValueError, match=r"Client 1 has no samples \(1 of 2 clients are empty\)"):
        Partition.of([[0], []])
    assert Partition.of([[0], []], allow_empty=True).sizes.tolist() == [1, 0]
    with pytest.raises(ValueError, match="The federation has no clients"):
        Partition.of([])


def test_clients_count_from_the_end_where_negative_and_others_are_none():
    partition = Partition.of([[0, 1], [2], [4, 3]])
    assert [partition[client].tolist() for client in (0, -1, -3, torch.tensor(1))] == [[0, 1], [4, 3], [0, 1], [2]]
    for client in (3, -4):
        with pytest.raises(IndexError):
            partition[client]


def test_the_digest_tells_who_holds_which_samples():
    digests = {Partition.of(parts).digest for parts in ([[0, 1], [2]], [[0], [1, 2]], [[1, 0], [2]])}
    assert len(digests) == 3
    assert {len(digest) for digest in digests} == {12}
    assert Partition.of([[0, 1], [2]]).digest in digests


def test_a_share_of_every_client_is_set_aside():
    whole = Partition.of(torch.arange(16).split([2, 4, 10]))
    kept, aside = whole.hold_out(0.3, seed=1)
    assert aside.sizes.tolist() == [1, 1, 3]  # of 0.6, 1.2 and 3 samples
    for own, stays, held in zip(whole, kept, aside, strict=True):
        assert torch.cat([stays, held]).sort().values.tolist() == own.tolist()
    assert torch.equal(whole.hold_out(0.3, seed=1)[1].order, aside.order)
    with pytest.raises(ValueError, match="Client 1 has one sample, nothing can be set aside"):
        Partition.of([[0, 1], [2]]).hold_out(0.3, seed=1)
    with pytest.raises(ValueError, match="share=0: expected 0 < share < 1"):
        whole.hold_out(0, seed=1)


@pytest.mark.parametrize("seed", range(5))
def test_stretches_set_aside_overlap_with_nothing_that_stays(seed):
    draw = torch.Generator().manual_seed(seed)
    person = torch.arange(3).repeat_interleave(torch.tensor([50, 70, 80]))
    label = torch.randint(3, (40,), generator=draw).repeat_interleave(5)  # stretches of one label, 5 samples or more
    overlaps = (person[1:] == person[:-1]) & (torch.rand(199, generator=draw) < 0.9)
    whole = ByGroup().split(person, 0)
    kept, aside = whole.hold_out_stretches(0.3, seed, label, overlaps)
    part = torch.zeros(200, dtype=torch.long)
    part[kept.order], part[aside.order] = 1, 2
    assert not (overlaps & (part[1:] * part[:-1] == 2)).any()
    for own, held in zip(whole, aside, strict=True):
        for value in label[own].unique():
            assert (label[held] == value).sum() == round(0.3 * int((label[own] == value).sum()))
    dropped = (part == 0).nonzero().flatten().tolist()
    assert all(2 in part[max(0, i - 1) : i + 2] for i in dropped)
    assert torch.equal(whole.hold_out_stretches(0.3, seed, label, overlaps)[1].order, aside.order)


def test_stretches_follow_each_other():
    label, overlaps = torch.zeros(30, dtype=torch.long), torch.ones(29, dtype=torch.bool)
    kept, aside = Partition.of([range(30)]).hold_out_stretches(0.2, 0, label, overlaps)
    assert len(kept.order) == 23  # one is dropped
    assert aside.order.diff().tolist() == [1] * 5
    with pytest.raises(ValueError, match=r"share=1\.5: expected 0 < share < 1"):
        kept.hold_out_stretches(1.5, 0, label, overlaps)
    with pytest.raises(ValueError, match="Client 0 has 2 samples, too few of each label"):
        Partition.of([[4, 5]]).hold_out_stretches(0.5, 0, label, overlaps)


def test_shared_samples_are_refused():
    with pytest.raises(ValueError, match="Sample 1 belongs to more than one client"):
        Partition.of([[0, 1], [1, 2]])


@pytest.mark.parametrize(
    "mask", [torch.tensor([False, True, True]), np.array([False, True, True]), [False, True, True]]
)
def test_masks_are_no_positions(mask):
    with pytest.raises(
        TypeError, match=r"Partition\.of: client 1 has a mask of 3 booleans.*mask\.nonzero\(\)\.flatten"
    ):
        Partition.of([[0], mask])
    assert [part.tolist() for part in Partition.of([[0], torch.as_tensor(mask).nonzero().flatten()])] == [[0], [1, 2]]


def test_a_million_clients_take_no_object_each():
    partition = Partition(torch.arange(10**6), torch.arange(10**6 + 1))
    assert len(partition) == 10**6
    assert partition[999_999].tolist() == [999_999]
