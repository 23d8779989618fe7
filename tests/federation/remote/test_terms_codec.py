"""Terms of a channel as parts of a packet, and requests that lack them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedlightning.channel import Channel, Clip, PerPhase
from fedlightning.federation.channels.reception import Reception
from fedlightning.federation.protocol import Request, Stamp
from fedlightning.federation.remote.fields import Reader, Writer
from fedlightning.federation.remote.generation import RequestDigest, Standing
from fedlightning.federation.remote.packet import Packet, PacketError
from fedlightning.federation.remote.terms_codec import read_terms, require_terms, write_terms
from fedlightning.federation.terms import Terms

TERMS = Terms(3, 9, {"0.norm": torch.tensor(1.5)}, expected=2.5)
REQUEST = Request(Stamp(0, 1), 1, None, torch.ones(2), torch.ones(0), terms=TERMS)


def packed(terms):
    writer = Writer()
    if terms is not None:
        write_terms(writer, terms)
    return Reader(Packet.from_bytes(writer.packet("ask").to_bytes()), "ask")


@pytest.mark.parametrize("terms", [TERMS, replace(TERMS, expected=None), replace(TERMS, public={}), None])
def test_terms_come_back(terms):
    assert read_terms(packed(terms)) == terms


@pytest.mark.parametrize("change", [{"cohort": 0}, {"num_clients": -1}, {"expected": 0.0}, {"expected": float("nan")}])
def test_numbers_that_are_none_are_refused(change):
    with pytest.raises(PacketError, match="expected numbers above 0"):
        read_terms(packed(replace(TERMS, **change)))


def test_a_request_has_terms_where_the_node_has_a_channel():
    channel = Channel(client=[Clip(1.0)])
    without = replace(REQUEST, terms=None)
    require_terms(REQUEST, Reception(channel))
    require_terms(without, None)
    require_terms(without, Reception(PerPhase([channel, None])))
    with pytest.raises(PacketError, match="has no terms of a channel, and this node expects some"):
        require_terms(without, Reception(channel))
    with pytest.raises(PacketError, match="has terms of a channel, and this node expects none"):
        require_terms(REQUEST, None)


def test_other_terms_lead_to_another_state():
    def name(terms):
        return RequestDigest(replace(REQUEST, terms=terms)).generation(Standing(0))

    others = [
        replace(TERMS, cohort=4),
        replace(TERMS, expected=None),
        replace(TERMS, public={"0.norm": torch.tensor(2.0)}),
    ]
    names = {name(each) for each in (TERMS, None, *others)}
    assert len(names) == 5
    assert name(replace(TERMS)) == name(TERMS)
