"""From which state clients answer, as a part of messages."""

from __future__ import annotations

import pytest

from fedlightning.federation.protocol import Moment
from fedlightning.federation.remote.fields import Reader, Writer
from fedlightning.federation.remote.generation import Generation, Standing
from fedlightning.federation.remote.packet import PacketError
from fedlightning.federation.remote.standing import read_moment, read_standings, standing_writer

ONE, OTHER = Generation(1, 0, "a" * 32), Generation(2, 1, "b" * 32)


def test_every_client_gets_its_own_back():
    standings = (Standing(4, ONE, (OTHER, ONE)), Standing(1), Standing(2, OTHER, (ONE,)))
    packet = standing_writer("f" * 32, standings).packet("ask")
    assert read_standings(Reader(packet, "ask")) == standings


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"client_ids": [1, 1], "bases": ["", ""]}, "twice"),
        ({"client_ids": [1, 2], "bases": [""]}, "from which state"),
        ({"client_ids": [1], "bases": ["1.2"]}, "names no state"),
        ({"client_ids": [1], "bases": [""], "kept": [str(ONE)]}, "from which state"),
    ],
)
def test_what_is_not_said_of_every_client_is_refused(values, why):
    packet = Writer(**{"kept_clients": [], "kept": [], **values}).packet("ask")
    with pytest.raises(PacketError, match=why):
        read_standings(Reader(packet, "ask"))


def test_the_time_of_a_request_comes_back():
    packet = Writer(moment=[2, 3, 17]).packet("ask")
    assert read_moment(Reader(packet, "ask")) == Moment(2, 3, 17)
    with pytest.raises(PacketError, match="epoch, number in the epoch, and round"):
        read_moment(Reader(Writer(moment=[2]).packet("ask"), "ask"))
