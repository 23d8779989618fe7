"""Networks of every kind as objectives of three clients, and what it means that two ways agree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from fedlightning.core.parameter_space import ParameterSpace, read
from fedlightning.oracle import Autocast, Evaluation, Objective, Sequential, Vectorized
from fedlightning.oracle.recording.side_by_side import run

S, B = 3, 4


class Encoder(nn.Module):
    """A transformer's layer, whose linear layers take sequences, and attention of its own."""

    def __init__(self, causal):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.mix, self.head, self.causal = nn.Linear(8, 8, bias=False), nn.Linear(8, 3), causal

    def forward(self, x):
        x = self.layer(x)
        heads = self.mix(x).unflatten(-1, (2, 4)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(heads, heads, heads, is_causal=self.causal, scale=0.3)
        return self.head((x + mixed.transpose(1, 2).flatten(2)).mean(1))


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
    "transformer": (partial(Encoder, causal=False), (7, 8)),
    "causal transformer": (partial(Encoder, causal=True), (7, 8)),
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


def logs_a_weight(net, batch):
    return {"loss": classify(net, batch), "first": net[0].weight[0, 0, 0, 0].detach()}


class Swapping(nn.Module):
    """Two weights, each of which has the other for its gradient."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x):
        return _Swapped.apply(self.one, self.two) + 0 * x.sum()


class _Swapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, one, two):
        ctx.save_for_backward(one, two)
        return (one * two).sum()

    @staticmethod
    def backward(ctx, grad):
        one, two = ctx.saved_tensors
        return two.detach(), one.detach()


def assert_equal_evaluations(one, other, tolerance=1e-12):
    for name in ("g", "g_personal", "buffers", "loss"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=tolerance, atol=tolerance)


@dataclass(frozen=True)
class Wrong(Vectorized):
    """Right but for one quantity of the second client at one step, by a number and by some last digits."""

    what: str = "g"
    step: int = 0
    by: float = 1e-3
    digits: int = 0

    def fallbacks(self, on_cpu):
        yield self

    def evaluator(self, objective, calls):
        right = Sequential().evaluator(objective, calls)
        calls_so_far = []

        def evaluate(*arguments):
            result = right(*arguments)
            parts = {name: getattr(result, name) for name in ("g", "g_personal", "buffers", "loss", "scalars")}
            by = self.by + self.digits * torch.finfo(result.g.dtype).eps
            if len(calls_so_far) == self.step:
                if self.what == "scalars":
                    parts["scalars"] = {name: value + by for name, value in result.scalars.items()}
                else:
                    parts[self.what] = parts[self.what].clone()
                    parts[self.what][1:] += by
            calls_so_far.append(1)
            return Evaluation(**parts)

        return evaluate


def stepped(evaluate, w, v, b, data, blocks, randomness, lr):
    """Take a single step in place, and return what the oracle does."""
    with evaluate.steps_in_place(w, v, blocks, lr) as step:
        return step(b, data, randomness)


def a_right_and_a_wrong_step(evaluate, w, v, b, data):
    """Take two steps in place, of which the second has targets that do not exist."""
    x, y = data
    with evaluate.steps_in_place(w, v, "both", 0.1) as step:
        step(b, (x, y), None)
        step(b, (x, torch.full_like(y, 99)), None)


def turns_of(module, monkeypatch):
    """Numbers of clients, or parts, and of threads of every ``run`` that a module of the oracle calls from now on."""
    seen = []
    monkeypatch.setattr(module, "run", lambda take, *counts: seen.append(counts) or run(take, *counts))
    return seen
