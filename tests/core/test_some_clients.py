"""Some clients are the same in every round, and for all who ask with the same share and seed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fedlightning.core.some_clients import SomeClients


@dataclass(frozen=True, kw_only=True)
class Others(SomeClients):
    """Another class of the same clients."""


@pytest.mark.parametrize(("share", "count"), [(0.2, 2), (0.25, 3), (0.01, 1), (1.0, 10), (0.14, 1), (0.15, 2)])
def test_a_share_is_rounded_and_somebody(share, count):
    chosen = SomeClients(share=share).among(10)
    assert len(chosen) == count
    assert chosen <= set(range(10))


def test_draws_depend_on_share_seed_and_size_alone():
    chosen = SomeClients(share=0.3).among(100)
    assert chosen == SomeClients(share=0.3, seed=0).among(100) == Others(share=0.3).among(100)
    assert chosen != SomeClients(share=0.3, seed=1).among(100)
    assert SomeClients(share=0.5).among(1_000_000) is SomeClients(share=0.5).among(1_000_000)  # drawn once


def test_every_client_is_drawn_as_often():
    counts = [0] * 10
    for seed in range(500):
        for client in SomeClients(share=0.3, seed=seed).among(10):
            counts[client] += 1
    assert 110 < min(counts) <= max(counts) < 190


def test_named_clients_are_these():
    assert SomeClients(clients=[3, 0]).among(4) == {0, 3}
    with pytest.raises(ValueError, match=r"has 3 clients, 0 to 2, and none with the id 3\. Leave it out"):
        SomeClients(clients=[3, 0]).among(3)
    with pytest.raises(ValueError, match=r"none with the id 3, 4, 5, 6, 7, \.\.\.\."):
        SomeClients(clients=range(9)).among(3)


@pytest.mark.parametrize("wrong", [{}, {"clients": [1], "share": 0.5}])
def test_one_of_clients_and_share_is_given(wrong):
    with pytest.raises(ValueError, match=r"^Others\(clients=.*exactly one of clients and share"):
        Others(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"clients": []}, {"clients": [1, 1]}, {"clients": [-1]}, {"share": 0.0}, {"share": 2}]
)
def test_values_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=rf"SomeClients\({next(iter(wrong))}="):
        SomeClients(**wrong)


@pytest.mark.parametrize("wrong", [{"clients": 3}, {"clients": ["a"]}, {"clients": [True]}, {"share": "a"}])
def test_other_types_are_refused(wrong):
    with pytest.raises(TypeError, match=rf"SomeClients\({next(iter(wrong))}="):
        SomeClients(**wrong)
