"""Cohorts in chunks, and looking at clients before their turn."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from fedlightning.algorithms import FedAvg, Phase
from fedlightning.data import RoundLoader
from fedlightning.federation.sampling.cohort import Cohort, cuts
from tests.support.federations import rounds_of
from tests.support.four_clients import CPU, SIZES, everything_dealt, federation


def test_chunks_deal_the_same_minibatches():
    assert everything_dealt(federation(), 4) == everything_dealt(federation(), 1) == everything_dealt(federation(), 3)
    assert everything_dealt(federation(slow=True), 2) == everything_dealt(federation(), 4)


def test_full_batches_part_clients_by_size():
    data = federation(batch_size=None, local_steps=2)
    batch = next(iter(RoundLoader(data))).place(CPU, torch.float32)
    widths = [[len(m.data["y"][0]) for m in chunk.minibatches()] for chunk in batch.cohorts[0].chunks(4)]
    assert widths == [[5, 5], [9, 9], [12, 12], [20, 20]]


def test_full_phase_gives_all_data_and_minibatch_phase_refuses():
    phases = (Phase(None, None, None, data="full"), Phase(None, None, None))
    for slow in (False, True):
        batch = next(iter(RoundLoader(federation(slow=slow), phases))).place(CPU, torch.float32)
        for chunk in batch.cohorts[0].chunks(4):
            ((rows, data),) = chunk.full()
            assert rows.tolist() == list(range(len(chunk)))
            assert data["y"].shape[1] == chunk.sizes[0]
        chunk = next(batch.cohorts[1].chunks(4))
        with pytest.raises(ValueError, match="data='full'"):
            next(chunk.full())


def test_preview_deals_again():
    for slow in (False, True):
        data = federation(slow=slow)
        batch = next(iter(RoundLoader(data))).place(CPU, torch.float32)
        cohort = batch.cohorts[0]
        looked = next(cohort.preview(2).minibatches()).data["y"]
        dealt = next(next(cohort.chunks(2)).minibatches()).data["y"]
        assert torch.equal(looked, dealt)


@pytest.mark.parametrize("slow", [False, True])
def test_two_clients_apart_are_dealt_again(slow):
    """Four clients; of samples that arrive one after the other only the first three are looked at."""
    pairs = [[0, 2], [1, 2], [0, 1], [0, 2]] if slow else [[0, 3], [1, 2], [0, 3], [1, 2]]
    order = [3, 0, 2, 1]  # those with the most samples first
    for turn, places in enumerate(pairs):
        cohort = next(iter(RoundLoader(federation(slow=slow)))).place(CPU, torch.float32).cohorts[0]
        chunk = cohort.apart(turn, among=3)
        assert chunk.ids == [order[place] for place in places]
        looked = next(chunk.minibatches()).data["y"]
        dealt = torch.cat([next(part.minibatches()).data["y"] for part in cohort.chunks(1)])
        assert torch.equal(looked, dealt[places])


BOTH = (Phase(None, None, None, data="both", steps=6),)


def both(data, chunk):
    """Minibatches and whole data of every client, as a phase deals that wants both."""
    seen = []
    for batch in RoundLoader(data, BOTH):
        cohort = batch.place(CPU, torch.float64).cohorts[0]
        cohort.preview(2)  # must not use up anything
        for part in cohort.chunks(chunk):
            for k, minibatch in enumerate(part.minibatches()):
                assert minibatch.active is None
                for place, client in enumerate(part.ids):
                    seen.append((batch.index, client, k, minibatch.data["y"][place].tolist()))
            for places, whole in part.full():
                for row, place in enumerate(places.tolist()):
                    seen.append((batch.index, part.ids[place], -1, whole["y"][row].tolist()))
    return sorted(seen)


def test_a_phase_may_have_minibatches_and_all_data():
    seen = both(federation(), 4)
    assert len(seen) == 3 * 4 * 7
    for _, client, k, labels in seen:
        n = SIZES[client]
        assert set(labels) <= {100 * n + i for i in range(n)}
        assert len(labels) == (n if k == -1 else 4)
        assert k != -1 or sorted(labels) == [100 * n + i for i in range(n)]


@pytest.mark.parametrize("chunk", [1, 3])
def test_both_kinds_of_data_do_not_depend_on_chunks_or_source(chunk):
    expected = both(federation(), 4)
    assert both(federation(), chunk) == expected
    assert both(federation(slow=True), chunk) == expected


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("seen", [everything_dealt, both])
def test_parts_of_a_chunk_have_its_samples(seen, slow, monkeypatch):
    expected, chunks = seen(federation(), 4), Cohort.chunks

    def in_parts(cohort, *size):
        for chunk in chunks(cohort, *size):
            for part in chunk.parts(3):
                assert len(part) <= 3
                yield from part.parts(2)

    monkeypatch.setattr(Cohort, "chunks", in_parts)
    assert seen(federation(slow=slow), 4) == expected


@pytest.mark.parametrize(("size", "sizes"), [(4, [3, 3, 4]), (8, [5, 5]), (10, [10]), (100, [10]), (1, [1] * 10)])
def test_chunks_are_about_equal(size, sizes):
    (batch,) = rounds_of(FedAvg(0.05), 1, num_clients=10)
    chunks = list(batch.cohorts[0].chunks(size))
    assert [len(chunk) for chunk in chunks] == sizes
    assert [client for chunk in chunks for client in chunk.ids] == list(range(10))


@pytest.mark.parametrize(
    ("num_clients", "size", "at_a_time", "expected"),
    [
        (10, 4, 2, [2, 4, 4]),
        (10, 6, 2, [4, 6]),
        (9, 4, 2, [2, 4, 3]),
        (7, 8, 2, [7]),
        (10, 5, 2, [2, 4, 4]),
        (8, 3, 4, [3, 3, 2]),
        (5, 1, 1, [1] * 5),
    ],
)
def test_chunks_keep_those_busy_who_take_clients_at_a_time(num_clients, size, at_a_time, expected):
    at = cuts(num_clients, size, at_a_time)
    assert [stop - start for start, stop in pairwise(at)] == expected
