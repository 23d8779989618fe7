"""Tensors of nested data."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from fedlightning.core.tree import flatten, map_tensors, unflatten


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Encoding(UserDict):
    """A mapping that is no dict, as transformers' BatchEncoding."""


@dataclass
class Sample:
    x: torch.Tensor
    y: tuple[torch.Tensor, ...]


A, B, C = torch.tensor(1.0), torch.tensor([2.0]), torch.tensor([3, 4])


@pytest.mark.parametrize(
    "data",
    [
        *(A, (A, B), [A, B], {"a": A, "b": (B, C)}, Pair(A, B), {"a": {"b": [A, (B,)]}, "c": C}),
        *(Encoding(a=A, b=(B, C)), Sample(A, (B, C)), {"a": Sample(A, (B,)), "b": Encoding(c=C)}),
    ],
)
def test_unflatten_is_the_inverse(data):
    leaves, structure = flatten(data)
    again = unflatten(leaves, structure)
    assert type(again) is type(data)
    assert flatten(again)[1] == structure
    hash(structure)
    assert all(x is y for x, y in zip(flatten(again)[0], leaves, strict=True))


def test_map_over_several():
    doubled = map_tensors(lambda a, b: a + b, {"a": (A, B)}, {"a": (A, B)})
    assert doubled["a"][1].item() == 4.0


def test_something_else_is_named():
    with pytest.raises(TypeError, match="A batch holds str 'cat'"):
        flatten((A, "cat"))
