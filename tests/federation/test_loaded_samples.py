"""Samples that a loader brings in the order of requests, and errors that name round and client."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fedlightning.federation.loaded_samples import LoadedSamples, SampleError, SampleRequest

NUMBERS = TensorDataset(torch.arange(6))
REQUESTS = [SampleRequest(0, 4, [3, 1]), SampleRequest(0, 5, [0, 0, 5]), SampleRequest(1, 4, [2])]


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
