"""All ways to compute operators agree, on every kind of layer."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from fedlightning.algorithms import FedAvg
from fedlightning.oracle import Autocast, Sequential, Vectorized
from fedlightning.oracle.base import Cost, PrefersFixedSize
from tests.support.cohorts import NETS, assert_equal_evaluations, conv, setting
from tests.support.federations import loop_for, quadratic, rounds_of, run
from tests.support.objectives_in_python import trained
from tests.support.small import Line, fitted, regression_data


@pytest.mark.parametrize("name", NETS)
def test_vectorized_equals_sequential(name):
    make, shape = NETS[name]
    objective, *arguments = setting(make(), shape)
    expected = Sequential().evaluator(objective, 1)(*arguments)
    assert_equal_evaluations(Vectorized().evaluator(objective, 1)(*arguments), expected)
    assert expected.g.abs().sum() > 0


@pytest.mark.parametrize("name", NETS)
def test_a_replay_gives_the_bits_of_the_recorded_call(name):
    make, shape = NETS[name]
    objective, w, v, b, data = setting(make(), shape, torch.float32)
    recorded, eager = Vectorized().evaluator(objective, 100), Vectorized(replay=False).evaluator(objective, 100)
    recorded(w, v, b, data)
    for _ in range(2):
        w = w + 0.1 * torch.randn_like(w)
        data = (torch.randn_like(data[0]), data[1].flip(1))
        one, other = recorded(w, v, b, data), eager(w, v, b, data)
        for field in ("g", "buffers", "loss"):
            assert torch.equal(getattr(one, field), getattr(other, field)), field


def test_a_gradient_inside_the_objective():
    def penalised(net, batch):
        x, y = batch
        slope = torch.func.grad(lambda x: F.cross_entropy(net(x), y))(x)
        return F.cross_entropy(net(x), y) + slope.square().sum()

    objective, *arguments = setting(conv(), (2, 8, 8), loss=penalised)
    one, other = (oracle.evaluator(objective, 1)(*arguments) for oracle in (Vectorized(), Sequential()))
    assert_equal_evaluations(one, other)


def test_a_schedule_in_python_is_seen_in_the_next_round():
    algorithm = FedAvg(0.05)
    task = quadratic(algorithm)
    original = task.objective
    task.factor = 1.0
    task.objective = lambda batch: task.factor * original(batch)
    batches = rounds_of(algorithm, 3, local_steps=30)
    loop = loop_for(task)
    points = []
    for batch in batches:
        points.append(run(loop, [batch])[0])
        task.factor *= 0.5
    slow = quadratic(algorithm)
    loop = loop_for(slow, Sequential())
    factor = 1.0
    base = slow.objective
    for batch, point in zip(batches, points, strict=True):
        slow.objective = lambda b, factor=factor: factor * base(b)
        torch.testing.assert_close(run(loop, [batch])[0], point, rtol=1e-12, atol=1e-12)
        factor *= 0.5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("compiler")
def test_compiled_equals_eager_and_is_one_graph():
    breaks = Counter(counters["graph_break"])
    objective, *arguments = setting(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,))
    compiled = Vectorized(compile=True).evaluator(objective, 1)(*arguments)
    assert_equal_evaluations(compiled, Sequential().evaluator(objective, 1)(*arguments), 1e-10)
    assert Counter(counters["graph_break"]) == breaks, "what is compiled in pieces takes fifteen times as long"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replay": "yes"}, r"replay='yes'\): expected true, false or null"),
        ({"replay": 1}, r"replay=1\): expected true, false or null"),
        ({"compile": None}, r"compile=None\): expected true or false"),
        ({"compile": True, "replay": True}, r"compile=True, replay=True\): what is compiled is not replayed"),
        ({"backward": "each", "compile": True}, "backward='each'.* leave out compile=True"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Vectorized(**options)


def test_hooks_behind_a_guard_are_put_on_tensors():
    """Below the forward pass' vmap no tensor says that it needs a gradient."""

    def guarded(task, original, batch):
        x = task.x * 1.0
        if x.requires_grad:
            x.register_hook(lambda g: g.clamp(max=1e6) * torch.where(g.norm() > 1e3, 0.5, 1.0))
        return original(batch) + x.square().sum()

    _, loop, _ = trained(Vectorized(), guarded)
    assert loop.oracle.backward == "vmap"


class Encoded(Line):
    """A transformer's layer over the features, whose attention has no dropout."""

    def __init__(self, **federation):
        super().__init__(dropout=0.0, **federation)
        self.body = nn.Sequential(nn.Unflatten(1, (3, 2)), nn.TransformerEncoderLayer(2, 1, 4, 0.0, batch_first=True))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(6, 1))


