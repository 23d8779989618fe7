"""Draws of an exchange."""

from __future__ import annotations

import torch

from tests.support.transforms import Halved, Jitter, exchange


def drawn(generator):
    return torch.rand(3, generator=generator).tolist()


def test_draws_depend_on_seed_purpose_and_client_alone():
    cpu = torch.device("cpu")
    first = drawn(exchange(0, 1).generator(1, 0, cpu))
    assert drawn(exchange(1, round=9).generator(1, 0, cpu)) == first
    others = [
        exchange(1).generator(2, 0, cpu),
        exchange(1).generator(1, 1, cpu),
        exchange(1).generator(None, 0, cpu),
        exchange(1, seed=6).generator(1, 0, cpu),
    ]
    assert first not in [drawn(each) for each in others]


def test_a_transform_bounds_nothing_and_tells_nothing_of_itself():
    jitter = Jitter()
    assert jitter.bound(1.0, ["a"], exchange()) is None
    assert (jitter.memory({}), jitter.public(), jitter.publish({}, {}, exchange(), 0)) == ({}, {}, {})
    assert list(Halved().memory({"a": torch.ones(2)})) == ["a"]
