"""A failure says what went wrong."""

from __future__ import annotations

import pytest

from fedlightning.core.errors import InvalidValueError
from fedlightning.federation.remote.failure import WITHHELD, Failure, answered, decode_failure, encode_failure
from fedlightning.federation.remote.packet import Packet
from fedlightning.federation.remote.store import StoreError


def test_a_failure_comes_back():
    failure = Failure("ValueError", "lr too large on node 2: ü")
    assert decode_failure(Packet.from_bytes(encode_failure(failure).to_bytes())) == failure


def test_an_error_becomes_a_message(caplog):
    def fail(packet):
        raise KeyError(packet.kind)

    assert answered(Packet("ask").to_bytes(), lambda packet: Packet("answer", {"to": packet.kind})) == (
        Packet("answer", {"to": "ask"}).to_bytes()
    )
    assert decode_failure(Packet.from_bytes(answered(Packet("ask").to_bytes(), fail))) == Failure("KeyError", WITHHELD)
    assert decode_failure(Packet.from_bytes(answered(b"no packet", fail))).error == "PacketError"
    assert "A request was not answered" in caplog.text


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (lambda: InvalidValueError("lr=-1: expected a number"), "lr=-1: expected a number"),
        (lambda: ValueError("patient 17"), WITHHELD),
        (lambda: InvalidValueError("client 3: patient 17"), f"client 3: {WITHHELD}"),
        (lambda: InvalidValueError("client 3: patient"), f"ValueError: {WITHHELD}"),
        (lambda: StoreError("no space for patient 17"), "no space for patient 17"),
    ],
    ids=["own", "foreign", "quoted", "quoted in part", "of files"],
)
def test_texts_that_may_quote_data_stay(error, told):
    def fail(packet):
        if "patient" in str(error()):
            raise error() from ValueError("patient 17")
        raise error()

    assert decode_failure(Packet.from_bytes(answered(Packet("ask").to_bytes(), fail))).text == told


def test_a_text_of_another_machine_is_short_and_printable():
    told = decode_failure(encode_failure(Failure("A\x1b[2J", "first\nsecond\x07" + "x" * 5_000_000)))
    assert told == Failure("A [2J", "first second " + "x" * 487)
