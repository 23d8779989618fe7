"""Tensors as bytes: every dtype, every bit."""

from __future__ import annotations

import pytest
import torch

from fedlightning.federation.remote.packet import ITEM_SIZES, PacketError, RawArray
from fedlightning.federation.remote.tensors import dtype_name, from_raw, named_dtype, to_raw


@pytest.mark.parametrize("name", ITEM_SIZES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
def test_every_bit_comes_back(name, shape):
    torch.manual_seed(0)
    dtype = named_dtype(name)
    count = torch.Size(shape).numel()
    raw = torch.randint(0, 2 if name == "bool" else 256, (count * ITEM_SIZES[name],), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)  # NaN and -0 among them
    back = from_raw(to_raw(tensor))
    assert (back.dtype, back.shape) == (dtype, tensor.shape)
    assert to_raw(back) == to_raw(tensor)
    assert to_raw(tensor).data == raw.numpy().tobytes()
    assert dtype_name(dtype) == name


def test_views_travel_as_what_they_show():
    tensor = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(from_raw(to_raw(tensor)), tensor)
    assert torch.equal(from_raw(to_raw(torch.ones(1).expand(3))), torch.ones(3))


def test_what_arrives_may_be_written_to():
    tensor = from_raw(to_raw(torch.zeros(2)))
    tensor += 1
    assert tensor.tolist() == [1, 1]


def test_numbers_that_cannot_travel_are_refused():
    with pytest.raises(PacketError, match=r"torch\.complex64 cannot travel"):
        to_raw(torch.zeros(1, dtype=torch.complex64))
    with pytest.raises(PacketError, match="no dtype 'float8'"):
        named_dtype("float8")
    with pytest.raises(PacketError, match="came with 3 bytes; expected 4"):
        RawArray("float32", (1,), b"abc")


@pytest.mark.parametrize("shape", [(0, 2**62, 2**62), (0, 2**70)])
def test_a_shape_that_no_tensor_has_is_refused(shape):
    with pytest.raises(PacketError, match=r"shape \(0, .*which no tensor has"):
        from_raw(RawArray("float32", shape, b""))
