"""Lengths of codes, counted by hand and by writing the codes down."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel.compression.codes import choice_bits, gamma_bits, number_bits, share_of, subset_bits


@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.float32, 32), (torch.float64, 64), (torch.bfloat16, 16), (torch.float16, 16)]
)
def test_a_number_takes_the_bits_of_its_dtype(dtype, bits):
    assert number_bits(dtype) == bits


@pytest.mark.parametrize(
    ("fraction", "length", "count"), [(0.07, 100, 7), (0.071, 100, 8), (1e-9, 100, 1), (1.0, 7, 7), (0.1, 30, 3)]
)
def test_a_share_is_rounded_up(fraction, length, count):
    assert share_of(fraction, length) == count


@pytest.mark.parametrize(("count", "bits"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1024, 10), (1025, 11)])
def test_possibilities_are_told_apart_by_the_logarithm(count, bits):
    assert choice_bits(count) == bits


@pytest.mark.parametrize(
    ("size", "of", "bits"),
    [
        (2, 100, 14),  # two indices of 7 bits
        (14, 100, 98),
        (15, 100, 100),  # a bitmap is shorter than 105
        (99, 100, 100),
        (100, 100, 0),
        (1, 1, 0),
    ],
)
def test_a_subset_is_indices_or_a_bitmap(size, of, bits):
    assert subset_bits(size, of) == bits


def test_gamma_codes_are_as_long_as_they_are_written():
    numbers = [1, 2, 3, 4, 7, 8, 255, 256, 2**20 - 1, 2**20]
    written = ["0" * (len(f"{number:b}") - 1) + f"{number:b}" for number in numbers]
    assert written[:4] == ["1", "010", "011", "00100"]
    assert gamma_bits(torch.tensor(numbers, dtype=torch.float32)).tolist() == [len(code) for code in written]
