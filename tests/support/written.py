"""Objectives written by hand, for the fuzz: what people put into an objective beside plain layers.

Each is a network, a loss and the shape of a sample; the data are noise and three classes. ``outside`` marks state and
random numbers that torch does not know of.
"""

from __future__ import annotations

import copy
import itertools
import random as python_random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.support.objectives import CLIENTS, Case, Setting

Loss = Callable[[Any, Any], Any]


def written_cases() -> list[Case]:
    """All of the table."""
    return [Case(f"written:{name}", partial(_setting, *entry)) for name, entry in _TABLE.items()]


def _setting(network: Callable[[], nn.Module], loss: Loss, shape: tuple[int, ...], flags: str) -> Setting:
    draw = torch.Generator().manual_seed(7)
    data = [
        (
            torch.randn(20, *shape, dtype=torch.float64, generator=draw) * (1 + 0.08 * client),
            torch.randint(0, 3, (20,), generator=draw),
        )
        for client in range(CLIENTS)
    ]
    return Setting(network, loss, data, batch_size=4, random="random" in flags, outside="outside" in flags)


_TABLE: dict[str, tuple[Callable[[], nn.Module], Loss, tuple[int, ...], str]] = {}


def add(
    name: str, network: Callable[[], nn.Module], loss: Loss, shape: tuple[int, ...] = (6,), flags: str = ""
) -> None:
    assert name not in _TABLE, name
    _TABLE[name] = (network, loss, shape, flags)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def ce(net: Any, batch: Any) -> Tensor:
    return F.cross_entropy(net(batch[0]), batch[1])


