"""Oracles are timed on the first clients; side by side only where that is checked, right and may gain something."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.oracle import Auto, Cost, ObjectiveError, Sequential, Vectorized
from tests.support.objectives_in_python import draws_from_its_own, trained
from tests.support.small import Line, clients, trainer


class Labels(Line):
    """Classification in two classes."""

    def __init__(self, **federation):
        super().__init__(dropout=0.0, **federation)
        self.head = nn.Linear(5, 2)

    def objective(self, batch):
        return F.cross_entropy(self.head(self.body(batch[0])), batch[1])


def with_times(monkeypatch, alone, batched, each):
    """Auto measures these milliseconds for a client's gradient, on any number of threads."""

    def seconds(self, oracle, *arguments):
        if isinstance(oracle, Sequential):
            return alone * 1e-3
        return (each if oracle.backward == "each" else batched) * 1e-3 * oracle.chunk_size

    monkeypatch.setattr(Auto, "seconds", seconds)


@pytest.mark.parametrize(
    ("batched", "each", "taken"),
    [
        *((2.5, 1.5, "each"), (1.5, 2.5, "autograd"), (0.5, 0.1, "autograd")),
        *((2.5, 2.75, "each"), (2.5, 2.8, "autograd")),  # chunks must save a tenth
    ],
)
def test_clients_side_by_side_are_tried_where_batches_gain_little(batched, each, taken, monkeypatch, two_threads):
    with_times(monkeypatch, 3.0, batched, each)
    found, loop, said = trained(Auto())
    assert loop.oracle.backward == taken
    assert loop.oracle.threads == (2 if taken == "each" else 1)
    torch.testing.assert_close(found, trained(Sequential())[0], rtol=1e-12, atol=1e-12)
    times = f"{batched} ms a client's gradient in chunks of 6, 3 ms alone"
    tried = f", {each} ms side by side" if batched > 3 / 4 else ""
    how = "side by side" if taken == "each" else "in chunks of 6"
    why = "; going in chunks of 6 must save 10%" if taken == "each" and batched < each else ""
    assert said == [f"oracle: took Vectorized, {how} on {loop.oracle.threads} of 2 threads: {times}{tried}{why}"]


@pytest.mark.parametrize(
    ("change", "options"),
    [(None, {"self_check": "off"}), (draws_from_its_own, {})],
    ids=["unchecked", "wrong"],
)
def test_clients_are_not_computed_side_by_side_where_that_is_unchecked_or_wrong(
    change, options, monkeypatch, two_threads
):
    with_times(monkeypatch, 3.0, 2.5, 0.1)
    assert getattr(trained(Auto(), change, **options)[1].oracle, "backward", None) != "each"


@pytest.mark.parametrize("parts", [0.5, 0.97])
def test_a_chunk_is_divided_among_threads_where_that_is_faster(parts, monkeypatch, two_threads):
    def seconds(self, oracle, *arguments):
        if isinstance(oracle, Sequential):
            return 5e-3
        return (parts if oracle.parts == 2 else 1.0) * 1e-3 * oracle.chunk_size

    monkeypatch.setattr(Auto, "seconds", seconds)
    found, loop, said = trained(Auto())
    assert loop.oracle.parts == (2 if parts < 0.9 else 1)
    threads = "in 2 parts on 2 of 2 threads: 0.5 ms" if parts < 0.9 else "on 1 of 2 threads: 1 ms"
    assert said[0].startswith(f"oracle: took Vectorized, in chunks of 6 {threads}")
    torch.testing.assert_close(found, trained(Sequential())[0], rtol=1e-12, atol=1e-12)


def test_short_steps_are_not_divided(monkeypatch, two_threads):
    def seconds(self, oracle, *arguments):
        return 5e-3 if isinstance(oracle, Sequential) else 1e-5 * oracle.chunk_size / oracle.parts

    monkeypatch.setattr(Auto, "seconds", seconds)
    assert trained(Auto())[1].oracle.parts == 1


