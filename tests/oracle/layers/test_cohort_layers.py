"""Functions with rules of their own give what they give one client alone, however they are called."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.oracle.layers.cohort_layers import RULES, CohortLayers
from tests.support.cohorts import S, assert_equal_evaluations, conv, setting
from tests.support.small import trainer

WAYS = [Vectorized(replay=False, backward="autograd"), Vectorized(replay=True), Vectorized(backward="vmap")]


def linear():
    return nn.Linear(6, 3)


def grouped():
    return nn.Sequential(nn.Conv2d(4, 6, 3), nn.GroupNorm(3, 6))


def heavy():
    """The second convolution has more weights than inputs."""
    first = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2), nn.GroupNorm(2, 6), nn.ReLU())
    return nn.Sequential(*first, nn.Conv2d(6, 80, 2, padding=1), nn.GroupNorm(4, 80, affine=False), nn.Conv2d(80, 3, 1))


LOSSES = {
    "linear by name": (
        linear,
        (6,),
        lambda net, b: F.cross_entropy(input=F.linear(input=b[0], weight=net.weight, bias=net.bias), target=b[1]),
    ),
    "conv2d and max_pool2d by name": (
        conv,
        (2, 8, 8),
        lambda net, b: (
            F.max_pool2d(
                input=F.conv2d(input=b[0], weight=net[0].weight, bias=net[0].bias, padding=1), kernel_size=2, stride=2
            )
            .square()
            .mean()
        ),
    ),
    "max_pool2d by position": (conv, (2, 8, 8), lambda net, b: F.max_pool2d(net[0](b[0]), 3, 2, 1, 1, True).sum()),
    "cross_entropy by position": (
        linear,
        (6,),
        lambda net, b: F.cross_entropy(net(b[0]), b[1], None, None, 1, None, "sum", 0.1),
    ),
    "class weights by position": (
        linear,
        (6,),
        lambda net, b: F.cross_entropy(net(b[0]), b[1], torch.arange(1.0, 4).to(b[0])),
    ),
    "penalty behind requires_grad": (
        linear,
        (6,),
        lambda net, b: (
            F.cross_entropy(net(b[0]), b[1]) + sum(p.square().sum() for p in net.parameters() if p.requires_grad)
        ),
    ),
    "vmap inside": (linear, (6,), lambda net, b: torch.func.vmap(lambda x: net(x[None])[0])(b[0]).square().mean()),
    "vmap inside over weights": (
        linear,
        (6,),
        lambda net, b: (
            torch.func.vmap(lambda w: F.linear(b[0], w, net.bias))(torch.stack([net.weight, 2 * net.weight]))
            .square()
            .mean()
        ),
    ),
    "a gradient inside": (
        linear,
        (6,),
        lambda net, b: torch.func.grad(lambda x: F.cross_entropy(net(x), b[1]))(b[0]).square().sum(),
    ),
    "group_norm by name": (
        grouped,
        (4, 6, 6),
        lambda net, b: (
            F.group_norm(input=net[0](b[0]), num_groups=3, weight=net[1].weight, bias=net[1].bias, eps=0.1)
            .square()
            .mean()
        ),
    ),
    "group_norm without weights, of sequences": (
        grouped,
        (4, 6, 6),
        lambda net, b: F.group_norm(net[0](b[0]).flatten(2), 2).tanh().square().sum(),
    ),
    "group_norm of vectors": (linear, (6,), lambda net, b: F.group_norm(b[0] * net.weight[0], 3).tanh().sum()),
    "group_norm and convolutions with heavy weights": (
        heavy,
        (4, 6, 6),
        lambda net, b: F.cross_entropy(net(b[0]).mean((2, 3)), b[1] * 0),
    ),
    "two layers of a kind": (conv, (2, 8, 8), lambda net, b: F.cross_entropy(net(b[0]), b[1], ignore_index=2)),
}


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_a_function_is_called_as_torch_allows(name, way):
    make, shape, loss = LOSSES[name]
    objective, *arguments = setting(make(), shape, loss=loss)
    expected = Sequential().evaluator(objective, 1)(*arguments)
    evaluate = way.evaluator(objective, 100)
    for _ in range(2):
        assert_equal_evaluations(evaluate(*arguments), expected)


def test_forward_differentiation_inside():
    objective, *arguments = setting(linear(), (6,), loss=lambda net, b: torch.func.jacfwd(net)(b[0]).square().mean())
    expected = Sequential().evaluator(objective, 1)(*arguments)
    assert_equal_evaluations(Vectorized(replay=False).evaluator(objective, 100)(*arguments), expected)


@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")
@pytest.mark.parametrize("old", [{"size_average": False}, {"reduce": False}, {"size_average": True}])
def test_old_arguments_of_cross_entropy_count(old):
    def loss(net, batch):
        return F.cross_entropy(net(batch[0]), batch[1], **old).sum()

    objective, *arguments = setting(linear(), (6,), loss=loss)
    expected = Sequential().evaluator(objective, 1)(*arguments)
    assert_equal_evaluations(Vectorized().evaluator(objective, 1)(*arguments), expected)


class Text(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.words = nn.Embedding(3, 6, **options)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.words(x)).mean(1)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("padding", [0, 2, -1])
def test_a_padding_row_is_not_trained_in_any_client(padding, way):
    def loss(net, batch):
        return F.cross_entropy(net(batch[1][:, None].expand(-1, 2)) + batch[0][:, :3], batch[1])

    net = Text(padding_idx=padding)
    objective, *arguments = setting(net, (6,), loss=loss)
    evaluate = way.evaluator(objective, 100)
    for _ in range(2):
        found = evaluate(*arguments)
        assert_equal_evaluations(found, Sequential().evaluator(objective, 1)(*arguments))
        rows = objective.space.shared.views(found.g)["net.words.weight"]
        assert not rows[:, padding % 3].any()
        assert rows.abs().sum((1, 2)).gt(0).all()


@pytest.mark.parametrize("way", [Sequential(), *WAYS], ids=str)
@pytest.mark.parametrize("before", [0, 1])
def test_a_parameter_may_be_seen_as_complex_wherever_it_lies(before, way):
    """Views into a row of odd length, or at an odd place, are not aligned for complex numbers."""

    class Spectral(nn.Module):
        def __init__(self):
            super().__init__()
            self.before = nn.Parameter(torch.zeros(before))
            self.filter = nn.Parameter(torch.randn(4, 2, generator=torch.Generator().manual_seed(0)))
            self.out = nn.Linear(6, 3)

        def forward(self, x):
            spectrum = torch.fft.rfft(x) * torch.view_as_complex(self.filter)
            return self.out(torch.fft.irfft(spectrum, n=6)) + self.before.sum()

    net = Spectral()
    objective, w, v, b, data = setting(net, (6,))
    g = way.evaluator(objective, 1)(w, v, b, data).g
    for i in range(S):
        point = {name: view.clone().requires_grad_() for name, view in objective.space.shared.views(w[i]).items()}
        named = {name.removeprefix("net."): value for name, value in point.items()}
        loss = F.cross_entropy(torch.func.functional_call(net, named, (data[0][i],)), data[1][i])
        expected = torch.autograd.grad(loss, list(point.values()))
        torch.testing.assert_close(g[i], torch.cat([t.flatten() for t in expected]), rtol=1e-12, atol=1e-12)


def test_sparse_gradients_of_an_embedding_are_gradients():
    def loss(net, batch):
        return F.cross_entropy(net(batch[1][:, None]) + batch[0][:, :3], batch[1])

    dense, sparse = Text(), Text(sparse=True)
    sparse.load_state_dict(dense.state_dict())
    found = []
    for net in (dense, sparse):
        torch.manual_seed(0)
        objective, *arguments = setting(net, (6,), loss=loss)
        found.append(Sequential().evaluator(objective, 1)(*arguments).g)
    assert torch.equal(*found)


@pytest.mark.parametrize("padding_idx", [None, 0])
@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_beyond_its_table_is_no_row_of_another_client(index, padding_idx):
    """Below vmap the tables of all clients lie in a row, and torch takes what it finds there."""
    tables = torch.arange(15.0).view(3, 5, 1)
    found = torch.tensor([[0, 4], [1, index], [2, 3]])
    with CohortLayers():
        rows = torch.func.vmap(lambda w, i: F.embedding(i, w, padding_idx))(tables, found).squeeze(2)
    assert rows[[0, 2]].tolist() == [[0.0, 4.0], [12.0, 13.0]]
    assert rows[1, 0] == 6.0
    assert rows[1, 1].isnan()


@pytest.mark.parametrize("oracle", [Vectorized(), Vectorized(replay=True), Vectorized(replay=True, parts=2)])
@pytest.mark.parametrize("label", [-1, 3])
def test_a_class_beyond_a_one_hot_code_is_an_error(label, oracle):
    """Below vmap, torch makes a row of zeros of it."""

    def loss(net, batch):
        return -(net(batch[0]).log_softmax(1) * F.one_hot(batch[1], 3)).sum()

    objective, w, v, b, (x, y) = setting(nn.Linear(6, 3), (6,), loss=loss)
    evaluate = oracle.evaluator(objective, 10)
    for _ in range(3):  # among them replays
        assert_equal_evaluations(evaluate(w, v, b, (x, y)), Sequential().evaluator(objective, 1)(w, v, b, (x, y)))
    y = y.clone()
    y[2, 1] = label
    with pytest.raises(RuntimeError, match="Class values must be"):
        Sequential().evaluator(objective, 1)(w, v, b, (x, y))
    with pytest.raises(RuntimeError, match="a class of one_hot is out of its range"):
        evaluate(w, v, b, (x, y))


def test_one_hot_below_a_vmap_of_the_objective_is_pytorchs():
    """It makes a row of zeros of a class that is not there, for one client and for many."""

    def loss(net, batch):
        code = torch.func.vmap(lambda label: F.one_hot(label, 3))(batch[1])
        return -(net(batch[0]).log_softmax(1) * code).sum()

    objective, w, v, b, (x, y) = setting(nn.Linear(6, 3), (6,), loss=loss)
    y[2, 1] = -1
    one, other = (oracle.evaluator(objective, 1)(w, v, b, (x, y)) for oracle in (Vectorized(), Sequential()))
    assert_equal_evaluations(one, other)


def test_cohort_layers_equal_plain_vmap_and_are_used(monkeypatch):
    objective, *arguments = setting(conv(), (2, 8, 8))
    ours = Vectorized().evaluator(objective, 1)(*arguments)
    calls = []
    functions = (torch.conv2d, F.max_pool2d, F.linear, F.cross_entropy)
    for function in functions:
        monkeypatch.setitem(RULES, function, lambda *a, function=function, **k: calls.append(function))
    plain = Vectorized().evaluator(objective, 1)(*arguments)
    assert set(calls) == set(functions)
    assert_equal_evaluations(ours, plain)


def test_cohort_layers_step_aside_outside_vmap():
    x = torch.randn(2, 3)
    with CohortLayers():
        torch.testing.assert_close(F.linear(x, torch.eye(3), torch.zeros(3)), x)
        assert F.one_hot(torch.tensor([2]), 3).tolist() == [[0, 0, 1]]


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


def test_an_embedding_that_counts_its_indices_late_is_computed_one_by_one():
    class Late(FederatedLightningModule):
        def __init__(self, oracle):
            super().__init__(FedAvg(0.1), oracle=oracle)
            self.embedding = nn.Embedding(3, 6, padding_idx=0, scale_grad_by_freq=True)
            self.head = nn.Linear(6, 3)

        def objective(self, batch):
            x, y = batch
            return F.cross_entropy(self.head(x + self.embedding(y) if self.global_step >= 2 else x), y)

    draw = torch.Generator().manual_seed(0)
    data = [
        TensorDataset(torch.randn(20, 6, generator=draw), torch.randint(0, 3, (20,), generator=draw)) for _ in "abcd"
    ]
    ends = []
    for oracle in (Sequential(), Vectorized()):
        torch.manual_seed(0)
        task = Late(oracle)
        module = FederatedDataModule.from_datasets(data, batch_size=5, local_steps=25, rounds_per_epoch=4, seed=1)
        trainer(max_steps=4).fit(task, module)
        ends.append(torch.cat([p.detach().flatten() for p in task.parameters()]))
    torch.testing.assert_close(ends[1], ends[0])