def test_a_fit_with_attention_is_replayed(caplog):
    caplog.set_level(logging.INFO)
    ends = []
    for oracle in (Sequential(), Vectorized()):
        torch.manual_seed(0)
        task = Encoded(oracle=oracle).double()
        fitted(task, regression_data(local_steps=25), max_steps=1, precision="64-true", limit_val_batches=0)
        ends.append(parameters_to_vector(task.parameters()))
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)
    assert "oracle: took" not in caplog.text
    assert task.run.simulation.runner.oracle_selection.oracle.replays(on_cpu=True)


@pytest.mark.parametrize(("calls", "expected"), [(2, 3), (3, 1)])
def test_three_evaluations_are_worth_a_recording(calls, expected):
    """Python code runs in every evaluation that is not replayed."""
    ran = []

    class Noting(nn.Linear):
        def forward(self, x):
            ran.append(1)
            return super().forward(x)

    objective, *arguments = setting(Noting(6, 3), (6,))
    objective.forward_only = True
    evaluate = Vectorized(replay=True).evaluator(objective, calls)
    for _ in range(3):
        evaluate(*arguments)
    assert len(ran) == expected


@pytest.mark.parametrize(
    ("draws", "device", "network", "options", "dear"),
    [
        (False, "cpu", nn.Linear(6, 3), {}, False),  # its recordings serve other rounds
        (True, "cpu", nn.Linear(6, 3), {}, True),
        (True, "cpu", nn.Linear(6, 100_000), {}, False),
        (True, "cpu", nn.Linear(6, 3), {"replay": False}, False),
        (True, "cpu", nn.Linear(6, 3), {"backward": "each"}, False),
        (False, "cuda", nn.Linear(6, 100_000), {"replay": True}, True),  # a graph for every number
        (False, "cpu", nn.Linear(6, 3), {"compile": True}, True),
    ],
    ids=str,
)
def test_numbers_of_clients_are_few_where_each_is_recorded_anew(draws, device, network, options, dear):
    objective, *_ = setting(network, (6,), dtype=torch.float32)
    objective.draws, objective.autocast = draws, Autocast(device)
    evaluate = Vectorized(**options).evaluator(objective, 100)
    steps_to_pay_off = evaluate.steps_to_pay_off if isinstance(evaluate, PrefersFixedSize) else 1
    assert (steps_to_pay_off == 32) == dear
    assert steps_to_pay_off in (1, 32)


@pytest.mark.parametrize(
    ("device", "network", "options", "pays"),
    [
        ("cpu", nn.Linear(6, 3), {}, False),  # copying rows takes longer
        ("cpu", nn.Linear(6, 100_000), {}, True),
        ("cuda", nn.Linear(6, 100_000), {}, False),
        ("cpu", nn.Linear(6, 3), {"backward": "each"}, True),
        ("cpu", nn.Linear(6, 100_000), {"compile": True}, False),
    ],
    ids=str,
)
def test_clients_that_are_done_are_left_out_where_each_costs_much(device, network, options, pays):
    objective, *_ = setting(network, (6,), dtype=torch.float32)
    objective.autocast = Autocast(device)
    assert Vectorized(**options).evaluator(objective, 100).leaves_out_done == pays


def test_a_hessian_inside_the_objective_is_replayed():
    """Forward-mode derivatives begin with zeros that have no memory."""
    calls = []

    def loss(net, batch):
        calls.append(1)
        x, y = batch
        hessian = torch.func.hessian(lambda a: net(a).pow(3).sum())(x[0])
        return F.cross_entropy(net(x), y) + hessian.square().mean()

    objective, w, v, b, data = setting(nn.Linear(6, 3), (6,), loss=loss)
    objective.draws, objective.forward_only = False, True
    replayed, plain = Vectorized(replay=True).evaluator(objective, 100), Sequential().evaluator(objective, 1)
    for _ in range(3):
        before = len(calls)
        found, ran = replayed(w, v, b, data), len(calls) - before
        assert_equal_evaluations(found, plain(w, v, b, data))
        w = w + 0.1 * torch.randn_like(w)
    assert ran == 0


def test_chunks_fit_into_the_memory_that_is_free():
    small, large = (Cost(dim=1000, itemsize=4, activation_bytes=size, free_bytes=10**8) for size in (10**5, 10**7))
    assert Vectorized().chunk(small) > Vectorized().chunk(large) >= 1
    assert Vectorized(chunk_size=7).chunk(large) == 7
    assert (
        Vectorized(backward="each").chunk(small) == Vectorized(backward="each").chunk(large) > Vectorized().chunk(small)
    )
