"""A node's cohorts: the samples that a simulation would give the same clients."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms.base import Phase
from fedlightning.data import RoundLoader
from fedlightning.federation.protocol import Request, Stamp
from fedlightning.federation.remote.data_digest import DataDigest
from fedlightning.federation.remote.shard import Shard
from tests.support.small import clients, regression_data

CPU = torch.device("cpu")


def phases(*data):
    return [Phase(None, None, None, data=each) for each in data]


def request(index, phase=0, seed=5):
    return Request(Stamp(index, phase), seed, None, torch.zeros(1), torch.zeros(0))


class Loaded(Dataset):
    """Samples that are not tensors in memory."""

    def __init__(self, tensors):
        self.tensors = tensors.tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, place):
        return tuple(leaf[place] for leaf in self.tensors)


def samples(cohort):
    """By client, what it works on."""
    found = {}
    for chunk in cohort.chunks(1):
        batches = [minibatch.data for minibatch in chunk.minibatches()]
        found[chunk.ids[0]] = torch.cat([x.flatten() for x, _ in batches])
    return found


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("phase", [0, 1])
def test_clients_of_a_node_work_on_the_samples_of_the_simulation(in_memory, phase):
    sets = clients()
    data = FederatedDataModule.from_datasets(
        sets if in_memory else [Loaded(each) for each in sets], batch_size=4, local_steps=3, seed=1, rounds_per_epoch=3
    )
    # at the node these are clients 0 and 1, of all clients they are 3 and 1
    own = FederatedDataModule.from_datasets(
        [sets[3], sets[1]] if in_memory else [Loaded(sets[3]), Loaded(sets[1])], batch_size=4, local_steps=3, seed=1
    )
    rules = phases("minibatches", "full")
    shard = Shard(own, rules, {3: 0, 1: 1})
    assert (shard.client_ids, shard.samples.tolist()) == ([1, 3], [9, 10])
    for batch in RoundLoader(data, rules):
        expected = [samples(cohort) for cohort in batch.cohorts][phase]  # loaded samples come in order
        cohort = shard.cohort([1, 3], request(batch.index, phase), CPU, torch.float32)
        assert cohort.seed == 5
        found = samples(cohort)
        assert found.keys() == {1, 3}
        assert all(torch.equal(value, expected[client]) for client, value in found.items())


@pytest.mark.parametrize("in_memory", [True, False])
def test_data_of_a_client_are_recognised(in_memory, tmp_path):
    """By their values if they are in memory, whoever else is there; else by their positions and targets."""

    def digests(*sets, places):
        given = list(sets) if in_memory else [Loaded(each) for each in sets]
        own = FederatedDataModule.from_datasets(given, batch_size=4, local_steps=3)
        return Shard(own, phases("minibatches"), places).digests(DataDigest(tmp_path))

    zero, one, *_ = clients()
    first = digests(zero, one, places={0: 0, 5: 1})
    assert len(set(first)) == 2
    assert digests(zero, one, places={5: 1}) == first[1:]
    changed = TensorDataset(one.tensors[0], one.tensors[1] + 1)
    assert (digests(zero, changed, places={0: 0, 5: 1}) == first) is not in_memory
    assert digests(zero, changed, places={0: 0}) == first[:1]
    assert (digests(one, zero, places={5: 0}) == first[1:]) is in_memory


def test_a_client_tries_the_objective_out():
    shard = Shard(regression_data(), phases("minibatches"), {2: 2, 3: 3})
    cohort = shard.trial(2, CPU, torch.float64)
    assert cohort.client_ids == [2]
    assert next(cohort.preview(1).minibatches()).data[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("places", "why"),
    [({}, "has no clients"), ({0: 4}, "Client 0 is number 4 of the node's data, with clients 0 to 3"), ({-1: 0}, "-1")],
)
def test_clients_that_are_not_there_are_named(places, why):
    with pytest.raises(ValueError, match=why):
        Shard(regression_data(), phases("minibatches"), places)
