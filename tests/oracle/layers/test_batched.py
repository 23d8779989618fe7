"""What is computed below a vmap for all clients at once is each client's own."""

from __future__ import annotations

import torch
from torch.func import vmap

from fedlightning.oracle.layers.batched import are_batched, for_all


def test_tensors_are_batched_below_the_innermost_vmap_alone():
    seen = []

    def inner(x, y):
        seen.append(
            (are_batched(y), are_batched(x), are_batched(x, y), are_batched(y, None), are_batched(torch.ones(2)))
        )
        return y

    def outer(x):
        assert are_batched(x)
        return vmap(lambda y: inner(x, y))(torch.ones(3, 2))

    vmap(outer)(torch.ones(4, 2))
    assert seen == [(True, False, False, False, False)]


def test_every_argument_says_where_its_clients_are():
    x, y, weights = torch.randn(3, 2), torch.randn(2, 3), torch.tensor([5.0, 7.0])

    def compute(in_dims, x, y, weights, scale):
        assert (in_dims, x.shape, y.shape) == ([0, 1, None, None], (3, 2), (2, 3))
        return [(x * y.mT * weights * scale, 0), (x.mT + y, 1)]

    def one(x, y):
        assert x.shape == y.shape == (2,)
        return tuple(for_all(compute, x, y, weights, 2.0))

    product, total = vmap(one, in_dims=(0, 1))(x, y)
    torch.testing.assert_close(product, x * y.mT * weights * 2.0)
    torch.testing.assert_close(total, x + y.mT)


def test_what_an_outer_vmap_batches_stays_batched_by_it():
    def compute(in_dims, x, y):
        assert in_dims == [None, 0]
        assert are_batched(x)
        return [(x * y, 0)]

    def outer(x):
        return vmap(lambda y: for_all(compute, x, y)[0])(torch.ones(3))

    torch.testing.assert_close(vmap(outer)(torch.arange(4.0)), torch.arange(4.0)[:, None].expand(4, 3))
