"""All ways to compute operators agree, on every kind of layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlightning.algorithms import FedAvg
from fedlightning.core.parameter_space import ParameterSpace, read
from fedlightning.federation.cohort import RoundBatch
from fedlightning.oracle import Auto, Autocast, Cost, Objective, Sequential, Vectorized
from fedlightning.oracle.layers import CohortLayers
from tests.support.federations import loop_for, quadratic, rounds_of, run

S, B = 3, 4


class Task(nn.Module):
    def __init__(self, net, loss):
        super().__init__()
        self.net = net
        self.loss = loss

    def objective(self, batch):
        return self.loss(self.net, batch)


def classify(net, batch):
    return F.cross_entropy(net(batch[0]), batch[1])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(5, 6, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.layer(x).mean(1))


def conv(*extra, channels=2):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1), *extra, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 16, 3)
    )


NETS = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,)),
    "no-bias": (lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3)), (6,)),
    "conv": (conv, (2, 8, 8)),
    "conv-one-channel": (lambda: conv(channels=1), (1, 8, 8)),
    "conv-grouped": (lambda: conv(nn.Conv2d(4, 4, 3, padding=1, groups=2)), (2, 8, 8)),
    "conv-strided-pool": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False),
            nn.MaxPool2d(3, stride=1),
            nn.Flatten(),
            nn.Linear(16, 3),
        ),
        (2, 8, 8),
    ),
    "batch-norm": (lambda: conv(nn.BatchNorm2d(4)), (2, 8, 8)),
    "group-norm": (lambda: conv(nn.GroupNorm(2, 4)), (2, 8, 8)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)), (2, 8)),
    "avg-pool": (lambda: conv(nn.AvgPool2d(1)), (2, 8, 8)),
    "embedding-free-gru": (Recurrent, (7, 5)),
    "attention": (Attention, (7, 8)),
}


def setting(net, shape, dtype=torch.float64, loss=classify, personal=()):
    task = Task(net, loss).to(dtype)
    space = ParameterSpace(task, personal_parameters=personal)
    changing = [name for name, _ in task.named_buffers()]
    space.restrict_buffers(changing)
    objective = Objective(task, space, Autocast("cpu"))
    w, v = (
        read(layout, task) + 0.05 * torch.randn(S, layout.dim, dtype=dtype) for layout in (space.shared, space.personal)
    )
    b = read(space.buffers, task, like=w).expand(S, -1).clone()
    data = (torch.randn(S, B, *shape, dtype=dtype), torch.randint(0, 3, (S, B)))
    return objective, w, v, b, data


def assert_equal_evaluations(one, other, tolerance=1e-12):
    for name in ("g", "g_personal", "buffers", "loss"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=tolerance, atol=tolerance)


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


def test_cohort_layers_equal_plain_vmap_and_are_used(monkeypatch):
    objective, *arguments = setting(conv(), (2, 8, 8))
    ours = Vectorized().evaluator(objective, 1)(*arguments)
    calls = []
    for name in ("_conv2d", "_max_pool2d", "_linear", "_cross_entropy"):
        from fedlightning.oracle import layers

        rule = getattr(layers, name)
        table = next(f for f, r in layers._RULES.items() if r is rule)
        monkeypatch.setitem(layers._RULES, table, lambda *a, name=name, **k: calls.append(name))
    plain = Vectorized().evaluator(objective, 1)(*arguments)
    assert set(calls) == {"_conv2d", "_max_pool2d", "_linear", "_cross_entropy"}
    assert_equal_evaluations(ours, plain)


def test_cohort_layers_step_aside_outside_vmap():
    x = torch.randn(2, 3)
    with CohortLayers():
        torch.testing.assert_close(F.linear(x, torch.eye(3), torch.zeros(3)), x)


def test_cross_entropy_rule_keeps_ignored_labels():
    def loss(net, batch):
        logits = net(batch[0])
        sums = F.cross_entropy(logits, batch[1], reduction="sum")
        return F.cross_entropy(logits, batch[1]) + sums + F.cross_entropy(logits, batch[1], reduction="none").max()

    objective, w, v, b, (x, y) = setting(nn.Linear(6, 3), (6,), loss=loss)
    y[:, 0] = -100
    one, other = (oracle.evaluator(objective, 1)(w, v, b, (x, y)) for oracle in (Vectorized(), Sequential()))
    assert_equal_evaluations(one, other)


def test_label_smoothing_and_class_weights_go_their_usual_way():
    def loss(net, batch):
        logits = net(batch[0])
        weighted = F.cross_entropy(logits, batch[1], weight=torch.tensor([1.0, 2.0, 3.0], dtype=logits.dtype))
        return weighted + F.cross_entropy(logits, batch[1], label_smoothing=0.1)

    objective, *arguments = setting(nn.Linear(6, 3), (6,), loss=loss)
    one, other = (oracle.evaluator(objective, 1)(*arguments) for oracle in (Vectorized(), Sequential()))
    assert_equal_evaluations(one, other)


def test_a_gradient_inside_the_objective():
    def penalised(net, batch):
        x, y = batch
        slope = torch.func.grad(lambda x: F.cross_entropy(net(x), y))(x)
        return F.cross_entropy(net(x), y) + slope.square().sum()

    objective, *arguments = setting(conv(), (2, 8, 8), loss=penalised)
    one, other = (oracle.evaluator(objective, 1)(*arguments) for oracle in (Vectorized(), Sequential()))
    assert_equal_evaluations(one, other)


def test_dropout_differs_between_clients_and_steps():
    def loss(net, batch):
        return F.dropout(torch.ones(50), 0.5).sum() * net(batch[0]).sum()

    objective, w, v, b, data = setting(nn.Linear(6, 3), (6,), torch.float32, loss)
    w, data = w[:1].expand(S, -1).contiguous(), tuple(t[:1].expand(S, *t.shape[1:]).contiguous() for t in data)
    for oracle in (Vectorized(replay=False), Vectorized()):
        evaluate = oracle.evaluator(objective, 100)
        losses = torch.stack([evaluate(w, v, b, data).loss for _ in range(3)])
        assert len(losses.unique()) > 6


def test_replay_draws_what_the_eager_call_would_draw():
    def loss(net, batch):
        return F.cross_entropy(net(F.dropout(batch[0], 0.3)), batch[1])

    objective, *arguments = setting(nn.Linear(6, 3), (6,), torch.float32, loss)
    results = []
    for oracle in (Vectorized(replay=False), Vectorized(replay=True)):
        evaluate = oracle.evaluator(objective, 100)
        evaluate(*arguments)
        torch.manual_seed(5)
        results.append(torch.stack([evaluate(*arguments).g for _ in range(3)]))
    assert torch.equal(*results)


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


def test_reading_a_value_in_python_is_not_recorded():
    scale = torch.tensor(2.0, dtype=torch.float64)

    def loss(net, batch):
        return net(batch[0]).sum() * scale.item()

    objective, *arguments = setting(nn.Linear(6, 3), (6,), loss=loss)
    evaluate = Vectorized(replay=True).evaluator(objective, 100)
    first = evaluate(*arguments).loss
    scale.fill_(4.0)
    torch.testing.assert_close(evaluate(*arguments).loss, 2 * first)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_equals_eager():
    objective, *arguments = setting(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,))
    try:
        compiled = Vectorized(compile=True).evaluator(objective, 1)(*arguments)
    except RuntimeError as error:  # pragma: no cover
        pytest.skip(f"torch.compile does not work on this machine: {str(error)[:80]}")
    assert_equal_evaluations(compiled, Sequential().evaluator(objective, 1)(*arguments), 1e-10)


@pytest.mark.parametrize("name", ["batch-norm", "embedding-free-gru", "linear"])
@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(), Vectorized(replay=True)], ids=str)
def test_one_block_alone_is_its_part_of_both(name, oracle):
    """As the output or the input is personal; recorded, and as vmap over the gradient (the recurrent net), too."""
    make, shape = NETS[name]
    objective, *arguments = setting(make(), shape, personal=["net.out" if "gru" in name else "net.0"])
    both = Sequential().evaluator(objective, 1)(*arguments)
    assert both.g.abs().sum() > 0 < both.g_personal.abs().sum()
    evaluate = oracle.evaluator(objective, 100)
    for _ in range(2):  # recorded, then replayed
        shared, own = evaluate(*arguments, "shared"), evaluate(*arguments, "personal")
        for one in (shared, own):
            torch.testing.assert_close(one.loss, both.loss)
            torch.testing.assert_close(one.buffers, both.buffers)
        torch.testing.assert_close(shared.g, both.g)
        torch.testing.assert_close(own.g_personal, both.g_personal)
        assert shared.g_personal.shape == own.g.shape == (S, 0)


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized()], ids=str)
def test_a_loss_may_leave_one_block_out(oracle):
    def loss(net, batch):
        return net[0](batch[0]).square().mean()

    net = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3))
    objective, *arguments = setting(net, (6,), loss=loss, personal=["net.1"])
    own = oracle.evaluator(objective, 1)(*arguments, "personal").g_personal
    assert torch.equal(own, torch.zeros(S, 12).double())


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized()], ids=str)
def test_a_personal_pass_goes_back_no_further_than_it_must(oracle):
    class Counted(torch.autograd.Function):
        backwards = 0
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            Counted.backwards += 1
            return g

    def loss(net, batch):
        return classify(lambda x: net[1](Counted.apply(net[0](x))), batch)

    net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    objective, *arguments = setting(net, (6,), loss=loss, personal=["net.1"])
    evaluate = oracle.evaluator(objective, 1)
    evaluate(*arguments)
    Counted.backwards = 0
    evaluate(*arguments, "personal")
    assert Counted.backwards == 0
    evaluate(*arguments, "shared")
    assert Counted.backwards > 0


def test_loss_scale_leaves_gradients_alone():
    objective, *arguments = setting(nn.Linear(6, 3), (6,))
    expected = Sequential().evaluator(objective, 1)(*arguments)
    objective.autocast = Autocast("cpu", scale=2.0**10)
    for oracle in (Vectorized(), Sequential()):
        assert_equal_evaluations(oracle.evaluator(objective, 1)(*arguments), expected)


def test_unused_parameters_have_zero_gradients():
    def loss(net, batch):
        return net[0](batch[0]).square().mean()

    objective, *arguments = setting(nn.Sequential(nn.Linear(6, 3), nn.Linear(6, 3)), (6,), loss=loss)
    for oracle in (Vectorized(), Sequential()):
        g = oracle.evaluator(objective, 1)(*arguments).g
        assert g[:, :21].abs().sum() > 0
        assert not g[:, 21:].any()


def test_chunk_follows_memory():
    small, large = Cost(100, 4, 1000), Cost(10**7, 4, 10**6)
    assert Vectorized().chunk(small) > 1000
    assert Vectorized().chunk(large) == 8
    assert Vectorized().chunk(Cost(10**7, 4, 10**6, free_bytes=10**9)) == 1
    assert Vectorized(chunk_size=5).chunk(large) == 5
    assert Sequential().chunk(small) == 1
    with pytest.raises(ValueError, match="chunk_size=0"):
        Vectorized(chunk_size=0)


def test_auto_takes_the_faster_one_and_says_so():
    algorithm = FedAvg(0.05)
    said = []
    loop = loop_for(quadratic(algorithm), Auto(), report=said.append)
    run(loop, rounds_of(algorithm, 1, local_steps=30))
    assert isinstance(loop.oracle, Vectorized | Sequential)
    assert said[0].startswith(f"oracle: took {type(loop.oracle).__name__}")  # on so many threads, if there are more
    assert "ms" in said[0]


def test_auto_decides_by_time(monkeypatch):
    algorithm = FedAvg(0.05)
    for times, expected in (
        ({"Sequential": 1.0, "Vectorized": 5.0}, "Vectorized"),
        ({"Sequential": 0.5, "Vectorized": 5.0}, "Sequential"),
    ):
        monkeypatch.setattr(Auto, "_time", lambda self, oracle, *_, times=times: times[type(oracle).__name__])
        loop = loop_for(quadratic(algorithm), Auto())
        run(loop, rounds_of(algorithm, 1))  # 6 clients at once: 5/6 s against 1 s or 0.5 s each
        assert type(loop.oracle).__name__ == expected


def test_auto_with_one_client_is_sequential():
    algorithm = FedAvg(0.05)
    loop = loop_for(quadratic(algorithm, num_clients=1), Auto())
    run(loop, rounds_of(algorithm, 1, num_clients=1))
    assert loop.oracle == Sequential()


def test_the_global_random_state_is_left_alone():
    algorithm = FedAvg(0.05)
    loop = loop_for(quadratic(algorithm, noise=1.0))
    batches = rounds_of(algorithm, 2)
    before = torch.get_rng_state()
    run(loop, batches)
    assert torch.equal(torch.get_rng_state(), before)


def test_noise_is_a_function_of_seed_and_round():
    algorithm = FedAvg(0.05)
    batches = rounds_of(algorithm, 2)
    first, second = (run(loop_for(quadratic(algorithm, noise=1.0)), batches) for _ in range(2))
    assert torch.equal(first, second)
    twice = [RoundBatch(0, batches[0].cohorts, batches[0].samples)] * 2
    loop = loop_for(quadratic(algorithm, noise=1.0))
    one = run(loop, twice[:1])
    assert torch.equal(one[0], first[0])
