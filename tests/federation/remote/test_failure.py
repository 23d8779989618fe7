"""A failure says what went wrong."""

from __future__ import annotations

from fedlightning.federation.remote.failure import Failure, answered, decode_failure, encode_failure
from fedlightning.federation.remote.packet import Packet


def test_a_failure_comes_back():
    failure = Failure("ValueError", "lr too large on node 2: ü")
    assert decode_failure(Packet.from_bytes(encode_failure(failure).to_bytes())) == failure


def test_an_error_becomes_a_message(caplog):
    def fail(packet):
        raise KeyError(packet.kind)

    assert answered(Packet("ask").to_bytes(), lambda packet: Packet("answer", {"to": packet.kind})) == (
        Packet("answer", {"to": "ask"}).to_bytes()
    )
    assert decode_failure(Packet.from_bytes(answered(Packet("ask").to_bytes(), fail))) == Failure("KeyError", "'ask'")
    assert decode_failure(Packet.from_bytes(answered(b"no packet", fail))).error == "PacketError"
    assert "A request was not answered" in caplog.text
