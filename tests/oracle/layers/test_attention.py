"""Self-attention of a cohort gives what PyTorch's own gives one client alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlightning.oracle import Sequential, Vectorized
from fedlightning.oracle.layers.attention import self_attention
from fedlightning.oracle.randomness import Randomness
from tests.support.cohorts import S, assert_equal_evaluations, setting

WAYS = [Vectorized(replay=False, backward="autograd"), Vectorized(replay=True), Vectorized(backward="vmap")]
CAUSAL = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
PADDED = torch.tensor([False, False, False, False, True]).expand(4, 5)

CALLS = {
    "plain": ({}, {}, True),
    "length first": ({"batch_first": False}, {}, True),
    "without bias": ({"bias": False}, {}, True),
    "causal": ({}, {"attn_mask": CAUSAL, "is_causal": True}, True),
    "any mask": ({}, {"attn_mask": CAUSAL}, False),
    "padding": ({}, {"key_padding_mask": PADDED}, False),
    "weights": ({}, {"need_weights": True}, False),
    "added keys": ({"add_bias_kv": True, "add_zero_attn": True}, {}, False),
    "dropout": ({"dropout": 0.5}, {}, True),
    "causal with dropout": ({"dropout": 0.5}, {"attn_mask": CAUSAL, "is_causal": True}, True),
}


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_attention_to_itself_is_that_of_one_client(name, way, monkeypatch):
    made, called, served = CALLS[name]
    torch.manual_seed(0)
    net = nn.MultiheadAttention(8, 2, **{"batch_first": True, **made})
    found = []

    def noted(*args, **kwargs):
        found.append(self_attention(*args, **kwargs))
        return found[-1]

    def loss(net, batch):
        y, _ = net(batch[0], batch[0], batch[0], **{"need_weights": False, **called})
        return F.cross_entropy(y.tanh().mean(1)[:4, :3], batch[1])

    monkeypatch.setattr("fedlightning.oracle.layers.cohort_layers.self_attention", noted)
    objective, *arguments = setting(net, (5, 8) if net.batch_first else (4, 8), loss=loss)
    plain, evaluate = Sequential().evaluator(objective, 1), way.evaluator(objective, 100)
    for step in range(3):
        randomness = Randomness(range(S), step)
        expected = plain(*arguments, "both", randomness)
        assert_equal_evaluations(evaluate(*arguments, "both", randomness), expected)
    if way.backward == "autograd":
        assert [each is not None for each in found[:1]] == [served]


def test_attention_to_others_goes_its_usual_way():
    net = nn.MultiheadAttention(8, 2, batch_first=True)

    def loss(net, batch):
        y, _ = net(batch[0], 2 * batch[0], batch[0].tanh(), need_weights=False)
        return F.cross_entropy(y.mean(1)[:, :3], batch[1])

    objective, *arguments = setting(net, (5, 8), loss=loss)
    assert_equal_evaluations(
        Vectorized().evaluator(objective, 1)(*arguments), Sequential().evaluator(objective, 1)(*arguments)
    )
