"""Enrolments and rosters come back as they were."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedlightning.federation.protocol import Parameter, Precision, Roster
from fedlightning.federation.remote.packet import Packet, PacketError
from fedlightning.federation.remote.roster_codec import (
    Enrolment,
    decode_enrolment,
    decode_join,
    decode_roster,
    encode_enrolment,
    encode_join,
    encode_roster,
)

PARAMETERS = (Parameter("line.weight", (1, 3), torch.float32), Parameter("shift", (), torch.float32))


def through_bytes(packet):
    return Packet.from_bytes(packet.to_bytes())


@pytest.mark.parametrize("precision", [None, Precision(), Precision(torch.bfloat16)])
def test_an_enrolment_comes_back(precision):
    enrolment = Enrolment([4, 1], torch.tensor([30, 7]), ["a", "b"], PARAMETERS, "a:B", "0.1.0", precision)
    back = decode_enrolment(through_bytes(encode_enrolment(enrolment)))
    assert back.samples.tolist() == [30, 7]
    assert replace(back, samples=enrolment.samples) == enrolment


@pytest.mark.parametrize("loss", [None, 0.1])
def test_a_roster_comes_back(loss):
    roster = Roster(torch.tensor([3]), ("n.mean",), torch.tensor([0.5]).double(), loss, PARAMETERS, ("n.mean", "own"))
    roster = replace(roster, log_options={"rmse": {"on_step": False, "on_epoch": True}, "plain": {}})
    back = decode_roster(through_bytes(encode_roster(roster)))
    assert torch.equal(back.start_buffers, roster.start_buffers)
    assert replace(back, samples=roster.samples, start_buffers=roster.start_buffers) == roster


@pytest.mark.parametrize("precision", [Precision(), Precision(torch.bfloat16, 8.0)])
def test_a_precision_comes_back(precision):
    assert decode_join(through_bytes(encode_join(precision))) == precision


@pytest.mark.parametrize(
    "values",
    [
        {"shapes": ["[1, 3]"]},
        {"shapes": ["[1, 3", "[]"]},
        {"dtypes": ["x", "float32"]},
        {"shapes": ["[1e999]", "[]"]},
        {"shapes": ["[" * 10000, "[]"]},
    ],
)
def test_parameters_that_cannot_be_read_are_refused(values):
    packet = encode_enrolment(Enrolment([4], torch.tensor([30]), ["a"], PARAMETERS, "a:B", "0.1.0"))
    with pytest.raises(PacketError):
        decode_enrolment(replace(packet, values={**packet.values, **values}))


@pytest.mark.parametrize("text", ["", "[]", "[" * 10000, '{"a": 1}', '{"a": {"on_step": 1}}'])
def test_log_options_that_cannot_be_read_are_refused(text):
    packet = encode_roster(Roster(torch.tensor([3])))
    with pytest.raises(PacketError, match=r"reports? logged values"):
        decode_roster(replace(packet, values={**packet.values, "log_options": text}))
