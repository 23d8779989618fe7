"""A client draws the same numbers alone and in any company."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlightning.algorithms import CDMA_ONE, FedAvg
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.oracle import BatchedError, Sequential, Vectorized
from fedlightning.oracle.randomness import ClientNoise, PerClient, Randomness, UnsplittableDrawError, is_random
from tests.support.cohorts import S, assert_equal_evaluations, classify, setting
from tests.support.federations import loop_for, quadratic, rounds_of, run
from tests.support.small import Line, clients, regression_data, trainer

SEEDS = [11, 22, 33]
WAYS = [
    Vectorized(replay=False, backward="autograd"),
    Vectorized(replay=True, backward="autograd"),
    Vectorized(replay=False, backward="vmap"),
    Vectorized(replay=True, backward="vmap"),
    Vectorized(backward="each", threads=1),
    Vectorized(backward="each", threads=2),
]


def drawing(draw):
    """An objective with noise added to its input."""

    def loss(net, batch):
        x, y = batch
        return F.cross_entropy(net(x + 0.5 * draw(x)), y)

    return loss


DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout, transposed": lambda x: F.dropout(x.T, 0.3).T,
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.2, training=True),
    "feature dropout": lambda x: F.dropout1d(x[None], 0.5)[0],
    "gumbel softmax": lambda x: F.gumbel_softmax(x, hard=True),
    "rand": lambda x: torch.rand(6, dtype=x.dtype),
    "randn": lambda x: torch.randn(4, 6, dtype=x.dtype),
    "rand_like": torch.rand_like,
    "randn_like, transposed": lambda x: torch.randn_like(x.T).T,
    "randint": lambda x: torch.randint(0, 5, (6,)).to(x),
    "randint_like": lambda x: torch.randint_like(x, 5),
    "randperm": lambda x: x[torch.randperm(4)],
    "normal": lambda x: torch.normal(x, 1.0) + torch.normal(0.0, 1.0, (6,), dtype=x.dtype),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "in place": lambda x: torch.empty_like(x).normal_() + torch.empty_like(x).exponential_(),
    "in place, transposed": lambda x: torch.empty_like(x.T).uniform_().T,
    "categorical": lambda x: torch.distributions.Categorical(logits=x, validate_args=True).sample().to(x)[:, None],
    "categorical, unchecked": lambda x: (
        torch.distributions.Categorical(logits=x, validate_args=False).sample().to(x)[:, None]
    ),
    "multinomial": lambda x: torch.multinomial(x[0].exp(), 3).to(x).sum(),
    "poisson": lambda x: torch.poisson(x.exp()),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.2)[0],
    "several": lambda x: F.dropout(x, 0.3) + torch.randn_like(x) * torch.rand(6, dtype=x.dtype) + x[torch.randperm(4)],
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_every_draw_is_the_clients_own(name, way):
    objective, w, v, b, data = setting(nn.Linear(6, 3), (6,), loss=drawing(DRAWS[name]))
    alone, together = (oracle.evaluator(objective, 100) for oracle in (Sequential(), way))
    if name == "categorical" and way.backward == "each":  # checks its arguments
        with pytest.raises(BatchedError, match="__bool__ reads numbers of a tensor"):
            together(w, v, b, data, "both", Randomness(SEEDS, 0))
        return
    losses = []
    for step in range(3):
        randomness = Randomness(SEEDS, step)
        expected = alone(w, v, b, data, "both", randomness)
        assert_equal_evaluations(together(w, v, b, data, "both", randomness), expected)
        losses.append(expected.loss)
    assert len(torch.stack(losses).unique()) >= 4  # clients and steps have numbers of their own, some alike by chance


class Pictures(nn.Module):
    """Channels last in memory where convolutions make it so."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.features, self.pixels = nn.Dropout2d(0.3), nn.Dropout(0.3)
        self.out = nn.Linear(64, 3)

    def forward(self, x):
        x = self.features(F.max_pool2d(self.conv(x).relu(), 2))
        x = self.pixels(x) + torch.randn_like(x) * 0.1 + torch.empty_like(x).normal_() * 0.1
        return self.out(x.flatten(1))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_layout_of_pictures_does_not_matter(way):
    objective, *arguments = setting(Pictures(), (2, 8, 8))
    randomness = Randomness(SEEDS, 0)
    expected = Sequential().evaluator(objective, 1)(*arguments, "both", randomness)
    assert_equal_evaluations(way.evaluator(objective, 100)(*arguments, "both", randomness), expected)


def test_numbers_do_not_depend_on_the_company():
    objective, w, v, b, data = setting(nn.Linear(6, 3), (6,), loss=drawing(torch.randn_like))
    together = Vectorized().evaluator(objective, 1)(w, v, b, data, "both", Randomness(SEEDS, 4))
    for i in (2, 0):
        own = tuple(leaf[i : i + 1] for leaf in data)
        alone = Vectorized().evaluator(objective, 1)(
            w[i : i + 1], v[i : i + 1], b[i : i + 1], own, "both", Randomness(SEEDS[i : i + 1], 4)
        )
        torch.testing.assert_close(alone.g, together.g[i : i + 1], rtol=1e-12, atol=1e-12)