class Doubled(torch.autograd.Function):
    """Written as it was before vmap, which refuses it."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


@pytest.mark.parametrize("each", [1.5, 5.0])
def test_what_cannot_be_batched_may_still_be_replayed_side_by_side(each, monkeypatch, two_threads):
    with_times(monkeypatch, 3.0, 0.1, each)
    points, loop, said = trained(Auto(), lambda task, original, batch: Doubled.apply(original(batch)))
    torch.testing.assert_close(
        points, trained(Sequential(), lambda task, original, batch: 2 * original(batch))[0], rtol=1e-12, atol=1e-12
    )
    assert getattr(loop.oracle, "backward", None) == ("each" if each < 3 else None)
    assert "must override the setup_context staticmethod" in said[0]
    assert said[1:] == (
        ["oracle: took Vectorized, side by side on 2 of 2 threads: 3 ms a client's gradient, 1.5 ms side by side"]
        if each < 3
        else []
    )


def test_on_one_thread_clients_may_be_replayed_one_by_one(monkeypatch, one_thread):
    with_times(monkeypatch, 3.0, 2.5, 1.5)
    found, loop, said = trained(Auto())
    assert (loop.oracle.backward, loop.oracle.threads) == ("each", 1)
    torch.testing.assert_close(found, trained(Sequential())[0], rtol=1e-12, atol=1e-12)
    times = "2.5 ms a client's gradient in chunks of 6, 3 ms alone, 1.5 ms replayed one by one"
    assert said == [f"oracle: took Vectorized, replayed one by one: {times}"]


@pytest.mark.parametrize(
    ("times", "size"), [({6: 1.0, 3: 0.5, 2: 0.7}, 3), ({6: 1.0, 3: 0.5, 2: 0.2}, 2), ({6: 1.0, 3: 0.95}, 6)]
)
def test_chunks_are_halved_while_that_is_faster(times, size, monkeypatch, one_thread):
    def seconds(self, oracle, *arguments):
        return 5e-3 if isinstance(oracle, Sequential) else times[oracle.chunk_size] * 1e-3 * oracle.chunk_size

    monkeypatch.setattr(Auto, "seconds", seconds)
    found, loop, said = trained(Auto())
    assert loop.oracle.chunk_size == size
    chunks = f"in chunks of {size}"
    assert said == [f"oracle: took Vectorized, {chunks}: {times[size]:.3g} ms a client's gradient {chunks}, 5 ms alone"]
    torch.testing.assert_close(found, trained(Sequential())[0], rtol=1e-12, atol=1e-12)


def timed(times):
    """Auto measures so many milliseconds for a client's gradient, by size of chunks."""

    def seconds(self, oracle, objective, calls, arguments):
        each = 5.0 if isinstance(oracle, Sequential) else times[oracle.chunk_size]
        if each is None:
            raise MemoryError
        return each * 1e-3 * len(arguments[0])

    return seconds


@pytest.mark.parametrize(
    ("times", "size"),
    [
        ({4: 1.0, 6: 0.94}, 6),
        ({4: 1.0, 6: 0.96, 2: 0.95}, 4),
        ({4: 1.0, 6: 1.5, 2: 0.8}, 2),
        ({4: 1.0, 6: None, 2: 1.0}, 4),
    ],
    ids=["larger", "neither", "smaller", "too large for the memory"],
)
def test_larger_chunks_than_fit_the_caches_are_taken_where_they_are_faster(times, size, monkeypatch, one_thread):
    monkeypatch.setattr(Auto, "seconds", timed(times))
    monkeypatch.setattr("fedlightning.oracle.vectorized.CACHE_BYTES", 1)  # 4 clients at once, which is 3 and 3 of 6
    found, loop, said = trained(Auto())
    assert loop.oracle.chunk_size == size
    chunks = f"in chunks of {size}"
    assert said == [f"oracle: took Vectorized, {chunks}: {times[size]:.3g} ms a client's gradient {chunks}, 5 ms alone"]
    torch.testing.assert_close(found, trained(Sequential())[0], rtol=1e-12, atol=1e-12)


def test_chunks_of_one_need_save_nothing(monkeypatch, one_thread):
    def seconds(self, oracle, objective, calls, arguments):
        if isinstance(oracle, Sequential):
            return 3e-3
        if oracle.chunk_size > 1 or oracle.backward == "each":
            raise MemoryError
        return 2.9e-3

    monkeypatch.setattr(Auto, "seconds", seconds)
    _, loop, said = trained(Auto())
    assert loop.oracle.chunk_size == 1
    assert said[-1] == "oracle: took Vectorized, in chunks of 1: 2.9 ms a client's gradient in chunks of 1, 3 ms alone"


def test_long_times_are_written_out(monkeypatch, one_thread):
    monkeypatch.setattr(Auto, "seconds", lambda self, oracle, *args: 1.2345 if isinstance(oracle, Sequential) else 1.5)
    assert "1234 ms alone" in trained(Auto())[2][0]  # not 1.23e+03


def test_chunks_grow_up_to_two_and_a_half_times_the_caches():
    cost = Cost(dim=2**18, itemsize=4, activation_bytes=0)  # a quarter of the caches
    assert (Vectorized().chunk(cost), Vectorized().most(cost)) == (8, 10)
    assert Vectorized(chunk_size=3).most(cost) == 3
    assert Vectorized().most(replace(cost, free_bytes=2**28)) == Vectorized().chunk(replace(cost, free_bytes=2**28))


@pytest.mark.parametrize("bad", [0, 1, 2, 3])
def test_a_client_with_wrong_labels_is_named_wherever_it_lies(bad):
    """The checks look at the first and the last client, the trial at all."""
    data = [(x, (y > 0).long() + 5 * (k == bad)) for k, (x, y) in enumerate(each.tensors for each in clients())]
    federation = FederatedDataModule.from_datasets([TensorDataset(*each) for each in data], batch_size=4)
    with pytest.raises(ObjectiveError, match=rf"failed for client {bad}: IndexError: Target \d is out of bounds"):
        trainer(max_steps=1).fit(Labels(), federation)
