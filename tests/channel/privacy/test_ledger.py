"""Releases are kept with how their cohorts were drawn, also where the server's count begins anew."""

from __future__ import annotations

import json

import pytest

from fedlightning.channel.privacy import EveryClient, FixedSizeSampling, Ledger, PoissonSampling

OFTEN, SELDOM = PoissonSampling(60, 0.9), PoissonSampling(60, 0.05)


def test_releases_stay_with_how_they_were_drawn():
    ledger = Ledger().with_more(OFTEN, [4.0, 6.0], [3, 2]).with_more(SELDOM, [4.0, 6.0], [5, 2])
    assert ledger.parts == ((OFTEN, {4.0: 3, 6.0: 2}), (SELDOM, {4.0: 2, 6.0: 0}))
    assert (ledger.counted, ledger.releases) == ((5, 2), 7)


def test_phases_of_one_multiplier_are_added():
    assert Ledger().with_more(OFTEN, [4.0, 4.0], [3, 2]).parts == ((OFTEN, {4.0: 5}),)


def test_a_server_that_begins_anew_adds_all_it_has_released():
    ledger = Ledger().with_more(OFTEN, [4.0], [3]).with_more(OFTEN, [4.0], [0]).with_more(OFTEN, [5.0], [2])
    assert ledger.parts == ((OFTEN, {4.0: 3, 5.0: 2}),)


def test_nothing_released_leaves_no_part():
    assert Ledger().with_more(OFTEN, [4.0], [0]).parts == ()


@pytest.mark.parametrize("sampling", [OFTEN, EveryClient(60), FixedSizeSampling(60, 7)])
def test_it_goes_through_plain_types(sampling):
    ledger = Ledger().with_more(sampling, [4.0], [3])
    assert Ledger.from_state_dict(json.loads(json.dumps(ledger.state_dict()))) == ledger