class Layers(nn.Module):
    """A network given by its parts and a function of them."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


def layers(forward: Callable[[Any, Tensor], Tensor], **parts: Callable[[], Any]) -> Callable[[], nn.Module]:
    """A constructor of :class:`Layers` from constructors of the parts."""
    return lambda: Layers(forward, **{name: part() for name, part in parts.items()})


def parameter(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.randn(*shape))


def linear(*sizes: int, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(*sizes, **options)


def sequence(*parts: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(part() for part in parts))


def spectral(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A filter in the frequency domain; ``function`` takes four complex numbers to six real ones."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.out(function(torch.fft.rfft(x) * torch.complex(self.real, self.imag)))

    return layers(forward, real=parameter(4), imag=parameter(4), out=linear(6, 3))


def wide(*parts: Tensor) -> Tensor:
    return torch.cat(parts, -1)[..., :6]


add("fft filter", spectral(lambda z: torch.fft.irfft(z, n=6)), ce)
add("fft filter, conjugated", spectral(lambda z: torch.fft.irfft(z.conj(), n=6)), ce)
add("autocorrelation by fft", spectral(lambda z: torch.fft.irfft(z * z.conj(), n=6)), ce)
add("fft, abs and angle", spectral(lambda z: wide(z.abs(), z.angle())), ce)
add("fft, imaginary part of the conjugate", spectral(lambda z: wide(z.conj().imag, z.real)), ce)
add("complex ReLU", spectral(lambda z: torch.fft.irfft(torch.complex(F.relu(z.real), F.relu(z.imag)), n=6)), ce)
add(
    "fft2",
    layers(lambda s, x: s.out((torch.fft.fft2(x) * s.f).abs().flatten(1)), f=parameter(4, 4), out=linear(16, 3)),
    ce,
    (4, 4),
)
add(
    "stft spectrogram",
    layers(
        lambda s, x: s.out(
            torch.stft(x * s.f, 8, hop_length=4, window=torch.hann_window(8, dtype=x.dtype), return_complex=True)
            .abs()
            .flatten(1)
        ),
        f=parameter(16),
        out=linear(25, 3),
    ),
    ce,
    (16,),
)


def unitary(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], nn.Module]:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.out(function(x.to(torch.complex128), torch.complex(self.real, self.imag)))

    return layers(forward, real=parameter(6, 4), imag=parameter(6, 4), out=linear(4, 3))


add("complex matmul, squared modulus", unitary(lambda x, u: ((x @ u).conj() * (x @ u)).real), ce)
add("adjoint times matrix", unitary(lambda x, u: (0.3 * x @ u @ (u.mH @ u)).real), ce)
add("complex einsum", unitary(lambda x, u: torch.einsum("bj,bj->bj", x @ u, (x @ u).conj()).real), ce)
add("complex exponential", unitary(lambda x, u: (0.1j * (x @ u)).exp().real), ce)
add(
    "view_as_complex of a parameter",
    layers(
        lambda s, x: s.out(torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(s.f), n=6)),
        out=linear(6, 3),
        f=parameter(4, 2),
    ),
    ce,
)
add(
    "view_as_complex of a parameter, odd offset",
    layers(
        lambda s, x: s.out(torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(s.f), n=6)) * s.one,
        one=parameter(1),
        f=parameter(4, 2),
        out=linear(6, 3),
    ),
    ce,
)
add(
    "eigvalsh and det",
    layers(
        lambda s, x: s.out(x) * torch.linalg.eigvalsh(s.a @ s.a.mT).sum() + torch.linalg.det(s.a),
        a=parameter(4, 4),
        out=linear(6, 3),
    ),
    ce,
)
add("qr", layers(lambda s, x: s.out(x @ torch.linalg.qr(s.a)[0]), a=parameter(6, 6), out=linear(6, 3)), ce)


def by_svd(self: Any, x: Tensor) -> Tensor:
    u, values, vh = torch.linalg.svd(self.a, full_matrices=False)
    return self.out(x @ u @ torch.diag_embed(values) @ vh)


add("svd", layers(by_svd, a=parameter(6, 6), out=linear(6, 3)), ce)
add(
    "solve",
    layers(
        lambda s, x: s.out(torch.linalg.solve(s.a + 9 * torch.eye(6, dtype=x.dtype), x.mT).mT),
        a=parameter(6, 6),
        out=linear(6, 3),
    ),
    ce,
)
add(
    "matrix_exp",
    layers(lambda s, x: s.out(x @ torch.matrix_exp(s.a - s.a.mT)), a=parameter(6, 6), out=linear(6, 3)),
    ce,
)
add(
    "cholesky",
    layers(
        lambda s, x: s.out(x @ torch.linalg.cholesky(s.a @ s.a.mT + torch.eye(6, dtype=x.dtype))),
        a=parameter(6, 6),
        out=linear(6, 3),
    ),
    ce,
)


def constant(make: Callable[[], Tensor]) -> Loss:
    return lambda net, batch: F.cross_entropy(net(batch[0]) * make(), batch[1])


def changed_scalar(net: Any, batch: Any) -> Tensor:
    regularizer = torch.tensor(0.0)
    for k in range(3):
        regularizer += 0.1 * k
    return ce(net, batch) * (1 + regularizer)


def penalty_in_place(net: Any, batch: Any) -> Tensor:
    regularizer = torch.tensor(0.0, dtype=torch.float64)
    for p in net.parameters():
        regularizer += p.square().sum()
    return ce(net, batch) + 0.01 * regularizer


def penalty(net: Any, batch: Any) -> Tensor:
    regularizer = torch.tensor(0.0, dtype=torch.float64)
    for p in net.parameters():
        regularizer = regularizer + p.square().sum()
    return ce(net, batch) + 0.01 * regularizer


def masked_constant(net: Any, batch: Any) -> Tensor:
    mask = torch.tensor([0.0, 1.0, 0.2], dtype=torch.float64)
    mask.masked_fill_(mask > 0.5, 2.0).add_(-0.1)
    return (net(batch[0]) * mask).square().mean()


def class_weights(net: Any, batch: Any) -> Tensor:
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    weight /= weight.sum()
    return F.cross_entropy(net(batch[0]), batch[1], weight=weight)


def positions(net: Any, batch: Any) -> Tensor:
    return F.cross_entropy(
        net(batch[0] + torch.tensor([float(i) for i in range(6)]).double().mul_(0.3).sin_()), batch[1]
    )


def made_doubled() -> Tensor:
    return torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)


SHARED = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)

add("torch.tensor", mlp, constant(made_doubled))
add("torch.tensor, changed in place", mlp, constant(lambda: made_doubled().sub_(0.05)))
add("from_numpy, changed in place", mlp, constant(lambda: torch.from_numpy(np.array([1.0, 2.0, 3.0])).mul_(0.9)))
add("as_tensor, an element set", mlp, constant(lambda: _set(torch.as_tensor([1.0, 2.0, 3.0], dtype=torch.float64))))
add("ones, changed in place", mlp, constant(lambda: torch.ones(3, dtype=torch.float64).mul_(0.9)))
add("arange, changed in place", mlp, constant(lambda: torch.arange(3, dtype=torch.float64).mul_(0.1).sin_()))
add("a constant of the module's file", mlp, constant(lambda: SHARED))
add("a clone of it, changed in place", mlp, constant(lambda: SHARED.clone().mul_(0.9)))
add("running scalar += number", mlp, changed_scalar)
add("L2 penalty by reg += p^2", mlp, penalty_in_place)
add("L2 penalty by reg = reg + p^2", mlp, penalty)
add("mask filled in place", mlp, masked_constant)
add("class weights normalised in place", mlp, class_weights)
add("positions by tensor(list).mul_.sin_", mlp, positions)
add(
    "eye, linspace",
    mlp,
    lambda n, b: (n(b[0]) @ torch.eye(3).double()).square().mean() + torch.linspace(0, 1, 3).double() @ n(b[0]).mean(0),
)


def _set(t: Tensor) -> Tensor:
    t[0] += 0.5
    return t


def embedded(net: Any, batch: Any) -> Tensor:
    return F.cross_entropy(net(batch[1]) + batch[0][:, :3], batch[1])


def embedding(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Embedding(3, 6, **options), nn.Linear(6, 3))


def bag(**options: Any) -> tuple[Callable[[], nn.Module], Loss]:
    return (
        lambda: nn.Sequential(nn.EmbeddingBag(3, 6, **options), nn.Linear(6, 3)),
        lambda n, b: F.cross_entropy(n(torch.stack([b[1], b[1].flip(0)], 1)) + b[0][:, :3], b[1]),
    )


add("embedding", embedding(), embedded)
add("embedding, padding_idx", embedding(padding_idx=0), embedded)
add("embedding, padding_idx=-1", embedding(padding_idx=-1), embedded)
add("embedding, scale_grad_by_freq", embedding(scale_grad_by_freq=True), embedded)
add("embedding, max_norm", embedding(max_norm=0.5), embedded)
add("embedding, sparse", embedding(sparse=True), embedded)
add(
    "F.embedding(padding_idx)",
    embedding(),
    lambda n, b: F.cross_entropy(n[1](F.embedding(b[1], n[0].weight, padding_idx=1)), b[1]),
)
add("embedding bag", *bag())
add("embedding bag, padding_idx", *bag(padding_idx=0))
add("embedding bag, max", *bag(mode="max"))
add(
    "embedding tied to the output",
    layers(lambda s, x: s.body(s.e(x.argmax(1))) @ s.e.weight.T, e=lambda: nn.Embedding(6, 5), body=linear(5, 5)),
    ce,
)


def recurrent(kind: Any, **options: Any) -> Callable[[], nn.Module]:
    width = 5 * (2 if options.get("bidirectional") else 1)
    return layers(
        lambda s, x: s.out(s.r(x)[0][:, -1]),
        r=lambda: kind(3, 5, batch_first=True, **options),
        out=linear(options.get("proj_size") or width, 3),
    )


def packed(net: Any, batch: Any) -> Tensor:
    lengths = (batch[1] + 1).cpu()
    together = nn.utils.rnn.pack_padded_sequence(batch[0], lengths, batch_first=True, enforce_sorted=False)
    return F.cross_entropy(net.out(net.r(together)[1][-1]), batch[1])


def packed_alike(net: Any, batch: Any) -> Tensor:
    together = nn.utils.rnn.pack_padded_sequence(batch[0], torch.tensor([4, 3, 2, 1]), batch_first=True)
    return F.cross_entropy(net.out(net.r(together)[1][-1]), batch[1])


def encoder(**options: Any) -> Callable[[], nn.Module]:
    options = {"dropout": 0.0, "batch_first": True, **options}
    return sequence(lambda: nn.TransformerEncoderLayer(6, 2, 8, **options), nn.Flatten, linear(24, 3))


for kind in (nn.RNN, nn.LSTM, nn.GRU):
    add(kind.__name__, recurrent(kind), ce, (4, 3))
add("LSTM of two layers with dropout", recurrent(nn.LSTM, num_layers=2, dropout=0.5), ce, (4, 3), "random")
add("GRU of two layers with dropout", recurrent(nn.GRU, num_layers=2, dropout=0.5), ce, (4, 3), "random")
add("LSTM, bidirectional", recurrent(nn.LSTM, bidirectional=True), ce, (4, 3))
add("LSTM, projected", recurrent(nn.LSTM, proj_size=2), ce, (4, 3))
add("packed sequence, lengths from the data", recurrent(nn.GRU), packed, (4, 3))
add("packed sequence, lengths alike", recurrent(nn.GRU), packed_alike, (4, 3))
add("transformer encoder", encoder(), ce, (4, 6))
add("transformer encoder, norm first, gelu", encoder(norm_first=True, activation="gelu"), ce, (4, 6))
add("transformer encoder with dropout", encoder(dropout=0.3), ce, (4, 6), "random")
add("transformer encoder in evaluation mode", lambda: encoder(dropout=0.3)().eval(), ce, (4, 6))
add(
    "attention with a causal mask",
    layers(
        lambda s, x: s.out(F.scaled_dot_product_attention(s.q(x), x, x, is_causal=True).flatten(1)),
        q=linear(6, 6),
        out=linear(24, 3),
    ),
    ce,
    (4, 6),
)
add(
    "attention with dropout",
    layers(
        lambda s, x: s.out(F.scaled_dot_product_attention(s.q(x), x, x, dropout_p=0.2).flatten(1)),
        q=linear(6, 6),
        out=linear(24, 3),
    ),
    ce,
    (4, 6),
    "random",
)
add(
    "multi-head attention, key padding from the data",
    layers(
        lambda s, x: s.out(s.a(x, x, x, key_padding_mask=x[..., 0] > 1, need_weights=False)[0].flatten(1)),
        a=lambda: nn.MultiheadAttention(6, 2, batch_first=True),
        out=linear(24, 3),
    ),
    ce,
    (4, 6),
)


def hooked(prepare: Callable[[Any], Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        made = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
        prepare(made)
        return made

    return make


def reversal_by_hook(net: Any, batch: Any) -> Tensor:
    hidden = net[0](batch[0]).tanh()
    hidden.register_hook(lambda g: -g)
    return F.cross_entropy(net[2](hidden), batch[1])


def reversal_where_differentiated(net: Any, batch: Any) -> Tensor:
    hidden = net[0](batch[0]).tanh() * 1.0
    if hidden.requires_grad:
        hidden.register_hook(lambda g: -g)
    return F.cross_entropy(net[2](hidden), batch[1])


class OldReversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


class Reversal(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return -g


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g

    @staticmethod
    def vmap(info, in_dims, x):
        return Rounded.apply(x), in_dims[0]


class Counted(nn.Module):
    """Keeps what a forward hook saw."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
        self.seen: list[Tensor] = []
        self.a.register_forward_hook(lambda module, given, out: self.seen.append(out))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.clear()
        return self.b(self.a(x).tanh())