def test_a_client_counts_its_own_evaluations():
    missed = torch.tensor([0, 2, 0])
    behind, even = Randomness(SEEDS, 5, missed).seeds(), Randomness(SEEDS, 5).seeds()
    assert (behind[0], behind[2]) == (even[0], even[2])
    assert behind[1] == Randomness(SEEDS, 3).seeds()[1]
    two = Randomness(SEEDS, 5, missed).of([1, 2])
    assert two.seeds() == [behind[1], behind[2]]
    assert two.of([1]).seeds() == [behind[2]]


def test_what_cannot_be_shared_out_is_refused():
    noise = ClientNoise()
    noise.begin(Randomness(SEEDS, 0))
    with PerClient(noise):
        with pytest.raises(UnsplittableDrawError, match=r"aten.randn.generator draws from a torch.Generator"):
            torch.randn(3, generator=torch.Generator())
        with pytest.raises(UnsplittableDrawError, match=r"aten.randn.default does not draw client by client"):
            torch.randn(4)


@pytest.mark.parametrize("draws", [{}, {"train": False}, {"num_layers": 1}, {"dropout": 0.0}], ids=str)
def test_recurrent_layers_draw_between_layers_in_training(draws):
    given = {"has_biases": True, "num_layers": 2, "dropout": 0.5, "train": True} | draws
    args = (torch.randn(4, 5, 6), torch.zeros(2, 5, 3), [], *given.values(), False, False)
    assert is_random(torch.ops.aten.gru.input, args) == (draws == {})


def test_a_compiled_gradient_draws_nothing(monkeypatch):
    objective, *arguments = setting(nn.Linear(6, 3), (6,), loss=drawing(torch.randn_like))
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # in place of minutes of compiling
    with pytest.raises(BatchedError, match="cannot draw every client's random numbers"):
        Vectorized(compile=True).evaluator(objective, 1)(*arguments, "both", Randomness(SEEDS, 0))


def test_who_draws_later_is_noticed():
    drawn = {"later": False}

    def loss(net, batch):
        x, y = batch
        return F.cross_entropy(net(F.dropout(x, 0.5) if drawn["later"] else x), y)

    objective, *arguments = setting(nn.Linear(6, 3), (6,), loss=loss)
    way = Vectorized(replay=False).evaluator(objective, 1)
    way(*arguments, "both", Randomness(SEEDS, 0))
    assert not objective.draws
    drawn["later"] = True
    randomness = Randomness(SEEDS, 1)
    expected = Sequential().evaluator(objective, 1)(*arguments, "both", randomness)
    assert_equal_evaluations(way(*arguments, "both", randomness), expected)
    assert objective.draws


@pytest.mark.parametrize("algorithm", [FedAvg(0.05), CDMA_ONE(0.05)], ids=lambda a: type(a).__name__)
def test_a_noisy_run_is_the_same_for_every_oracle_and_chunking(algorithm):
    points = []
    for oracle in (Sequential(), Vectorized(), Vectorized(chunk_size=2), Vectorized(replay=False, chunk_size=5)):
        loop = loop_for(quadratic(algorithm, noise=1.0), oracle)
        points.append(run(loop, rounds_of(algorithm, 2, local_steps=25)))
    for other in points[1:]:
        torch.testing.assert_close(other, points[0], rtol=1e-12, atol=1e-12)
    still = run(loop_for(quadratic(algorithm), Sequential()), rounds_of(algorithm, 2, local_steps=25))
    assert (still - points[0]).abs().max() > 1e-3


def test_unequal_clients_draw_the_same_in_any_chunk():
    """Clients with 5, 8, 11 and 6 samples take 2 or 3 minibatches: the short ones stand idle at the end."""
    results = []
    for oracle in (Sequential(), Vectorized(), Vectorized(chunk_size=3)):
        torch.manual_seed(0)
        task = Line(dropout=0.5, oracle=oracle)
        fit = trainer(precision="64-true", max_steps=3)
        fit.fit(task, regression_data(local_steps=None, local_epochs=2))
        results.append(torch.cat([p.detach().flatten() for p in task.parameters()]))
    assert len({len(client) for client in clients()}) > 1
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-12, atol=1e-12)


def test_a_batch_norm_network_with_dropout_agrees():
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.4), nn.Linear(5, 3))
    objective, *arguments = setting(net, (6,), loss=classify)
    randomness = Randomness(SEEDS, 0)
    expected = Sequential().evaluator(objective, 1)(*arguments, "both", randomness)
    for way in WAYS:
        assert_equal_evaluations(way.evaluator(objective, 100)(*arguments, "both", randomness), expected)


def test_dropout_differs_between_clients_and_steps():
    def loss(net, batch):
        return F.dropout(torch.ones(50), 0.5).sum() * net(batch[0]).sum()

    objective, w, v, b, data = setting(nn.Linear(6, 3), (6,), torch.float32, loss)
    w, data = w[:1].expand(S, -1).contiguous(), tuple(t[:1].expand(S, *t.shape[1:]).contiguous() for t in data)
    for oracle in (Vectorized(replay=False), Vectorized()):
        evaluate = oracle.evaluator(objective, 100)
        losses = torch.stack([evaluate(w, v, b, data).loss for _ in range(3)])
        assert len(losses.unique()) > 6


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
