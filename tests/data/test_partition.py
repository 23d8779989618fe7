import pytest
import torch

from fedlightning.data import IID, ByGroup, Dirichlet, Partition, Shards, SourceTargetShare

LABELS = torch.arange(10).repeat(60)[torch.randperm(600, generator=torch.Generator().manual_seed(1))]
DOMAINS = (torch.arange(600) >= 400).long()

CASES = {
    "iid": (IID(7), LABELS),
    "dirichlet": (Dirichlet(8, alpha=0.3, min_size=5), LABELS),
    "shards": (Shards(20, 2), LABELS),
    "sorted": (Shards(30, 1), LABELS),
    "group": (ByGroup(), LABELS),
    "domains": (SourceTargetShare(4, p=0.8), DOMAINS),
}


@pytest.mark.parametrize("name", CASES)
def test_every_sample_is_in_exactly_one_client(name):
    partitioner, column = CASES[name]
    partition = partitioner.split(column, seed=3)
    joined = torch.cat(list(partition))
    assert torch.equal(joined.sort().values, torch.arange(600))
    assert partition.sizes.tolist() == [len(part) for part in partition]


@pytest.mark.parametrize("name", CASES)
def test_seeds_repeat(name):
    partitioner, column = CASES[name]
    one, same, other = (partitioner.split(column, seed=seed).order for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert name == "group" or not torch.equal(one, other)


def test_iid_sizes_differ_by_one_at_most():
    sizes = IID(7).split(LABELS, 0).sizes
    assert sizes.max() - sizes.min() <= 1


def test_small_alpha_means_few_classes():
    def classes(alpha):
        parts = Dirichlet(10, alpha).split(LABELS, 0)
        shares = [torch.bincount(LABELS[part], minlength=10) / len(part) for part in parts]
        return torch.stack(shares).square().sum(1).mean()

    assert classes(0.1) > 1.5 * classes(100.0)


def test_shards_are_equal_and_hold_few_labels():
    partition = Shards(20, 2).split(LABELS, 0)
    assert set(partition.sizes.tolist()) == {30}
    assert max(len(LABELS[part].unique()) for part in partition) <= 4
    assert all(len(LABELS[part].unique()) == 1 for part in Shards(30, 1).split(LABELS, 0))


def test_group_is_one_client_a_value():
    partition = ByGroup().split(LABELS, 0)
    assert [LABELS[part].unique().tolist() for part in partition] == [[i] for i in range(10)]


@pytest.mark.parametrize(("p", "expected"), [(1.0, (400, 0)), (0.5, (200, 100)), (0.8, (320, 40))])
def test_source_target_share(p, expected):
    partition = SourceTargetShare(2, p).split(DOMAINS, 0)
    first = DOMAINS[partition[0]]
    assert ((first == 0).sum().item(), (first == 1).sum().item()) == expected


def test_wrong_arguments():
    with pytest.raises(ValueError, match="alpha=0"):
        Dirichlet(3, alpha=0)
    with pytest.raises(ValueError, match=r"clients=3\): expected an even number"):
        SourceTargetShare(3)
    with pytest.raises(ValueError, match="no draw of 100 gave every client 100"):
        Dirichlet(8, alpha=0.1, min_size=100).split(LABELS, 0)
    with pytest.raises(ValueError, match="has no samples"):
        IID(601).split(LABELS, 0)


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


def test_a_million_clients_take_no_object_each():
    partition = Partition(torch.arange(10**6), torch.arange(10**6 + 1))
    assert len(partition) == 10**6
    assert partition[999_999].tolist() == [999_999]