add("full backward hook, reversal", hooked(lambda n: n[2].register_full_backward_hook(lambda m, gi, go: (-gi[0],))), ce)
add(
    "full backward pre-hook, scaled",
    hooked(lambda n: n[2].register_full_backward_pre_hook(lambda m, go: (3 * go[0],))),
    ce,
)
add("forward pre-hook", hooked(lambda n: n[2].register_forward_pre_hook(lambda m, given: (2 * given[0],))), ce)
add("forward hook that changes the output", hooked(lambda n: n[2].register_forward_hook(lambda m, i, o: 2 * o)), ce)
add("forward hook that keeps activations", Counted, lambda n, b: ce(n, b) + n.seen[0].square().mean())
add("gradient reversal by a tensor hook", mlp, reversal_by_hook)
add("gradient reversal by a tensor hook behind requires_grad", mlp, reversal_where_differentiated)
add("old Function", mlp, lambda n, b: F.cross_entropy(n[2](OldReversal.apply(n[0](b[0]).tanh())), b[1]))
add("Function with a generated rule", mlp, lambda n, b: F.cross_entropy(n[2](Reversal.apply(n[0](b[0]).tanh())), b[1]))
add("Function with its own rule", mlp, lambda n, b: F.cross_entropy(n[2](Rounded.apply(3 * n[0](b[0]).tanh())), b[1]))
add(
    "straight-through by detach",
    mlp,
    lambda n, b: F.cross_entropy(n[2]((h := n[0](b[0]).tanh()) + ((3 * h).round() / 3 - h).detach()), b[1]),
)


class Counter(nn.Module):
    """A count of calls in one of several places, by which the loss is scaled."""

    def __init__(self, step: Callable[[Any], Any], buffer: bool = True) -> None:
        super().__init__()
        self.line = nn.Linear(6, 3)
        zero = torch.zeros((), dtype=torch.float64)
        if buffer:
            self.register_buffer("n", zero)
        else:
            self.n = zero
        self._step = step

    def forward(self, x: Tensor) -> Tensor:
        self._step(self)
        return self.line(x) / (1 + 0.1 * self.n)


def count_in_place(self: Any) -> None:
    self.n += 1


def count_anew(self: Any) -> None:
    self.n = self.n + 1


def python_counter(net: Any, batch: Any) -> Tensor:
    net.calls = getattr(net, "calls", 0) + 1
    return ce(net, batch) / (1 + 0.1 * net.calls)


def cached_output(net: Any, batch: Any) -> Tensor:
    out = net(batch[0])
    shown = out if getattr(net, "before", None) is None else out - 0.1 * net.before
    net.before = out.detach()
    return F.cross_entropy(shown, batch[1])


def every_other(net: Any, batch: Any) -> Tensor:
    net.calls = getattr(net, "calls", 0) + 1
    return ce(net, batch) * (2.0 if net.calls % 2 else 1.0)


class Averages(nn.Module):
    """A buffer that follows the outputs."""

    def __init__(self, follow: Callable[[Any, Tensor], None], start: float = 0.0) -> None:
        super().__init__()
        self.line = nn.Linear(6, 3)
        self.register_buffer("m", torch.full((3,), start))
        self._follow = follow

    def forward(self, x: Tensor) -> Tensor:
        y = self.line(x)
        self._follow(self, y)
        return y - 0.1 * self.m


