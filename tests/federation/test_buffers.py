"""Changing buffers are exact whatever their dtype, may start infinite, and are refused where they cannot be kept."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from fedlightning import FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.channel import Channel, Clip, DistributedGaussianNoise, FixedPoint, GaussianNoise, Krum, Median
from fedlightning.oracle import Autocast, Sequential, Vectorized
from tests.support.federations import loop_for
from tests.support.nodes import both
from tests.support.situations import batches_of, seeded
from tests.support.small import clients, fitted, regression_data, trainer

ORACLES = [Sequential(), Vectorized(), Vectorized(replay=False), Vectorized(backward="vmap")]
ROUNDS, STEPS = 3, 4


class Remembering(FederatedLightningModule):
    """A linear regression in float32 that remembers something of its batches in a buffer."""

    def __init__(self, start, remember, **federation):
        super().__init__(FedAvg(0.01), **federation)
        self.line = nn.Linear(6, 1)
        self.register_buffer("memory", start.clone())
        self.remember = remember

    def objective(self, batch):
        x, y = batch
        with torch.no_grad():
            self.memory.copy_(self.remember(self.memory, x))
        return (self.line(x).squeeze(1) - y.float().mean()).square().mean()


def trained(start, remember, oracle=None, **options):
    task = Remembering(start, remember, oracle=oracle or Vectorized(), **options)
    fitted(task, regression_data(local_steps=STEPS), max_steps=ROUNDS)
    return task


def count(memory, x):
    return memory + 1


@pytest.mark.parametrize("policy", ["average", "local"])
@pytest.mark.parametrize("oracle", ORACLES, ids=repr)
@pytest.mark.parametrize(
    ("start", "end"),
    [
        (torch.tensor(2**24), 2**24 + ROUNDS * STEPS),
        (torch.tensor(2**40 + 1), 2**40 + 1 + ROUNDS * STEPS),
        (torch.tensor(2**24, dtype=torch.int32), 2**24 + ROUNDS * STEPS),
        (torch.tensor([3, 250], dtype=torch.uint8), [3 + ROUNDS * STEPS, (250 + ROUNDS * STEPS) % 256]),
    ],
    ids=["int64", "large int64", "int32", "uint8"],
)
def test_counters_of_every_width_count(start, end, oracle, policy):
    task = trained(start, count, oracle, buffers=policy)
    if policy == "local":
        assert torch.equal(task.memory, start)
        task = task.personalize(1)
    assert task.memory.tolist() == end


@pytest.mark.parametrize("policy", ["average", "local"])
@pytest.mark.parametrize("oracle", ORACLES, ids=repr)
def test_a_buffer_in_float64_keeps_its_digits_in_a_model_in_float32(oracle, policy):
    task = trained(torch.ones((), dtype=torch.float64), lambda memory, x: memory + 1e-10, oracle, buffers=policy)
    memory = task.personalize(0).memory if policy == "local" else task.memory
    assert memory.item() - 1 == pytest.approx(ROUNDS * STEPS * 1e-10, rel=1e-4)


@pytest.mark.parametrize("oracle", ORACLES, ids=repr)
def test_a_running_minimum_may_start_at_infinity(oracle):
    data = regression_data(local_steps=STEPS, batch_size=None)
    minima = [client.tensors[0].min() for client in clients()]

    def least(memory, x):
        return torch.minimum(memory, x.min())

    task = trained_on(data, torch.tensor(torch.inf), least, oracle)
    expected = torch.tensor(torch.inf)
    for _ in range(ROUNDS):  # every round begins with the mean
        expected = torch.minimum(expected, torch.stack(minima)).mean()
    torch.testing.assert_close(task.memory, expected)
    own = trained_on(data, torch.tensor(torch.inf), least, oracle, buffers="local")
    torch.testing.assert_close(own.personalize(1).memory, minima[1].float())
    assert own.memory == torch.inf


def trained_on(data, start, remember, oracle, **options):
    task = Remembering(start, remember, oracle=oracle, **options)
    fitted(task, data, max_steps=ROUNDS)
    return task


@pytest.mark.parametrize("start", [torch.inf, torch.nan])
def test_what_is_infinite_or_nan_from_the_start_may_stay_so(start):
    task = trained(torch.tensor([start, 0.0]), lambda memory, x: memory + torch.tensor([0.0, 1.0]))
    assert torch.equal(task.memory.nan_to_num(posinf=7.0, nan=7.0), torch.tensor([7.0, float(ROUNDS * STEPS)]))
    assert task.line.weight.isfinite().all()


@pytest.mark.filterwarnings("ignore:.*clients? left out")
def test_a_buffer_that_becomes_infinite_leaves_the_client_out():
    with pytest.raises(Exception, match="returned NaN or infinite"):
        trained(torch.tensor(1.0), lambda memory, x: memory / 0)


def test_means_of_counters_are_rounded_not_cut_off():
    def each_its_own(memory, x):
        return memory + (x[0, 0] > 0).long()  # some clients count, others do not

    batched, single = (trained(torch.tensor(10), each_its_own, oracle) for oracle in (Vectorized(), Sequential()))
    assert batched.memory == single.memory > 10


def test_the_values_go_through_a_checkpoint_in_full(tmp_path):
    for policy in ("average", "local"):
        task = Remembering(torch.tensor(2**40 + 1), count, buffers=policy)
        data = regression_data(local_steps=STEPS)
        run = fitted(task, data, max_steps=2)
        run.save_checkpoint(tmp_path / "two.ckpt")
        again = Remembering(torch.tensor(2**40 + 1), count, buffers=policy)
        trainer(max_steps=3).fit(again, regression_data(local_steps=STEPS), ckpt_path=tmp_path / "two.ckpt")
        memory = again.personalize(0).memory if policy == "local" else again.memory
        assert memory == 2**40 + 1 + 3 * STEPS


@pytest.mark.parametrize(
    ("start", "remember", "text"),
    [
        (torch.ones(2, dtype=torch.complex64), lambda memory, x: memory * 1j, "'memory' of dtype torch.complex64"),
        (torch.tensor(2**61), count, "'memory', which holds whole numbers beyond 2\\^53"),
        (torch.tensor(1), lambda memory, x: memory * (2**60), "'memory', which holds whole numbers beyond 2\\^53"),
    ],
    ids=["complex", "beyond 2^53", "beyond 2^53 later"],
)
def test_what_cannot_be_kept_is_refused(start, remember, text):
    with pytest.raises(ValueError, match=text):
        trained(start, remember)


def test_a_changing_sparse_buffer_is_refused():
    def grow(memory, x):
        return memory + torch.eye(3).to_sparse()

    with pytest.raises(ValueError, match="sparse buffer 'memory'"):
        trained(torch.eye(3).to_sparse(), grow)


def test_constant_buffers_may_be_anything():
    class Constants(Remembering):
        def __init__(self):
            super().__init__(torch.tensor(0), count)
            self.register_buffer("wave", torch.ones(2, dtype=torch.complex64))
            self.register_buffer("adjacency", torch.eye(6).to_sparse())
            self.register_buffer("key", torch.tensor(2**62))

        def objective(self, batch):
            x, y = batch
            spread = torch.sparse.mm(self.adjacency, x.T).T
            return super().objective((spread, y)) + 0 * (self.wave.real.sum() + self.key)

    task = Constants()
    fitted(task, regression_data(local_steps=STEPS), max_steps=1)
    assert task.memory == STEPS


@pytest.mark.parametrize(
    ("start", "new"),
    [
        (torch.tensor(0), torch.tensor(0.5)),
        (torch.tensor(True), torch.tensor(2)),
        (torch.zeros(2, 3), torch.ones(3, 2)),
    ],
    ids=["whole to real", "flag to number", "shape"],
)
def test_a_buffer_of_another_kind_is_refused(start, new):
    class Replacing(Remembering):
        def objective(self, batch):
            self.memory = new
            return (self.line(batch[0]).squeeze(1) - batch[1].float()).square().mean()

    with pytest.raises(ValueError, match="replaces buffer 'memory'"):
        fitted(Replacing(start, None))


def test_whole_numbers_that_outgrow_float64_in_a_later_round_are_refused():
    def double(memory, x):
        return memory * 2**5

    with pytest.raises(ValueError, match="buffers memory has grown beyond 2\\^53"):
        trained(torch.tensor(1), double)


@pytest.mark.parametrize(
    ("rule", "end"),
    [(Krum(0), 3.0), (FixedPoint(bits=32, largest=1.0, clients=4), 3.25), (Median(), 3.0)],
    ids=["Krum", "FixedPoint", "Median"],
)
def test_of_counts_a_rule_takes_the_median_and_a_mean_the_mean(rule, end, tmp_path):
    """Clients take 3, 3, 4 and 3 steps; a sum of numbers up to 1 has no place for these."""
    make = seeded(partial(Remembering, torch.tensor(0), count))
    data, channel = regression_data(local_steps=None, local_epochs=1), Channel([Clip(1.0)], aggregate=rule)
    batches = batches_of(data, make(), 1)
    here, there, _ = both(make, data, batches, [[3, 1], [0, 2]], tmp_path, channels=channel)
    local = loop_for(make(), Sequential(), channels=channel, buffers="local")
    local.run(batches[0], Autocast("cpu"))
    assert here.server.buffers.tolist() == there.server.buffers.tolist() == [end]
    assert torch.equal(here.point, local.point)


def test_counts_do_not_pass_by_a_channel_with_noise():
    """They would tell something of a client without any noise."""
    for channel in (
        Channel([Clip(1.0)], server=[GaussianNoise(1.0)]),
        Channel([Clip(1.0), DistributedGaussianNoise(1.0)]),
    ):
        with pytest.raises(ValueError, match="buffers='average': with noise"):
            trained(torch.tensor(0), count, channel=channel)


def test_counts_are_no_part_of_what_a_channel_clips(tmp_path):
    """They grow by the number of steps, which would be nearly all of a norm."""
    make = seeded(partial(Remembering, torch.tensor(0), count))
    data, channel = regression_data(local_steps=STEPS), Channel([Clip(0.05)])
    batches = batches_of(data, make(), ROUNDS)
    here, there, _ = both(make, data, batches, [[3, 1], [0, 2]], tmp_path, channels=channel)
    local = loop_for(make(), Sequential(), channels=channel, buffers="local")
    for batch in batches:
        local.run(batch, Autocast("cpu"))
    assert here.server.buffers.tolist() == there.server.buffers.tolist() == [ROUNDS * STEPS]
    assert torch.equal(here.point, local.point)
    assert torch.equal(there.point, local.point)
