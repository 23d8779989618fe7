"""A failure says what went wrong."""

from __future__ import annotations

from fedlightning.federation.remote.failure import Failure, decode_failure, encode_failure
from fedlightning.federation.remote.packet import Packet


def test_a_failure_comes_back():
    failure = Failure("ValueError", "lr too large on node 2: ü")
    assert decode_failure(Packet.from_bytes(encode_failure(failure).to_bytes())) == failure
