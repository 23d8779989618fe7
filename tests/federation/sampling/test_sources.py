"""Samples from tensors, from tensors of several shapes, and from a loader."""

from __future__ import annotations

import pytest
import torch

from fedlightning.federation.sampling.sources import LoadedSource, MixedSource, TensorSource
from fedlightning.oracle.minibatch import Rows
from tests.support.four_clients import CPU, everything_dealt, federation, first_cohort

gather = TensorSource.gather


def test_loaded_and_gathered_data_are_dealt_alike():
    gathered = everything_dealt(federation(), 4)
    assert gathered == everything_dealt(federation(slow=True), 4)
    assert gathered == everything_dealt(federation(slow=True, num_workers=1), 4)


def test_floats_arrive_in_the_parameters_dtype():
    for slow in (False, True):
        minibatch = next(next(first_cohort(federation(slow=slow), torch.float64).chunks(4)).minibatches())
        assert minibatch.data["x"].dtype == torch.float64
        assert minibatch.data["y"].dtype == torch.int64


def test_gathered_samples_pass_the_transform_in_a_batch():
    source = TensorSource({"x": torch.arange(12).view(6, 2)}, lambda batch: {"x": batch["x"] * 10})
    at_step = source.minibatches(torch.tensor([[[0, 1]], [[5, 5]]]))
    assert at_step(0)()["x"].tolist() == [[[0, 10], [20, 30]], [[100, 110], [100, 110]]]


def test_tensors_are_placed_once():
    source = TensorSource(torch.ones(3, 2))
    placed = source.place(CPU, torch.float64)
    assert placed.tensors.dtype == torch.float64
    assert source.place(CPU, torch.float64) is placed
    assert source.place(CPU, torch.float32) is not placed


def test_positions_count_through_the_sources_of_several_shapes():
    parts = [torch.arange(4.0)[:, None], torch.arange(10.0).view(5, 2)]
    source = MixedSource([TensorSource(part) for part in parts], torch.tensor([0, 4])).place(CPU, torch.float64)
    step, everything = source.minibatches_and_all(torch.tensor([[[4, 8]]]), [torch.arange(4, 9)])
    assert step(0)().tolist() == [[[0, 1], [8, 9]]]
    assert everything([0])[0].tolist() == parts[1].tolist()
    assert source.minibatches(torch.tensor([[[3]]]))(0)().tolist() == [[[3]]]


def loaded(num_clients=4):
    """Two samples of every client: 0 and 1, 10 and 11, ..."""
    return LoadedSource(iter([torch.arange(2.0) + 10 * client for client in range(num_clients)]))


ONE_EACH = torch.zeros(1, 2, 1, dtype=torch.long)


def test_kept_clients_are_given_again():
    source = loaded()
    assert source.minibatches(ONE_EACH.expand(2, 2, 1), keep=True)(1)().tolist() == [[1], [11]]
    assert [source.minibatches(ONE_EACH)(0)().item() for _ in range(4)] == [0, 10, 20, 30]


def test_clients_looked_at_ahead_come_in_their_turn():
    source = loaded()
    assert source.ahead([0, 2]).minibatches(ONE_EACH.expand(2, 2, 1))(0)().tolist() == [[0], [20]]
    assert [source.minibatches(ONE_EACH)(0)().item() for _ in range(4)] == [0, 10, 20, 30]


def test_clients_with_fewer_minibatches_repeat_their_last():
    source = LoadedSource(iter([torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6])]))
    at_step = source.minibatches(torch.zeros(2, 2, 2))
    assert [at_step(k)().tolist() for k in (0, 1)] == [[[1, 2], [5, 6]], [[3, 4], [5, 6]]]


def test_minibatches_are_picked_from_a_clients_samples_by_position():
    source = LoadedSource(iter([torch.tensor([70, 50, 60])]))  # of positions 7, 5, 6
    step, everything = source.minibatches_and_all(torch.tensor([[[5, 7], [6, 6]]]), [torch.tensor([7, 5, 6])])
    assert [step(k)().tolist() for k in (0, 1)] == [[[50, 70]], [[60, 60]]]
    assert everything([0]).tolist() == [[70, 50, 60]]


@pytest.mark.parametrize("small", [0, 2**15, 600], ids=["one by one", "all at once", "in blocks"])
def test_minibatches_are_the_same_however_many_are_gathered_at_once(small, monkeypatch):
    monkeypatch.setattr("fedlightning.federation.sampling.sources.SMALL_BYTES", small)
    numbers = torch.arange(40.0).view(20, 2)
    gathered = []
    monkeypatch.setattr(TensorSource, "gather", lambda self, index: gathered.append(index) or gather(self, index))
    source = TensorSource({"x": numbers, "y": torch.arange(20)})
    index = torch.randint(0, 20, (3, 11, 2))
    at_step = source.minibatches(index)
    for k in (0, 1, 2, 3, 4, 10, 9, 0):
        for rows in (None, Rows.at([0, 2], torch.device("cpu")), Rows.at([1, 2], torch.device("cpu"))):
            found, places = at_step(k)(rows), index[:, k] if rows is None else index[rows.places, k]
            assert torch.equal(found["x"], numbers[places])
            assert torch.equal(found["y"], places)
            found["x"].zero_()  # as an objective may
    assert len(gathered) == {0: 24, 2**15: 1, 600: 3}[small]


def test_a_loader_that_ends_early_is_not_silent():
    with pytest.raises(StopIteration):
        loaded(1).minibatches(ONE_EACH.expand(2, 2, 1))


STAMPS = 1.7e9 + torch.arange(4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("numbers", "dtype", "told"),
    [
        (STAMPS, torch.float32, True),
        (torch.cat([STAMPS, torch.tensor([torch.nan, torch.inf])]), torch.float32, True),
        (STAMPS, torch.float64, False),
        (STAMPS / 1e3, torch.float32, False),
        (1e8 * torch.tensor([0.12345678912345, 0.3], dtype=torch.float64), torch.float32, False),
        (torch.tensor([0.0, -1e9, 1e30, -1e30, torch.inf], dtype=torch.float64), torch.float32, False),
        (1e22 * torch.tensor([0.12345678912345, 0.3, 0.7], dtype=torch.float64), torch.float32, False),
    ],
)
@pytest.mark.parametrize("loaded", [False, True])
def test_large_numbers_that_the_parameters_dtype_mixes_up_are_told_once(numbers, dtype, told, loaded, recwarn):
    if loaded:
        LoadedSource(iter([[torch.zeros(4)], [numbers], [numbers]]), CPU, dtype).ahead([0, 2])
    else:
        TensorSource(numbers).place(CPU, dtype)
    TensorSource(numbers.nan_to_num(0, 0, 0).long()).place(CPU, dtype)
    assert sum("does not tell whole numbers of that size apart" in str(each.message) for each in recwarn) == told
