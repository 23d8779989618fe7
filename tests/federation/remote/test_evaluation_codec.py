"""Evaluations travel as requests there and metrics back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedlightning.federation.protocol import ClientValues, EvaluationAnswer, EvaluationRequest, Precision
from fedlightning.federation.remote.evaluation_codec import (
    EVALUATION,
    decode_evaluate,
    decode_evaluation,
    encode_evaluate,
    encode_evaluation,
)
from fedlightning.federation.remote.generation import Standing
from fedlightning.federation.remote.packet import Packet, PacketError, nested, parts_of
from fedlightning.federation.remote.standing import Asked


def through_bytes(packet):
    return Packet.from_bytes(packet.to_bytes())


@pytest.mark.parametrize("tensor", [None, torch.tensor([0.5, 1.5])])
def test_a_request_comes_back(tensor):
    asked = Asked("f" * 32, EvaluationRequest("val", tensor, tensor, Precision(torch.bfloat16)), (Standing(3),))
    back = decode_evaluate(through_bytes(encode_evaluate(asked)))
    assert (back.federation, back.standings, back.request.stage) == ("f" * 32, (Standing(3),), "val")
    assert back.request.precision == Precision(torch.bfloat16)
    for found in (back.request.point, back.request.buffers):
        assert (found is tensor is None) or torch.equal(found, tensor)


@pytest.mark.parametrize("better", [None, True, False])
def test_metrics_come_back(better):
    values = ClientValues([3, 1], torch.tensor([0.5, torch.nan]), torch.tensor([4.0, 2.0]), better, True, False)
    values = replace(values, metric="acc", sums={"tp": torch.tensor([[1, 2], [3, 4]])})
    (answer,) = decode_evaluation(through_bytes(encode_evaluation([EvaluationAnswer({"val/mse": values})])))
    back = answer.metrics["val/mse"]
    assert replace(back, values=0, samples=0, sums={}) == replace(values, values=0, samples=0, sums={})
    assert torch.equal(back.sums["tp"], values.sums["tp"])
    assert torch.equal(back.values.nan_to_num(9.0), values.values.nan_to_num(9.0))
    assert torch.equal(back.samples, values.samples)
    assert decode_evaluation(encode_evaluation([])) == []


def test_a_metric_has_one_value_a_client():
    values = ClientValues([3, 1], torch.zeros(2), torch.ones(2))
    (part,) = parts_of(encode_evaluation([EvaluationAnswer({"mse": values})]), EVALUATION)
    wrong = replace(part, values={**part.values, "client_ids": [3]})
    more = encode_evaluation([EvaluationAnswer({"mse": replace(values, sums={"tp": torch.ones(3, 2)})})])
    with pytest.raises(PacketError, match="metric 'mse' has not one value a client"):
        decode_evaluation(more)
    with pytest.raises(PacketError, match="metric 'mse' has not one value a client"):
        decode_evaluation(nested("evaluation", [wrong]))
    with pytest.raises(PacketError, match="got 'answers'"):
        decode_evaluation(nested("answers", [wrong]))