@torch.no_grad()
def follow_in_place(self: Any, y: Tensor) -> None:
    self.m.mul_(0.9).add_(0.1 * y.mean(0))


def follow_anew(self: Any, y: Tensor) -> None:
    self.m = 0.9 * self.m + 0.1 * y.mean(0).detach()


def follow_data(self: Any, y: Tensor) -> None:
    self.m.data.copy_(0.9 * self.m.data + 0.1 * y.detach().mean(0))


@torch.no_grad()
def keep_maximum(self: Any, y: Tensor) -> None:
    self.m.copy_(torch.maximum(self.m, y.amax(0)))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(6, 3), nn.Linear(6, 3)
        self.k.requires_grad_(False)


def momentum_encoder(net: Any, batch: Any) -> Tensor:
    with torch.no_grad():
        for p, q in zip(net.k.parameters(), net.q.parameters(), strict=True):
            p.mul_(0.9).add_(0.1 * q)
    return F.mse_loss(net.q(batch[0]), net.k(batch[0])) + ce(net.q, batch)


def frozen_target(net: Any, batch: Any) -> Tensor:
    return F.mse_loss(net.q(batch[0]), net.k(batch[0])) + ce(net.q, batch)


def clipped_weights(net: Any, batch: Any) -> Tensor:
    for p in net.parameters():
        p.data.clamp_(-0.2, 0.2)
    return ce(net, batch)


def batch_changed(change: Callable[[Tensor], Any]) -> Loss:
    def loss(net: Any, batch: Any) -> Tensor:
        x = batch[0]
        change(x)
        return F.cross_entropy(net(x), batch[1])

    return loss


def set_in_list(net: Any, batch: Any) -> Tensor:
    if isinstance(batch, list):
        batch[0] = batch[0] * 2
        return ce(net, batch)
    return F.cross_entropy(net(batch[0] * 2), batch[1])


def fill_column(x: Tensor) -> None:
    x[:, 0] = 0.5


add("counter in a buffer, n += 1", lambda: Counter(count_in_place), ce)
add("counter in a buffer, n = n + 1", lambda: Counter(count_anew), ce)
add("counter in an attribute, n += 1", lambda: Counter(count_in_place, buffer=False), ce, (6,), "outside")
add("counter in an attribute, n = n + 1", lambda: Counter(count_anew, buffer=False), ce, (6,), "outside")
add("Python counter", mlp, python_counter, (6,), "outside")
add("every other call", mlp, every_other, (6,), "outside")
add("output kept for the next call", mlp, cached_output, (6,), "outside")
add("average in a buffer, in place", lambda: Averages(follow_in_place), ce)
add("average in a buffer, assigned", lambda: Averages(follow_anew), ce)
add("average in a buffer, through data", lambda: Averages(follow_data), ce)
add("running maximum", lambda: Averages(keep_maximum, -9.0), ce)
add("running maximum that first stays", lambda: Averages(keep_maximum, 1.7), ce)
add("momentum encoder in place", Pair, momentum_encoder, (6,), "outside")
add("frozen target network", Pair, frozen_target)
add("weights clipped by data.clamp_", mlp, clipped_weights)
add("batch multiplied in place", mlp, batch_changed(lambda x: x.mul_(0.5)))
add("batch += 1", mlp, batch_changed(lambda x: x.add_(1)))
add("a column of the batch set", mlp, batch_changed(fill_column))
add("batch normalised in place", mlp, batch_changed(lambda x: x.sub_(x.mean(0)).div_(x.std(0) + 1)))
add("item of the batch replaced", mlp, set_in_list)


def evaluated_inside(net: Any, batch: Any) -> Tensor:
    net.eval()
    teacher = net(batch[0]).detach()
    net.train()
    return F.mse_loss(net(batch[0]), teacher) + ce(net, batch)


def teacher(net: Any, batch: Any) -> Tensor:
    with torch.no_grad():
        target = copy.copy(net)(batch[0])
    return F.mse_loss(net(batch[0]), 0.5 * target)


add(
    "evaluation mode and back inside", sequence(linear(6, 8), lambda: nn.BatchNorm1d(8), linear(8, 3)), evaluated_inside
)
add("if self.training", layers(lambda s, x: s.out(x) * (2.0 if s.training else 1.0), out=linear(6, 3)), ce)
add("a copy as a teacher", mlp, teacher)
add("dict with scalars", mlp, lambda n, b: {"loss": ce(n, b), "norm": n[0].weight.norm(), "two": torch.tensor(2.0)})


def noisy(draw: Callable[[Tensor], Tensor]) -> Loss:
    return lambda net, batch: F.cross_entropy(net(batch[0] + draw(batch[0])), batch[1])


