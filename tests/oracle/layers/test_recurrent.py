"""An LSTM of every client below a vmap gives each client what it gives alone, and steps aside where it would not."""

from __future__ import annotations

import subprocess
import sys
import warnings
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from fedlightning.oracle import Autocast, Sequential, Vectorized
from fedlightning.oracle.errors import BatchedError
from fedlightning.oracle.layers.cohort_layers import CohortLayers
from fedlightning.oracle.layers.recurrent import lstm, weights_in_place
from tests.support.cohorts import assert_equal_evaluations, setting


class Characters(nn.Module):
    """An LSTM between layers that are batched."""

    def __init__(self, own_start=False, **options):
        super().__init__()
        self.before, self.lstm = nn.Linear(5, 4), nn.LSTM(4, 6, **options)
        both = 2 if options.get("bidirectional") else 1
        self.head = nn.Linear(6 * both, 3)
        self.start = (
            nn.Parameter(0.1 * torch.randn(2, options.get("num_layers", 1) * both, 1, 6)) if own_start else None
        )

    def forward(self, x):
        x = self.before(x)
        batch = x.shape[0 if self.lstm.batch_first else 1]
        start = None if self.start is None else tuple(s.expand(-1, batch, -1).contiguous() for s in self.start.unbind())
        y, (h, c) = self.lstm(x, start)
        return self.head(y.mean(1 if self.lstm.batch_first else 0)) + h[-1].sum() + c[0, 0, :3]


LAYERS = {
    "batch first": {"batch_first": True},
    "time first": {},
    "several layers": {"batch_first": True, "num_layers": 3},
    "both directions": {"batch_first": True, "num_layers": 2, "bidirectional": True},
    "without biases": {"batch_first": True, "bias": False},
    "a start of its own": {"batch_first": True, "own_start": True},
}


ADVICE = """
import sys, warnings
from torch import nn
from fedlightning.oracle.layers.recurrent import weights_in_place
shown = []
warnings.showwarning = lambda message, *_: shown.append(str(message))
for _ in range(3):
    with weights_in_place([nn.GRU(2, 3)]):
        warnings.warn("RNN module weights are not part of single contiguous chunk of memory.")
        warnings.warn("another")
assert shown == ["another"], shown
"""


def loss(net, batch):
    x, y = batch
    return F.cross_entropy(net(x if net.lstm.batch_first else x.transpose(0, 1)), y)


@pytest.mark.parametrize(
    "way", [Vectorized(replay=False, backward="autograd"), Vectorized(backward="autograd")], ids=str
)
@pytest.mark.parametrize("name", LAYERS)
def test_every_client_has_its_own_lstm(name, way):
    objective, w, v, b, data = setting(Characters(**LAYERS[name]), (7, 5), torch.float32, loss)
    plain, batched = Sequential().evaluator(objective, 1), way.evaluator(objective, 100)
    for _ in range(3):
        assert_equal_evaluations(batched(w, v, b, data), plain(w, v, b, data), 1e-6)
        w = w + 0.1 * torch.randn_like(w)


def test_a_frozen_lstm_is_the_same_for_all():
    net = Characters(batch_first=True)
    net.lstm.requires_grad_(False)
    objective, *arguments = setting(net, (7, 5), torch.float32, loss)
    plain, batched = (way.evaluator(objective, 100) for way in (Sequential(), Vectorized(backward="autograd")))
    for _ in range(2):
        assert_equal_evaluations(batched(*arguments), plain(*arguments), 1e-6)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.float64, {}),
        (torch.float32, {"num_layers": 2, "dropout": 0.5}),
    ],
    ids=["double precision", "dropout between layers"],
)
def test_where_there_is_no_kernel_vmap_has_the_last_word(dtype, options):
    objective, *arguments = setting(Characters(batch_first=True, **options), (7, 5), dtype, loss)
    with pytest.raises(BatchedError, match="lstm"):
        Vectorized(replay=False, backward="autograd").evaluator(objective, 100)(*arguments)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch.backends.mkldnn.flags sets more than it is asked to
def test_without_onednn_vmap_has_the_last_word():
    objective, *arguments = setting(Characters(batch_first=True), (7, 5), torch.float32, loss)
    with torch.backends.mkldnn.flags(enabled=False), pytest.raises(BatchedError, match="lstm"):
        Vectorized(replay=False, backward="autograd").evaluator(objective, 100)(*arguments)


