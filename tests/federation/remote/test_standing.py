"""From which state clients answer, as a part of messages."""

from __future__ import annotations

import pytest

from fedlightning.federation.protocol import Moment
from fedlightning.federation.remote.fields import Reader, Writer
from fedlightning.federation.remote.generation import Generation, Standing
from fedlightning.federation.remote.packet import PacketError
from fedlightning.federation.remote.standing import Asked, read_asked, read_moment, standing_writer

ONE, OTHER = Generation(1, 0, "a" * 32), Generation(2, 1, "b" * 32)


def test_every_client_gets_its_own_back():
    standings = (Standing(4, ONE, (OTHER, ONE)), Standing(1), Standing(2, OTHER, (ONE,)))
    asked = Asked("f" * 32, "what", standings, "run")
    assert read_asked(Reader(standing_writer(asked).packet("ask"), "ask"), "what") == asked


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"client_ids": [1, 1], "bases": ["", ""]}, "twice"),
        ({"client_ids": [1, 2], "bases": [""]}, "from which state"),
        ({"client_ids": [1], "bases": ["1.2"]}, "names no state"),
        ({"client_ids": [1], "bases": [""], "kept": [str(ONE)]}, "from which state"),
        ({"client_ids": [1], "bases": [""], "federation": ".."}, "no id of a federation"),
    ],
)
def test_what_is_not_said_of_every_client_is_refused(values, why):
    packet = Writer(**{"federation": "f" * 32, "run": "", "kept_clients": [], "kept": [], **values}).packet("ask")
    with pytest.raises(PacketError, match=why):
        read_asked(Reader(packet, "ask"), None)


def test_the_time_of_a_request_comes_back():
    packet = Writer(moment=[2, 3, 17]).packet("ask")
    assert read_moment(Reader(packet, "ask")) == Moment(2, 3, 17)
    with pytest.raises(PacketError, match="epoch, number in the epoch, and round"):
        read_moment(Reader(Writer(moment=[2]).packet("ask"), "ask"))