def own_generator(x: Tensor) -> Tensor:
    return torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def forked(x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return torch.randn(6, dtype=torch.float64)


def dropped(*parts: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return sequence(linear(6, 8), *parts, linear(8, 3))


class DroppedByBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.drop, self.out = nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3)
        self.register_buffer("alpha", torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(self.a(x).tanh())) * float(self.alpha)


def mixup(net: Any, batch: Any) -> Tensor:
    other = torch.randperm(len(batch[0]))
    return F.cross_entropy(net(0.5 * batch[0] + 0.5 * batch[0][other]), batch[1])


def sampled_action(net: Any, batch: Any) -> Tensor:
    logits = net(batch[0])
    action = torch.distributions.Categorical(logits=logits.detach()).sample()
    return -torch.distributions.Categorical(logits=logits).log_prob(action).mean()


def beta_mixup(net: Any, batch: Any) -> Tensor:
    part = torch.distributions.Beta(torch.tensor(0.4), torch.tensor(0.4)).sample()
    return F.cross_entropy(net(batch[0] * part), batch[1])


add("dropout", dropped(lambda: nn.Dropout(0.5)), ce, (6,), "random")
add("dropout, scaled by float(buffer)", DroppedByBuffer, ce, (6,), "random")
add("dropout in place", dropped(lambda: nn.Dropout(0.5, inplace=True)), ce, (6,), "random")
add("F.dropout", mlp, lambda n, b: F.cross_entropy(n(F.dropout(b[0], 0.3)), b[1]), (6,), "random")
add(
    "feature and alpha dropout",
    sequence(
        lambda: nn.Conv1d(1, 4, 3),
        lambda: nn.Dropout1d(0.5),
        lambda: nn.FeatureAlphaDropout(0.2),
        nn.Flatten,
        linear(16, 3),
    ),
    ce,
    (1, 6),
    "random",
)
add("RReLU", dropped(nn.RReLU), ce, (6,), "random")
add("gumbel softmax", mlp, lambda n, b: (F.gumbel_softmax(n(b[0]), hard=True) * torch.arange(3)).mean(), (6,), "random")
add("randn_like", mlp, noisy(torch.randn_like), (6,), "random")
add("torch.randn", mlp, noisy(lambda x: torch.randn(6).double()), (6,), "random")
add("torch.rand of the batch's shape", mlp, noisy(lambda x: torch.rand(x.shape).double()), (6,), "random")
add("torch.normal", mlp, noisy(lambda x: torch.normal(0.0, 1.0, (6,)).double()), (6,), "random")
add("empty.uniform_", mlp, noisy(lambda x: torch.empty(6).double().uniform_()), (6,), "random")
add("empty.exponential_", mlp, noisy(lambda x: torch.empty(6).double().exponential_()), (6,), "random")
add("empty_like.normal_", mlp, noisy(lambda x: torch.empty_like(x).normal_()), (6,), "random")
add("bernoulli of a probability", mlp, noisy(lambda x: torch.bernoulli(x.sigmoid())), (6,), "random")
add("multinomial", mlp, noisy(lambda x: torch.multinomial(x.softmax(1), 6, replacement=True).double()), (6,), "random")
add("poisson", mlp, noisy(lambda x: torch.poisson(x.abs())), (6,), "random")
add("randint", mlp, noisy(lambda x: torch.randint(0, 5, (6,)).double()), (6,), "random")
add(
    "random mask where", mlp, noisy(lambda x: torch.where(torch.rand(x.shape) < 0.5, 0.1, 0.0).double()), (6,), "random"
)
add("mixup by randperm", mlp, mixup, (6,), "random")
add(
    "distributions: rsample",
    mlp,
    lambda n, b: torch.distributions.Normal(n(b[0]), 1.0).rsample().square().mean(),
    (6,),
    "random",
)
add("distributions: Categorical", mlp, sampled_action, (6,), "random")
add("distributions: Beta", mlp, beta_mixup, (6,), "random")
add("own generator, fixed noise", mlp, noisy(own_generator))
add("fork_rng and manual_seed, fixed noise", mlp, noisy(forked))
add("NumPy noise", mlp, noisy(lambda x: torch.from_numpy(np.random.randn(6))), (6,), "outside")
add("NumPy generator seeded anew", mlp, noisy(lambda x: torch.from_numpy(np.random.default_rng(3).normal(size=6))))
add(
    "random.random() branch",
    mlp,
    lambda n, b: ce(n, b) * (2.0 if python_random.random() < 0.5 else 1.0),
    (6,),
    "outside",
)


def unless_nan(net: Any, batch: Any) -> Tensor:
    y = net(batch[0])
    return F.cross_entropy(torch.zeros_like(y) if torch.isnan(y).any() else y, batch[1])


def by_value(net: Any, batch: Any) -> Tensor:
    y = net(batch[0])
    return y.square().mean() if y.mean() > 0 else F.cross_entropy(y, batch[1])


def scaled_by(value: Callable[[Any, Any], Any]) -> Loss:
    return lambda net, batch: ce(net, batch) * value(net, batch)


def python_loop(net: Any, batch: Any) -> Tensor:
    return torch.stack([net(x[None]).square().sum() * (int(y) + 1) for x, y in zip(*batch, strict=True)]).mean()


def _ramp() -> float:
    """Counts in a global of its own, in a function the objective calls."""
    global _CALLS
    _CALLS += 1
    return min(1.0, _CALLS / 40)


_CALLS = 0


def after_some_calls(steps: int = 60) -> Loss:
    later = itertools.chain(itertools.repeat(0.0, steps), itertools.repeat(1.0))
    return lambda net, batch: ce(net, batch) * (1 + next(later))


add(
    "penalty behind requires_grad",
    mlp,
    lambda n, b: ce(n, b) + 1e-5 * sum(p.square().sum() for p in n.parameters() if p.requires_grad),
)
add("counter in a helper function", mlp, lambda n, b: ce(n, b) * _ramp(), flags="outside")
add("an iterator that changes later", mlp, after_some_calls(), flags="outside")
add("item()", mlp, scaled_by(lambda n, b: 1 + abs(b[0].mean().item())))
add("float(tensor) of a weight", mlp, scaled_by(lambda n, b: 1 + float(n[0].weight.detach().norm())))
add("tolist()", mlp, scaled_by(lambda n, b: 1 + sum(b[1].tolist())))
add("numpy()", mlp, scaled_by(lambda n, b: 1 + float(b[0].numpy().std())))
add("if on the output", mlp, by_value)
add("if isnan().any()", mlp, unless_nan)
add("if torch.equal", mlp, scaled_by(lambda n, b: 2.0 if torch.equal(b[1], b[1].sort().values) else 1.0))
add("boolean mask", mlp, lambda n, b: n(b[0])[b[1] > 0].square().sum())
add("boolean mask set to a value", mlp, batch_changed(lambda x: x.masked_fill_(x > 1, 1.0)))
add("boolean index put", mlp, lambda n, b: F.cross_entropy(_masked(n(b[0])), b[1]))
add("unique", mlp, scaled_by(lambda n, b: b[1].unique().numel()))
add("nonzero", mlp, scaled_by(lambda n, b: 1 + (b[1] > 0).nonzero().shape[0]))
add(
    "bincount",
    mlp,
    lambda n, b: (F.cross_entropy(n(b[0]), b[1], reduction="none") / torch.bincount(b[1], minlength=3)[b[1]]).mean(),
)
add("loop over samples with int()", mlp, python_loop)
add("loop over samples", mlp, lambda n, b: torch.stack([n(x[None]).square().sum() for x in b[0]]).mean())
add("repeat_interleave by counts", mlp, lambda n, b: n(b[0].repeat_interleave(b[1] + 1, dim=0)).square().mean())


def _masked(y: Tensor) -> Tensor:
    y = y * 1.0
    y[y > 0.5] = 0.5
    return y


def plain_loss(net: Any, batch: Any) -> Callable[[Any], Tensor]:
    return lambda p: F.cross_entropy(torch.func.functional_call(net, p, (batch[0],)), batch[1])


def maml(net: Any, batch: Any) -> Tensor:
    loss, p = plain_loss(net, batch), dict(net.named_parameters())
    slopes = torch.func.grad(loss)(p)
    return loss({name: p[name] - 0.1 * slopes[name] for name in p})


def maml_by_autograd(net: Any, batch: Any) -> Tensor:
    loss, p = plain_loss(net, batch), dict(net.named_parameters())
    slopes = torch.autograd.grad(loss(p), list(p.values()), create_graph=True)
    return loss({name: value - 0.1 * g for (name, value), g in zip(p.items(), slopes, strict=True)})


def gradient_penalty(net: Any, batch: Any) -> Tensor:
    x = batch[0].detach().requires_grad_()
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    return ce(net, batch) + slope.square().sum()


def beside(value: Callable[[Any, Any], Tensor]) -> Loss:
    return lambda net, batch: ce(net, batch) + 0.1 * value(net, batch).square().sum()


add("func.grad, MAML", mlp, maml)
add("func.grad in the data", mlp, beside(lambda n, b: torch.func.grad(lambda x: ce(n, (x, b[1])))(b[0])))
add("func.vjp", mlp, beside(lambda n, b: torch.func.vjp(n, b[0])[1](torch.ones(4, 3, dtype=torch.float64))[0]))
add("func.jvp", mlp, beside(lambda n, b: torch.func.jvp(n, (b[0],), (torch.ones_like(b[0]),))[1]))
add("func.jacrev", mlp, beside(lambda n, b: torch.func.jacrev(lambda x: n(x).sum(0))(b[0])))
add("func.jacfwd", mlp, beside(lambda n, b: torch.func.jacfwd(lambda x: n(x).sum(0))(b[0])))
add("func.hessian", mlp, beside(lambda n, b: torch.func.hessian(lambda x: n(x).sum())(b[0][0])))
add("func.vmap over samples", mlp, lambda n, b: F.cross_entropy(torch.func.vmap(lambda x: n(x[None])[0])(b[0]), b[1]))
add(
    "func.vmap over samples of a convolution",
    lambda: nn.Conv2d(1, 3, 3),
    lambda n, b: F.cross_entropy(torch.func.vmap(lambda x: n(x[None])[0])(b[0]).flatten(1), b[1]),
    (1, 3, 3),
)
add(
    "func.vmap over stacked heads",
    lambda: _stacked(),
    lambda n, b: F.cross_entropy(torch.func.vmap(lambda w: b[0] @ w)(n.heads).mean(0), b[1]),
)
add(
    "func.vmap of func.grad, samples",
    mlp,
    beside(lambda n, b: torch.func.vmap(torch.func.grad(lambda x: n(x[None]).square().sum()))(b[0])),
)
add(
    "func.vmap, random",
    mlp,
    lambda n, b: F.cross_entropy(
        torch.func.vmap(lambda x: n(F.dropout(x, 0.3)[None])[0], randomness="different")(b[0]), b[1]
    ),
    (6,),
    "random",
)
add("autograd.grad, gradient penalty", mlp, gradient_penalty)
add("autograd.grad, MAML", mlp, maml_by_autograd)
add(
    "autograd.functional.jacobian",
    mlp,
    beside(lambda n, b: torch.autograd.functional.jacobian(lambda x: n(x).sum(0), b[0], create_graph=True)),
)
add("checkpoint", mlp, lambda n, b: F.cross_entropy(checkpoint(n, b[0], use_reentrant=False), b[1]))
add(
    "checkpoint with dropout",
    dropped(lambda: nn.Dropout(0.5)),
    lambda n, b: F.cross_entropy(checkpoint(n, b[0], use_reentrant=False), b[1]),
    (6,),
    "random",
)
add(
    "checkpoint, reentrant",
    mlp,
    lambda n, b: F.cross_entropy(checkpoint(n, b[0].requires_grad_(), use_reentrant=True), b[1]),
)
add("no_grad part", mlp, lambda n, b: F.cross_entropy(n[2](_without(n[1], n[0](b[0]))), b[1]))
add("inference_mode target", mlp, lambda n, b: F.mse_loss(n(b[0]), _inferred(n, b[0]).clone() * 0.5))
add("autocast bfloat16 inside", mlp, lambda n, b: ce(lambda x: _autocast(n, x), b))


def _stacked() -> nn.Module:
    made = nn.Module()
    made.heads = nn.Parameter(torch.randn(2, 6, 3))
    return made


def _autocast(net: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        return net(x)


@torch.no_grad()
def _without(layer: Any, x: Tensor) -> Tensor:
    return layer(x)


def _inferred(net: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return net(x)


def direct(**options: Any) -> Loss:
    return lambda net, batch: F.cross_entropy(net(batch[0]), batch[1], **options).sum()


def _in_groups(x: Tensor) -> Tensor:
    groups = x.view(len(x), 2, -1)
    return (groups - groups.mean(-1, keepdim=True)).view_as(x)


def _through_view(x: Tensor) -> Tensor:
    x = 2 * x
    x.view(len(x), -1)[:, ::2] = 0.5
    return x


def convolution() -> nn.Module:
    return nn.Conv2d(1, 3, 3)


add(
    "F.linear(input=...)",
    mlp,
    lambda n, b: F.cross_entropy(F.linear(input=n[0](b[0]).tanh(), weight=n[2].weight, bias=n[2].bias), b[1]),
)
add("F.linear without bias", mlp, lambda n, b: F.cross_entropy(F.linear(n[0](b[0]).tanh(), n[2].weight), b[1]))
add("F.linear of one vector", mlp, lambda n, b: F.linear(b[0][0], n[0].weight, n[0].bias).square().sum())
add("F.linear of three axes", mlp, lambda n, b: F.cross_entropy(n(b[0].expand(2, -1, -1)).mean(0), b[1]))
add(
    "F.conv2d(input=...)",
    convolution,
    lambda n, b: F.cross_entropy(F.conv2d(input=b[0], weight=n.weight, bias=n.bias).flatten(1), b[1]),
    (1, 3, 3),
)
add(
    "F.conv2d(padding='same')",
    convolution,
    lambda n, b: F.cross_entropy(F.conv2d(b[0], n.weight, padding="same").mean((2, 3)), b[1]),
    (1, 3, 3),
)
add("F.conv2d of one image", convolution, lambda n, b: n(b[0][0]).square().sum(), (1, 4, 4))
add(
    "F.conv2d with a fixed filter",
    convolution,
    lambda n, b: n(F.conv2d(b[0], torch.ones(1, 1, 2, 2, dtype=torch.float64) / 4)).square().mean(),
    (1, 5, 5),
)
add(
    "F.max_pool2d(input=...)",
    convolution,
    lambda n, b: F.cross_entropy(F.max_pool2d(input=n(b[0]), kernel_size=2).flatten(1), b[1]),
    (1, 4, 4),
)
add(
    "F.max_pool2d with indices",
    convolution,
    lambda n, b: F.max_pool2d(n(b[0]), 2, return_indices=True)[0].square().mean(),
    (1, 5, 5),
)
add(
    "max_unpool2d",
    convolution,
    lambda n, b: F.max_unpool2d(*F.max_pool2d(n(b[0]), 2, return_indices=True), 2).square().mean(),
    (1, 6, 6),
)
add("cross_entropy(size_average=False)", mlp, direct(size_average=False))
add("cross_entropy(reduce=False)", mlp, direct(reduce=False))
add("cross_entropy(size_average=True)", mlp, direct(size_average=True))
add("cross_entropy(reduction='sum')", mlp, direct(reduction="sum"))
add("cross_entropy(reduction='none')", mlp, direct(reduction="none"))
add("cross_entropy(ignore_index=0)", mlp, direct(ignore_index=0))
add("cross_entropy(label_smoothing=0.1)", mlp, direct(label_smoothing=0.1))
add("cross_entropy(input=, target=)", mlp, lambda n, b: F.cross_entropy(input=n(b[0]), target=b[1]))
add(
    "one_hot, one class beyond",
    mlp,
    lambda n, b: -(n(b[0]).log_softmax(1) * F.one_hot(torch.where(b[0][:, 0] > 2.2, 3, b[1]), 3)).sum(),
)
add(
    "cholesky, one matrix indefinite",
    mlp,
    beside(lambda n, b: torch.linalg.cholesky(torch.eye(3).double() * (3.42 + b[0].min())).diagonal() * n(b[0])),
)
add("an assertion that one sample fails", mlp, lambda n, b: (torch._assert_async((b[0] > -3.42).all()), ce(n, b))[1])
add("cross_entropy of probabilities", mlp, lambda n, b: F.cross_entropy(n(b[0]), F.one_hot(b[1], 3).double()))
add("cross_entropy of one sample", mlp, lambda n, b: F.cross_entropy(n(b[0][0]), b[1][0]))
add(
    "cross_entropy of images",
    lambda: nn.Conv2d(1, 3, 1),
    lambda n, b: F.cross_entropy(n(b[0]), b[1][:, None, None].expand(-1, 2, 2)),
    (1, 2, 2),
)
add(
    "cross_entropy weighted",
    mlp,
    lambda n, b: F.cross_entropy(n(b[0]), b[1], torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)),
)
add("nll of log_softmax", mlp, lambda n, b: F.nll_loss(F.log_softmax(n(b[0]), -1), b[1]))
add(
    "ReLU in place, outputs changed in place",
    sequence(linear(6, 8), lambda: nn.ReLU(inplace=True), linear(8, 3)),
    lambda n, b: F.cross_entropy(n(b[0]).mul_(1.5).add_(0.1), b[1]),
)
add("columns written into zeros", mlp, lambda n, b: F.cross_entropy(_filled(n(b[0])), b[1]))
add("columns written into zeros_like", mlp, lambda n, b: F.cross_entropy(_filled_like(n(b[0])), b[1]))
add(
    "index_add into zeros",
    mlp,
    lambda n, b: torch.zeros(3, 3, dtype=torch.float64).index_add(0, b[1], n(b[0])).square().mean(),
)
add(
    "index_add_ into zeros",
    mlp,
    lambda n, b: torch.zeros(3, 3, dtype=torch.float64).index_add_(0, b[1], n(b[0])).square().mean(),
)
add(
    "scatter_add_ of counts",
    mlp,
    lambda n, b: (torch.zeros(3).double().scatter_add_(0, b[1], n(b[0])[:, 0])).square().mean(),
)
add("sort, cumsum, topk", mlp, lambda n, b: n(b[0]).sort(0).values.cumsum(0).topk(2, dim=1).values.square().mean())
add(
    "grid_sample",
    lambda: nn.Linear(25, 6),
    lambda n, b: (
        F.grid_sample(b[0], F.affine_grid(n(b[0].flatten(1)).view(-1, 2, 3), b[0].shape, False), align_corners=False)
        .square()
        .mean()
    ),
    (1, 5, 5),
)
add(
    "ctc",
    lambda: nn.Linear(3, 4),
    lambda n, b: F.ctc_loss(
        F.log_softmax(n(b[0]), -1).transpose(0, 1),
        b[1][:, None] + 1,
        torch.full((4,), 5),
        torch.ones(4, dtype=torch.long),
    ),
    (5, 3),
)
add(
    "triplet and cosine",
    mlp,
    lambda n, b: (
        F.triplet_margin_loss(n(b[0]), n(b[0].flip(0)), n(b[0].roll(1, 0)))
        + F.cosine_similarity(n(b[0]), n(b[0].flip(0))).mean()
    ),
)
add("cdist to prototypes", linear(6, 4), lambda n, b: torch.cdist(n(b[0]), n(b[0]) + 1).mean())


def _filled(y: Tensor) -> Tensor:
    out = torch.zeros(y.shape, dtype=y.dtype)
    out[:, 0] = y[:, 1]
    out[:, 1:] = y[:, :2].exp()
    return out


def _filled_like(y: Tensor) -> Tensor:
    out = torch.zeros_like(y)
    out[:, 0] = y[:, 1]
    out[:, 1:] = y[:, :2].exp()
    return out


def normed(*parts: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return sequence(*parts, nn.Tanh, linear(8, 3))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False), nn.Linear(6, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.b(self.a(x).tanh()))


class Adapted(nn.Module):
    """A frozen layer beside a product of two thin ones."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 3).requires_grad_(False)
        self.a, self.b = nn.Linear(6, 2, bias=False), nn.Linear(2, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x))


class WeightMade(nn.Module):
    """Assigns a tensor made of parameters, as old parametrisations do."""

    def __init__(self) -> None:
        super().__init__()
        self.v, self.out = nn.Parameter(torch.randn(8, 6)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.made = self.v / self.v.norm(dim=1, keepdim=True)
        return self.out(F.linear(x, self.made).tanh())


add("two linear layers", mlp, ce)
add("BatchNorm", normed(linear(6, 8), lambda: nn.BatchNorm1d(8)), ce)
add("BatchNorm, momentum=None", normed(linear(6, 8), lambda: nn.BatchNorm1d(8, momentum=None)), ce)
add("BatchNorm, no statistics", normed(linear(6, 8), lambda: nn.BatchNorm1d(8, track_running_stats=False)), ce)
add("BatchNorm in evaluation mode", lambda: normed(linear(6, 8), lambda: nn.BatchNorm1d(8))().eval(), ce)
add(
    "InstanceNorm with statistics",
    sequence(
        lambda: nn.Conv1d(1, 4, 3),
        lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
        nn.Flatten,
        linear(16, 3),
    ),
    ce,
    (1, 6),
)
add("GroupNorm", normed(linear(6, 8), lambda: nn.GroupNorm(2, 8)), ce)
add("new weight_norm", normed(lambda: parametrizations.weight_norm(nn.Linear(6, 8))), ce)
add("new spectral_norm", normed(lambda: parametrizations.spectral_norm(nn.Linear(6, 8))), ce)
add("orthogonal", sequence(lambda: parametrizations.orthogonal(nn.Linear(6, 6)), linear(6, 3)), ce)
add("old weight_norm", normed(lambda: nn.utils.weight_norm(nn.Linear(6, 8))), ce)
add("old spectral_norm", normed(lambda: nn.utils.spectral_norm(nn.Linear(6, 8))), ce)
add("weight assigned in forward", WeightMade, ce)
add("pruned layer", normed(lambda: _pruned(nn.Linear(6, 8))), ce)
add("tied weights", Tied, ce)
add("frozen layer with a low-rank adapter", Adapted, ce)
add("frozen first layer", lambda: _frozen_first(mlp()), ce)
add("unused layer", layers(lambda s, x: s.a(x), a=linear(6, 3), b=linear(6, 3)), ce)
add(
    "PReLU, RMSNorm, GLU",
    sequence(lambda: nn.LayerNorm(6), linear(6, 8), nn.PReLU, nn.GLU, lambda: nn.RMSNorm(4), linear(4, 3)),
    ce,
)
add("bilinear", lambda: nn.Bilinear(3, 3, 3), lambda n, b: F.cross_entropy(n(b[0][:, :3], b[0][:, 3:]), b[1]))
add(
    "convolutions and pooling",
    sequence(
        lambda: nn.Conv2d(1, 4, 3, padding="same"),
        nn.ReLU,
        lambda: nn.MaxPool2d(2, ceil_mode=True),
        nn.Flatten,
        linear(36, 3),
    ),
    ce,
    (1, 5, 5),
)
add(
    "convolution and pooling, viewed as rows",
    lambda: nn.ModuleList([nn.Conv2d(1, 4, 3, padding=1), nn.Linear(16, 3)]),
    lambda n, b: F.cross_entropy(n[1](F.max_pool2d(n[0](b[0]).relu(), 2).view(len(b[0]), -1)), b[1]),
    (1, 5, 5),
)
add(
    "convolution, normalised in groups by view and view_as",
    lambda: nn.ModuleList([nn.Conv2d(1, 4, 3), nn.Linear(36, 3)]),
    lambda n, b: F.cross_entropy(n[1](_in_groups(n[0](b[0])).flatten(1)), b[1]),
    (1, 5, 5),
)
add(
    "convolution, as_strided",
    lambda: nn.ModuleList([nn.Conv2d(1, 4, 3), nn.Linear(36, 3)]),
    lambda n, b: F.cross_entropy(n[1](n[0](b[0]).tanh().as_strided((len(b[0]), 36), (36, 1))), b[1]),
    (1, 5, 5),
)
add(
    "convolution, written into through a view",
    lambda: nn.ModuleList([nn.Conv2d(1, 4, 3), nn.Linear(36, 3)]),
    lambda n, b: F.cross_entropy(n[1](_through_view(n[0](b[0])).flatten(1)), b[1]),
    (1, 5, 5),
)
few_pixels = sequence(lambda: nn.Conv2d(120, 128, 3, padding=1), nn.ReLU, nn.Flatten, linear(256, 3))
add("convolution of few pixels", few_pixels, ce, (120, 1, 2))
add("convolution of few pixels, gradient penalty", few_pixels, gradient_penalty, (120, 1, 2))
add(
    "convolution of few pixels, func.jvp",
    few_pixels,
    beside(lambda n, b: torch.func.jvp(n, (b[0],), (torch.ones_like(b[0]),))[1]),
    (120, 1, 2),
)
add(
    "reflected padding, adaptive pooling",
    sequence(
        lambda: nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"),
        lambda: nn.AdaptiveAvgPool2d(2),
        nn.Flatten,
        linear(16, 3),
    ),
    ce,
    (1, 5, 5),
)
add(
    "depthwise convolution",
    sequence(lambda: nn.Conv2d(2, 2, 3, groups=2), lambda: nn.Conv2d(2, 4, 1), nn.Flatten, linear(36, 3)),
    ce,
    (2, 5, 5),
)
add("transposed convolution", sequence(lambda: nn.ConvTranspose2d(1, 4, 3), nn.Flatten, linear(196, 3)), ce, (1, 5, 5))
add(
    "convolution in three dimensions",
    sequence(lambda: nn.Conv3d(1, 2, 2), lambda: nn.MaxPool3d(2), nn.Flatten, linear(2, 3)),
    ce,
    (1, 3, 3, 3),
)
add(
    "pixel shuffle, upsampling",
    sequence(
        lambda: nn.Conv2d(1, 4, 3, padding=1),
        lambda: nn.PixelShuffle(2),
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Flatten,
        linear(400, 3),
    ),
    ce,
    (1, 5, 5),
)


def _pruned(layer: nn.Module) -> nn.Module:
    from torch.nn.utils import prune

    return prune.l1_unstructured(layer, "weight", amount=0.3)


def _frozen_first(net: Any) -> nn.Module:
    net[0].requires_grad_(False)
    return net
