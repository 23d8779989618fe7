"""What all compressors have in common."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedlightning.channel.compression import QSGD, Draws, NaturalCompression, RandK, SignCompression, TopK
from tests.support.compression import draws_of, exchange_of, rows_of, sent_of, transformed

COMPRESSORS = {
    "TopK": TopK(0.2),
    "RandK": RandK(0.2),
    "QSGD": QSGD(4),
    "QSGD with buckets": QSGD(4, bucket_size=8),
    "natural": NaturalCompression(),
    "sign": SignCompression(),
}
UNBIASED = [name for name, each in COMPRESSORS.items() if each.variance(50) is not None]


@pytest.fixture(params=COMPRESSORS)
def compressor(request):
    return COMPRESSORS[request.param]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_chunks_of_clients_do_not_matter(compressor, dtype):
    values = rows_of(6, 50, dtype=dtype)
    values[:, 10:30] = values[:, 10:11]  # equal entries
    values[3] = 0.0
    whole, bits, memory = transformed(compressor, values)
    assert whole.dtype == dtype
    assert bits.dtype == torch.float64
    assert memory == {}
    for part in ([0], [4, 2], [5, 3, 1]):
        own, own_bits, _ = transformed(compressor, values[part], part)
        assert torch.equal(own, whole[part])
        assert torch.equal(own_bits, bits[part])


def test_zeros_stay_zeros(compressor):
    assert torch.equal(transformed(compressor, torch.zeros(3, 50))[0], torch.zeros(3, 50))


def test_inputs_are_not_written_into(compressor):
    values = rows_of(3, 50)
    before = values.clone()
    transformed(compressor, values)
    assert torch.equal(values, before)


def test_it_saves_bits(compressor):
    assert bool((transformed(compressor, rows_of(3, 50))[1] < 50 * 64).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_stays_so_and_changes_no_other(compressor, bad):
    """A compressor that dropped the one bad entry would pass the client off as sound."""
    values = rows_of(3, 50)
    clean, clean_bits, _ = transformed(compressor, values)
    values[1, 7] = bad
    found, bits, _ = transformed(compressor, values)
    assert torch.equal(found[1].nan_to_num(), values[1].nan_to_num())
    assert not bool(found[1].isfinite().all())
    assert bits[1] == 50 * 64
    assert torch.equal(found[[0, 2]], clean[[0, 2]])
    assert torch.equal(bits[[0, 2]], clean_bits[[0, 2]])


def test_the_server_feeds_errors_back_so_it_contracts(compressor):
    values = rows_of(1, 50)
    variance = compressor.variance(50)
    found = transformed(compressor, values, client_ids=[], cohort=5)[0]
    plain = compressor.compress(values, Draws(exchange_of([], cohort=5), 0, torch.device("cpu"))).values
    assert torch.equal(found, plain if variance is None else plain / (1 + variance))


@pytest.mark.parametrize("name", UNBIASED)
def test_divided_by_one_plus_the_variance_it_is_a_contraction(name):
    """E ‖C(x) / (1 + ω) - x‖² <= (1 - 1 / (1 + ω)) ‖x‖², here over 2,000 clients with the same row."""
    compressor, row = COMPRESSORS[name], rows_of(1, 50, seed=1)
    omega = compressor.variance(50)
    found = compressor.contracted(row.expand(2000, -1), draws_of(2000)).values
    error = (found - row).square().sum(1).mean() / row.square().sum()
    assert error <= (1 - 1 / (1 + omega)) * 1.02


def test_every_field_is_compressed_by_itself_and_reports_pass():
    a, b = rows_of(2, 10), 1000 * rows_of(2, 20, seed=1)
    sent = replace(sent_of(a=a, b=b), reports={"below": torch.ones(2)})
    found, _ = TopK(0.1).apply(sent, {}, exchange_of([0, 1]), 0)
    assert (found.values["a"] != 0).sum(1).tolist() == [1, 1]
    assert (found.values["b"] != 0).sum(1).tolist() == [2, 2]
    assert found.reports == sent.reports
