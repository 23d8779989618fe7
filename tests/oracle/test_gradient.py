"""What an algorithm sees of its clients: operators, blocks, references, random numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlightning.algorithms import FedAvg
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.oracle import ObjectiveError, Sequential, Vectorized
from fedlightning.oracle.gradient import GradientOracle
from fedlightning.oracle.minibatch import Minibatch, Rows
from tests.support.cohorts import NETS, S, classify, setting
from tests.support.federations import loop_for, quadratic, rounds_of
from tests.support.finite_sums import Samples, evaluate, finite_sum
from tests.support.small import Line, fitted, regression_data


def test_uniform_numbers_belong_to_the_client():
    def uniform(seeds):
        class Some(Samples):
            def __len__(self):
                return len(seeds)

        return GradientOracle(Some(finite_sum(), 1), evaluate, torch.empty(len(seeds), 0), seeds=seeds).uniform(5)

    together = uniform([3, 4, 5])
    assert torch.equal(together[1:], torch.cat([uniform([4]), uniform([5])]))
    assert together.min() >= 0
    assert together.max() < 1


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


def test_an_anchor_draws_what_the_next_call_draws():
    """Also where the recorder gives up half-way, after random numbers were drawn."""
    seen = []

    class Compares(FedAvg):
        def client_update(self, message, state, oracle):
            z = message.z.expand(oracle.num_clients, -1)
            for batch in oracle.batches():
                seen.append((oracle.at_reference(z, batch) - oracle(z, batch)).abs().max())
            return super().client_update(message, state, oracle)

    algorithm = Compares(0.05)
    for reads in (False, True):
        for oracle in (Sequential(), Vectorized(), Vectorized(replay=False)):
            task = quadratic(algorithm, noise=1.0)
            original = task.objective
            if reads:
                task.objective = lambda batch, f=original, task=task: f(batch) * float(task.offset.abs().max() > 0)
            (batch,) = rounds_of(algorithm, 1, local_steps=25)
            loop_for(task, oracle).run(RoundBatch(0, batch.cohorts, batch.samples), autocast=_float64())
    assert len(seen) > 100
    assert max(seen) == 0


def _float64():
    from fedlightning.oracle import Autocast

    return Autocast("cpu")


@pytest.mark.parametrize("full", [False, True])
def test_an_error_of_one_client_names_its_place_in_the_chunk(full):
    """Also where only some of the clients are computed."""

    def fails(*arguments):
        raise ObjectiveError("no", place=1)

    class Some(Samples):
        def full(self):
            yield torch.tensor([0, 2]), self.a

    samples = Some(finite_sum(), 1)
    oracle = GradientOracle(samples, fails, torch.empty(len(samples), 0))
    w = torch.zeros(len(samples), 1)
    batch = Minibatch(lambda rows: torch.zeros(len(rows), 1), computed=Rows.at([0, 2], torch.device("cpu")))
    with pytest.raises(ObjectiveError) as caught:
        _ = oracle.full(w) if full else oracle(w, batch)
    assert caught.value.place == 2


class _LogsItself(Line):
    def objective(self, batch):
        weight = self.head.weight[0, 0]
        return {**super().objective(batch), "weight": weight, "copy": weight.clone()}


@pytest.mark.parametrize(
    "oracle", [Sequential(), Vectorized(), Vectorized(replay=False), Vectorized(backward="each")], ids=str
)
def test_a_logged_weight_is_averaged_over_the_steps_as_it_was_in_each(oracle):
    """Steps change points in place, and a value that lies there would be the last one in all of them."""
    torch.manual_seed(0)
    task = _LogsItself(dropout=0.0, oracle=oracle)
    fitted(task, regression_data(local_steps=5), max_steps=1, limit_val_batches=0)
    assert task.round_metrics["train_weight"] == task.round_metrics["train_copy"]
    assert (task.head.weight[0, 0] - task.round_metrics["train_weight"]).abs() > 1e-3
