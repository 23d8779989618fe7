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


def test_shared_samples_are_refused():
    with pytest.raises(ValueError, match="Sample 1 belongs to more than one client"):
        Partition.of([[0, 1], [1, 2]])


def test_a_million_clients_take_no_object_each():
    partition = Partition(torch.arange(10**6), torch.arange(10**6 + 1))
    assert len(partition) == 10**6
    assert partition[999_999].tolist() == [999_999]
