"""Rows are one matrix in the order of the clients' ids, however they lie in chunks, blocks and processes."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel.robust.rows import ClientRows
from tests.support.peers import played
from tests.support.rules import drawn

IDS = [7, 2, 40, 3, 11]
ORDER = [1, 3, 0, 4, 2]


def matrix(rows):
    return torch.cat(list(rows.blocks()), dim=1)


def of_process(values, processes, **options):
    """Rows of the clients whose places are those of the process, modulo the number of processes."""
    mine = list(range(processes.rank, len(values), processes.count))
    return ClientRows([values[mine[:1]], values[mine[1:]]], [IDS[place] for place in mine], processes, **options)


@pytest.mark.parametrize("columns", [None, 1, 4, 37, 100])
def test_chunks_and_blocks_are_the_matrix_in_the_order_of_ids(columns):
    values = drawn(5)
    rows = ClientRows([values[:2], values[2:2], values[2:]], IDS, columns=columns)
    assert rows.count == 5
    assert torch.equal(matrix(rows), values[ORDER])
    assert {block.shape[1] for block in rows.blocks()} <= {columns, 37, 37 % (columns or 1)}
    ordered = values[ORDER]
    torch.testing.assert_close(rows.gram(), ordered @ ordered.T)
    about = drawn(1, seed=1)[0]
    torch.testing.assert_close(rows.gram(about), (ordered - about) @ (ordered - about).T)
    weights = drawn(1, 5, seed=2)[0]
    torch.testing.assert_close(rows.combine(weights), weights @ ordered)


def test_blocks_hold_a_bounded_number_of_entries():
    rows = ClientRows([torch.zeros(3, 3_000_000)], range(3))
    assert [block.shape[1] for block in rows.blocks()] == [2**22 // 3, 2**22 // 3, 3_000_000 - 2 * (2**22 // 3)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [2, 3, 6])  # of six processes, one has no client
def test_processes_see_the_bits_of_one(dtype, count):
    values = drawn(5, dtype=dtype)
    weights = drawn(1, 5, seed=2)[0]
    alone = ClientRows([values], IDS, columns=9)

    def run(processes):
        rows = of_process(values, processes, columns=9)
        return rows.count, matrix(rows), rows.gram(drawn(1, seed=1)[0].to(dtype)), rows.combine(weights)

    for number, whole, gram, combined in played(count, run):
        assert number == 5
        assert torch.equal(whole, matrix(alone))
        assert torch.equal(gram, alone.gram(drawn(1, seed=1)[0].to(dtype)))
        assert torch.equal(combined, alone.combine(weights))
        assert combined.dtype == whole.dtype == dtype


def test_rows_of_several_dtypes_are_taken_as_the_widest():
    values = drawn(5)
    rows = ClientRows([values[:2].bfloat16(), values[2:].float()], IDS)
    assert torch.equal(matrix(rows), torch.cat([values[:2].bfloat16().float(), values[2:].float()])[ORDER])
    both = played(
        2,
        lambda each: matrix(
            ClientRows([values[[each.rank]].to([torch.half, torch.bfloat16][each.rank])], [each.rank], each)
        ),
    )
    assert both[0].dtype == both[1].dtype == torch.float32
    assert torch.equal(both[0], torch.stack([values[0].half().float(), values[1].bfloat16().float()]))


def test_sixteen_bit_rows_are_added_in_float64():
    rows = ClientRows([torch.full((1000, 2), 1.0, dtype=torch.bfloat16)], range(1000))
    assert rows.combine(torch.full((1000,), 1 / 1000, dtype=torch.float64)).tolist() == [1.0, 1.0]
    assert rows.gram()[0, 0] == 2


def test_a_row_is_combined_without_rounding():
    values = drawn(5, dtype=torch.float32)
    values[0] = 3e38
    for place, source in enumerate(ORDER):
        one = torch.zeros(5, dtype=torch.float64).index_fill_(0, torch.tensor(place), 1.0)
        assert torch.equal(ClientRows([values], IDS, columns=5).combine(one), values[source])


def test_squares_of_the_largest_numbers_are_numbers():
    values = drawn(5)
    values[0], values[1] = 1e308, -1e308
    rows = ClientRows([values], range(5))
    assert rows.gram().isfinite().all()
    assert rows.gram(matrix(rows).median(dim=0).values).isfinite().all()


def test_a_field_without_entries_has_one_empty_block():
    rows = ClientRows([torch.zeros(3, 0)], range(3))
    assert [tuple(block.shape) for block in rows.blocks()] == [(3, 0)]
    assert rows.combine(torch.ones(3)).shape == (0,)
    assert torch.equal(rows.gram(), torch.zeros(3, 3, dtype=torch.float64))


def test_rows_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"different lengths, \[3, 4\].*local_steps"):
        ClientRows([torch.zeros(1, 3), torch.zeros(1, 4)], [0, 1])

    def run(processes):
        with pytest.raises(ValueError, match="different lengths"):
            ClientRows([torch.zeros(1, 3 + processes.rank)], [processes.rank], processes)

    played(2, run)


def test_columns_that_are_not_finite_keep_to_themselves():
    """Averaged buffers may be infinite at the server; clients whose own numbers are not finite are left out before."""
    values = drawn(5)
    expected = ClientRows([values], range(5)).gram()
    wide = torch.cat([values, torch.tensor([[torch.nan, torch.inf]]).expand(5, -1)], dim=1)
    rows = ClientRows([wide], range(5), columns=10)
    torch.testing.assert_close(rows.gram(), expected)
    about = torch.tensor([0.0] * 37 + [torch.nan, torch.inf], dtype=torch.float64)
    torch.testing.assert_close(rows.gram(about), expected)
    combined = rows.combine(torch.full((5,), 0.2, dtype=torch.float64))
    torch.testing.assert_close(combined[:37], values.mean(dim=0))
    assert not combined[37:].isfinite().any()
