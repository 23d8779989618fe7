"""Requests and answers come back as they were, and wrong ones are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedlightning.algorithms import SCAFFOLD, FedSkip
from fedlightning.algorithms.base import PerClient, Point
from fedlightning.algorithms.fed_skip import Message
from fedlightning.algorithms.scaffold import Upload
from fedlightning.federation.protocol import Answer, Precision, Request, Stamp
from fedlightning.federation.remote.generation import Generation, Standing
from fedlightning.federation.remote.message_types import MessageTypes
from fedlightning.federation.remote.packet import Packet, PacketError
from fedlightning.federation.remote.standing import Asked
from fedlightning.federation.remote.training_codec import (
    decode_answer,
    decode_answers,
    decode_asked,
    encode_answer,
    encode_answers,
    encode_asked,
    split,
)

TYPES = MessageTypes(SCAFFOLD(0.1))
GENERATION = Generation(1, 0, "a" * 32)
REQUEST = Request(
    Stamp(2, 1),
    2**63 - 1,
    None,
    torch.tensor([0.1, -0.0]).double(),
    torch.tensor([1.5], dtype=torch.bfloat16),
    ("norm.mean",),
    Precision(torch.float16, 1024.0),
)
ANSWER = Answer(
    Stamp(2, 1),
    [4, 1],
    Upload(torch.randn(2, 3), torch.randn(2, 3)),
    torch.randn(2, 1),
    {"drift": torch.randn(2), "a/b": torch.randn(2)},
    {"train_loss": torch.randn(2)},
    torch.tensor([True, False]),
    ("a/b",),
    torch.tensor([False, True]),
)


def through_bytes(packet):
    return Packet.from_bytes(packet.to_bytes())


def tensors(answer):
    update = {} if answer.update is None else vars(answer.update)
    masks = {"evaluated": answer.evaluated, "sound": answer.sound, "buffers": answer.buffers}
    return {**update, **answer.metrics, **answer.tally, **masks}


def assert_equal(one, other):
    assert (one.stamp, one.client_ids, one.per_client) == (other.stamp, other.client_ids, other.per_client)
    assert type(one.update) is type(other.update)
    mine, theirs = tensors(one), tensors(other)
    assert list(mine) == list(theirs)
    for name, value in mine.items():
        assert value is theirs[name] is None or torch.equal(value, theirs[name])


def test_a_request_comes_back():
    asked = Asked("f" * 32, REQUEST, (Standing(4, GENERATION, (GENERATION,)), Standing(1)))
    back = decode_asked(through_bytes(encode_asked(asked)), TYPES)
    assert (back.federation, back.standings) == (asked.federation, asked.standings)
    plain = ("stamp", "seed", "message", "buffer_names", "precision")
    assert all(getattr(back.request, name) == getattr(REQUEST, name) for name in plain)
    assert torch.equal(back.request.point, REQUEST.point)
    assert torch.signbit(back.request.point)[1]
    assert torch.equal(back.request.buffers, REQUEST.buffers)
    assert back.request.buffers.dtype == torch.bfloat16


def test_a_request_leaves_out_what_belongs_to_other_nodes():
    own = PerClient(torch.zeros(1), torch.tensor([1, 4, 6]), torch.tensor([[1.25], [4.25], [6.25]]))
    asked = Asked("f" * 32, replace(REQUEST, message=Message(own)), (Standing(4), Standing(2)))
    packet = encode_asked(asked)
    data = packet.to_bytes()
    back = decode_asked(packet, MessageTypes(FedSkip(0.1))).request.message.start
    assert back.of([4, 2]).tolist() == [[4.25], [0.0]]
    for others in (1.25, 6.25):
        assert torch.tensor(others).numpy().tobytes() not in data


def test_answers_come_back_together_and_one_by_one():
    assert_equal(decode_answer(through_bytes(encode_answer(ANSWER)), TYPES), ANSWER)
    nothing = Answer(Stamp(0, 0), [3], None, torch.zeros(1, 0))
    assert_equal(decode_answer(through_bytes(encode_answer(nothing)), TYPES), nothing)
    packet = through_bytes(encode_answers([encode_answer(each) for each in split(ANSWER)]))
    for place, part in enumerate(decode_answers(packet)):
        one = decode_answer(part, TYPES)
        assert one.client_ids == [ANSWER.client_ids[place]]
        for name, value in tensors(one).items():
            assert torch.equal(value, tensors(ANSWER)[name][place : place + 1])


def test_an_answer_with_more_in_it_is_refused():
    packet = encode_answer(ANSWER)
    more = replace(packet, arrays={**packet.arrays, "extra": packet.arrays["buffers"]})
    with pytest.raises(PacketError, match="has the array 'extra', which does not belong"):
        decode_answer(more, TYPES)


def test_an_update_of_a_class_the_algorithm_does_not_use_is_refused():
    with pytest.raises(PacketError, match=r"algorithms\.fed_skip:Message', which SCAFFOLD does not use"):
        decode_answer(encode_answer(replace(ANSWER, update=Message(torch.zeros(2, 1)))), TYPES)
    with pytest.raises(PacketError, match="the kind 'answers'; got 'answer'"):
        decode_answers(encode_answer(ANSWER))


def test_a_message_of_a_base_is_known():
    answer = replace(ANSWER, update=Point(torch.zeros(2, 1)))
    assert type(decode_answer(encode_answer(answer), TYPES).update) is Point
