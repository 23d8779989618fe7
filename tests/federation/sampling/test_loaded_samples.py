"""Samples that a loader brings in the order of requests, and errors that name round and client."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fedlightning.federation.sampling.loaded_samples import LoadedSamples, SampleError, SampleRequest

NUMBERS = TensorDataset(torch.arange(6))
REQUESTS = [SampleRequest(0, 4, [3, 1], 7), SampleRequest(0, 5, [0, 0, 5], 8), SampleRequest(1, 4, [2], 9)]


class Broken(Dataset):
    """The third sample cannot be read."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 2:
            raise OSError("disk gone\nand more")
        return torch.tensor(index)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_come_in_the_order_of_requests(num_workers):
    brought = [samples.tolist() for (samples,) in LoadedSamples(NUMBERS, REQUESTS, num_workers)]
    assert brought == [[3, 1], [0, 0, 5], [2]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_names_round_and_client(num_workers):
    samples = LoadedSamples(Broken(), REQUESTS, num_workers)
    assert len(next(samples)) == 2
    assert len(next(samples)) == 3
    said = "OSError: disk gone" if num_workers == 0 else "and more"  # of a worker's traceback the last line
    with pytest.raises(SampleError, match=f"^Round 2: the samples of client 4 could not be loaded: {said}. Model and"):
        next(samples)


class Augmented(Dataset):
    """Draws from all three generators."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor([index, torch.rand(()).item(), random.random(), np.random.rand()])


class OfSeveral(Augmented):
    """Gives several samples at once, as the data sets of Hugging Face do."""

    def __getitems__(self, places):
        return [self[place] for place in places]


@pytest.mark.slow
def test_what_a_data_set_draws_belongs_to_the_request():
    """Neither who draws before nor the processes count; the global generators stay where they are."""

    def drawn(dataset, requests, num_workers):
        samples = LoadedSamples(dataset, requests, num_workers)
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        brought = list(samples)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]
        return brought

    one, other = (SampleRequest(0, 4, [3, 3], seed) for seed in (1, 2))
    first, second, again = drawn(Augmented(), [one, other, one], 0)
    assert torch.equal(first, again)
    assert torch.equal(first[:, 0], second[:, 0])
    assert not (first[:, 1:] == second[:, 1:]).any()
    assert not (first[0, 1:] == first[1, 1:]).any()
    for dataset, num_workers in ((Augmented(), 2), (OfSeveral(), 0)):
        assert torch.equal(torch.stack(drawn(dataset, [other, one], num_workers)), torch.stack([second, first]))


def test_an_error_of_whoever_asks_is_no_error_of_a_data_set():
    def asking():
        yield REQUESTS[0]
        raise ValueError("too few clients")

    samples = LoadedSamples(NUMBERS, asking(), num_workers=0)
    next(samples)
    with pytest.raises(ValueError, match="too few clients"):
        next(samples)


def test_a_data_set_that_ends_early_is_an_error():
    class Ends(Broken):
        def __getitem__(self, index):
            raise StopIteration

    with pytest.raises(SampleError, match="samples of client 4 could not be loaded: StopIteration: "):
        next(LoadedSamples(Ends(), REQUESTS, num_workers=0))


def test_samples_of_different_lengths_are_told_to_be_padded():
    class Ragged(Broken):
        def __getitem__(self, index):
            return torch.zeros(index + 1)

    with pytest.raises(
        SampleError, match=r"need padding in the data set \(torch.nn.functional.pad\). Model and states"
    ):
        next(LoadedSamples(Ragged(), REQUESTS, num_workers=0))