@pytest.mark.parametrize(
    ("options", "cast"), [({"proj_size": 3}, False), ({}, True), ({}, False)], ids=["projected", "autocast", "plain"]
)
def test_the_kernel_serves_plain_layers(options, cast):
    layer, served = nn.LSTM(4, 6, batch_first=True, **options), []

    def one(x):
        result = _called(layer, x)
        served.append(result is not None)
        return x

    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        torch.func.vmap(one)(torch.randn(3, 2, 7, 4))
    assert served == [not options and not cast]


def test_a_packed_sequence_and_plain_tensors_go_their_usual_way():
    layer = nn.LSTM(4, 6)
    packed = pack_padded_sequence(torch.randn(7, 2, 4), torch.tensor([7, 3]))
    start = torch.zeros(1, 2, 6), torch.zeros(1, 2, 6)
    own = []
    arguments = packed.batch_sizes, start, layer._flat_weights, True, 1, 0.0, True, False
    torch.func.vmap(lambda data: own.append(lstm(data[None], *arguments)) or data)(packed.data)
    assert own == [None]
    assert _called(layer, torch.randn(2, 7, 4)) is None


OPTIONS = {"has_biases": True, "num_layers": 1, "dropout": 0.0, "train": True, "bidirectional": False}


@pytest.mark.parametrize("named", [OPTIONS | {"batch_first": True}, {"batch_first": True}], ids=["all", "the last"])
def test_arguments_may_have_names(named):
    layer, x = nn.LSTM(4, 6, batch_first=True), torch.randn(2, 7, 4)
    start = torch.zeros(1, 2, 6), torch.zeros(1, 2, 6)
    positions = [value for name, value in OPTIONS.items() if name not in named]
    with CohortLayers():
        y, *_ = torch.lstm(x, start, layer._flat_weights, *positions, **named)
    torch.testing.assert_close(y, layer(x)[0])
    with pytest.raises(RuntimeError, match="lstm"), CohortLayers():
        torch.func.vmap(lambda own: torch.lstm(own, start, layer._flat_weights, *positions, **named)[0])(x[None])


def test_the_comparison_in_float64_needs_no_kernel():
    objective, *arguments = setting(Characters(batch_first=True), (7, 5), torch.float64, loss)
    objective.is_for_comparison = True
    plain, batched = (
        way.evaluator(objective, 1)(*arguments) for way in (Sequential(), Vectorized(replay=False, backward="autograd"))
    )
    assert_equal_evaluations(batched, plain)


def _called(layer, x):
    start = torch.zeros(1, len(x), 6), torch.zeros(1, len(x), 6)
    return lstm(x, start, layer._flat_weights, True, 1, 0.0, True, False, True)


def test_weights_are_not_moved_meanwhile():
    layer, other = nn.GRU(2, 3), nn.GRU(2, 3)
    moves = layer.flatten_parameters
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with suppress(KeyError), weights_in_place([layer]):
            assert layer.flatten_parameters != moves
            assert other.flatten_parameters == nn.RNNBase.flatten_parameters.__get__(other)
            layer.flatten_parameters()
            warnings.warn("RNN module weights are not part of single contiguous chunk of memory.", stacklevel=1)
            warnings.warn("another", stacklevel=1)
            raise KeyError
    assert layer.flatten_parameters == moves
    assert [str(each.message) for each in caught if "weights" not in str(each.message)] == ["another"]


def test_the_advice_to_move_weights_is_left_out_and_nothing_else():
    """In a process of its own, because tests put filters back."""
    subprocess.run([sys.executable, "-c", ADVICE], check=True)


@pytest.mark.gpu
@pytest.mark.parametrize("way", [Sequential(), Vectorized(backward="each")], ids=["plain", "one by one, as graphs"])
def test_on_a_gpu_it_is_what_it_is_on_a_cpu(way):
    objective, *arguments = setting(Characters(batch_first=True, num_layers=2), (7, 5), loss=loss)
    expected = Sequential().evaluator(objective, 1)(*arguments)
    objective.task.cuda()
    objective.autocast = Autocast("cuda")
    w, v, b, (x, y) = arguments
    evaluate = way.evaluator(objective, 100)
    for _ in range(3):
        found = evaluate(w.cuda(), v.cuda(), b.cuda(), (x.cuda(), y.cuda()))
        torch.testing.assert_close(found.g.cpu(), expected.g, rtol=1e-9, atol=1e-9)
