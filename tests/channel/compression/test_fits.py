"""Compressors in whole rounds: exact solutions, resumed runs, chunks, broadcasts, sums of whole numbers, bytes."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from fedlightning.callbacks import History
from fedlightning.channel import (
    QSGD,
    Channel,
    Clip,
    DistributedGaussianNoise,
    ErrorFeedback,
    FixedPoint,
    RandK,
    SignCompression,
    TopK,
)
from fedlightning.core.errors import InvalidValueError
from fedlightning.local import LocalSteps
from fedlightning.oracle import Sequential, Vectorized
from tests.support.cases import CASES
from tests.support.federations import CLIENTS, loop_for, quadratic, rounds_of, run
from tests.support.paths import ROOT
from tests.support.situations import batches_of
from tests.support.small import Line, regression_data, trainer

DIM = 8
"""Parameters of the quadratic problem."""

TO_THE_SADDLE = {
    "SCAFFOLD": ({"lr": 0.06, "lr_server": 1.0}, 60),
    "FedMM": ({"mu": 5.0, "eta3": 1.0}, 80),
    "FedMM over all": ({"mu": 5.0, "eta3": 1.0}, 80),
    "FedADMMGong": ({"rho": 3.3, "lr_server": 1.0, "solver": LocalSteps(lr=0.1)}, 70),
}
"""Hyper-parameters under which methods get within 1e-9 of its saddle, and the rounds that it takes."""

COUNTING = re.findall(r"^\| `(\w+)` \| .*: count", (ROOT / "docs" / "channel.md").read_text(), re.MULTILINE)
"""Classes of algorithms that send a count, of which the page on channels has them all."""


def distance(name, channel, times=2, size=None):
    """How far a method is from the saddle after some times the rounds that it takes without a channel."""
    hyper, rounds = TO_THE_SADDLE[name]
    algorithm = CASES[name].algorithm(**hyper)
    task = quadratic(algorithm)
    end = run(loop_for(task, channels=channel), rounds_of(algorithm, times * rounds, size=size))[-1]
    return float((end - task.solution).norm())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SCAFFOLD", "FedMM", "FedMM over all", "FedADMMGong"])
def test_error_feedback_reaches_the_saddle_where_the_largest_entries_alone_stall(name):
    assert distance(name, Channel(client=[TopK(0.3)])) > 0.1
    assert distance(name, Channel(client=[ErrorFeedback(TopK(0.3))])) < 1e-8


def test_it_does_with_some_of_the_clients_where_the_server_adds_increments_up():
    assert distance("FedMM over all", Channel(client=[ErrorFeedback(TopK(0.3))]), times=3, size=4) < 1e-7


@pytest.mark.parametrize("download", [[TopK(0.3)], [ErrorFeedback(TopK(0.3))], [RandK(0.5)], [SignCompression()]])
def test_broadcasts_are_compressed_without_loss_in_the_end(download):
    assert distance("FedMM", Channel(download=download)) < 1e-6


BOTH_WAYS = Channel(client=[Clip(5.0), ErrorFeedback(RandK(0.4))], download=[QSGD(8)])


@pytest.mark.parametrize("name", ["FedAvg", "SCAFFOLD", "FedMM over all", "CDMA", "FedSkip"])
def test_a_resumed_run_is_bitwise_the_uninterrupted_one(name):
    channel = Channel(client=BOTH_WAYS.client) if name == "FedSkip" else BOTH_WAYS
    algorithm = CASES[name].algorithm()
    batches = rounds_of(algorithm, 6, size=3)
    whole = loop_for(quadratic(algorithm), channels=channel)
    trajectory = run(whole, batches)
    first, second = (loop_for(quadratic(algorithm), channels=channel) for _ in range(2))
    run(first, batches[:3])
    second.load_state_dict(first.state_dict())
    assert torch.equal(run(second, batches[3:]), trajectory[3:])
    assert second.server.traffic == whole.server.traffic
    for key in whole.clients.template:
        assert torch.equal(second.clients.all(key), whole.clients.all(key))


@pytest.mark.parametrize("inner", [TopK(0.3), RandK(0.3), QSGD(3)], ids=["TopK", "RandK", "QSGD"])
def test_chunks_and_evaluation_one_by_one_change_nothing(inner):
    algorithm = CASES["SCAFFOLD"].algorithm()
    batches = rounds_of(algorithm, 4, size=5)
    found = []
    for oracle in (Vectorized(), Vectorized(chunk_size=2), Sequential()):
        loop = loop_for(quadratic(algorithm), oracle, channels=Channel(client=[ErrorFeedback(inner)]))
        found.append((run(loop, batches), loop.server.traffic))
    for trajectory, traffic in found[1:]:
        torch.testing.assert_close(trajectory, found[0][0], rtol=1e-10, atol=1e-10)
        assert traffic == found[0][1]


def test_a_compressor_that_keeps_everything_changes_nothing_but_rounding():
    algorithm = CASES["SCAFFOLD"].algorithm()
    batches = rounds_of(algorithm, 5, size=4)
    plain = run(loop_for(quadratic(algorithm)), batches)
    for transform in (TopK(1.0), RandK(1.0), ErrorFeedback(TopK(1.0))):
        kept = run(loop_for(quadratic(algorithm), channels=Channel(client=[transform])), batches)
        torch.testing.assert_close(kept, plain, rtol=1e-12, atol=1e-12)


def test_bits_of_both_directions_by_hand():
    """Two fields of 8 numbers up and down, in 64 bits; two of eight are kept, at 3 bits an index."""
    algorithm = CASES["SCAFFOLD"].algorithm()
    loop = loop_for(quadratic(algorithm), channels=Channel(client=[TopK(0.25)], download=[TopK(0.25)]))
    run(loop, rounds_of(algorithm, 3, size=4))
    increment, whole = 2 * (2 * 64 + 2 * 3), 2 * DIM * 64
    assert loop.server.traffic.upload_bits == 3 * 4 * increment
    assert loop.server.traffic.download_bits == CLIENTS * whole + 2 * CLIENTS * increment  # all N follow
    assert loop.upload == 3 * 4 * 2 * DIM


def test_masked_sums_take_their_bits_and_stay_within_their_error():
    algorithm = CASES["FedAvg"].algorithm()
    batches = rounds_of(algorithm, 1)
    plain = run(loop_for(quadratic(algorithm)), batches)
    masked = FixedPoint(16, largest=50.0, clients=CLIENTS)
    loop = loop_for(quadratic(algorithm), channels=Channel(client=[TopK(1.0)], aggregate=masked))
    off = (run(loop, batches) - plain).abs().max()
    assert 0 < off <= masked.step / 2
    assert loop.server.traffic.upload_bits == CLIENTS * DIM * 16


def after_unequal_steps(algorithm, channel, **options):
    """The server's state after three rounds in which clients take 3, 3, 4 and 3 steps."""
    torch.manual_seed(0)
    task = Line(algorithm, dropout=0.0).double()
    loop = loop_for(task, Sequential(), channels=channel, **options)
    run(loop, batches_of(regression_data(local_steps=None, local_epochs=1), task, 3))
    return {each.name: getattr(loop.state, each.name) for each in fields(loop.state)}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.make.__name__ in COUNTING])
def test_counts_of_masked_sums_are_averaged(name):
    algorithm = CASES[name].algorithm()
    masked = after_unequal_steps(algorithm, Channel(aggregate=FixedPoint(52, largest=100.0, clients=4)))
    torch.testing.assert_close(masked, after_unequal_steps(algorithm, None), rtol=1e-10, atol=1e-10)


def test_squared_norms_of_masked_sums_are_averaged():
    """Where clients differ, so that the server extrapolates by them."""
    algorithm = CASES["FedExP"].algorithm()
    masked, plain = (
        run(loop_for(quadratic(algorithm, heterogeneity=2.0), channels=channel), rounds_of(algorithm, 6))
        for channel in (Channel(aggregate=FixedPoint(52, largest=1000.0, clients=CLIENTS)), None)
    )
    torch.testing.assert_close(masked, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["FedAvg", "SCAFFOLD", "FedMM over all", "CDMA"])
def test_a_masked_sum_of_noisy_updates_is_that_without_masks(name):
    algorithm, client = CASES[name].algorithm(), [Clip(1.0), DistributedGaussianNoise(0.5)]
    batches = rounds_of(algorithm, 4, size=4)
    masked = Channel(client=client, aggregate=FixedPoint(50, largest=20.0, clients=4))
    found, plain = (run(loop_for(quadratic(algorithm), channels=each), batches) for each in (masked, Channel(client)))
    torch.testing.assert_close(found, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["FedAvg", "FedNova", "SCAFFOLD", "FedMM over all"])
def test_clients_of_masked_sums_may_be_weighted(name):
    algorithm = CASES[name].algorithm()
    masked, plain = (
        after_unequal_steps(algorithm, channel, weighting="samples")
        for channel in (Channel(aggregate=FixedPoint(52, largest=100.0, clients=4)), None)
    )
    torch.testing.assert_close(masked, plain, rtol=1e-10, atol=1e-10)
    alike = after_unequal_steps(algorithm, None)
    assert any(not torch.equal(alike[each], plain[each]) for each in plain)


def test_an_update_too_large_for_a_masked_sum_stops_the_run():
    algorithm = CASES["FedAvg"].algorithm()
    loop = loop_for(quadratic(algorithm), channels=Channel(aggregate=FixedPoint(16, 1e-6, CLIENTS)))
    before = loop.state
    with pytest.raises(InvalidValueError, match=r"FixedPoint\(largest=1e-06\): an update has an entry of magnitude"):
        run(loop, rounds_of(algorithm, 1))
    assert all(torch.equal(getattr(loop.state, each.name), getattr(before, each.name)) for each in fields(before))


def test_the_history_has_the_bytes_of_the_codes(tmp_path):
    """41 parameters in 32 bits: 5 numbers and their indices of 6 bits are 190 bits."""

    def fit(rounds, path=None):
        history = History()
        saved = ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1, filename="{step}")
        torch.manual_seed(0)
        task = Line(dropout=0.0, channel=Channel(client=[ErrorFeedback(TopK(5 / 41))]))
        options = {"callbacks": [history, saved], "enable_checkpointing": True, "val_check_interval": 3}
        options |= {"check_val_every_n_epoch": None, "max_steps": rounds}
        lightning_trainer = trainer(tmp_path, **options)
        lightning_trainer.fit(task, regression_data(), ckpt_path=path)
        return history.rows, lightning_trainer.callback_metrics

    rows, logged = fit(9)
    assert [row["upload_bytes"] for row in rows] == [count * 4 * 190 / 8 for count in (3, 6, 9)]
    assert {row["round_upload_bytes"] for row in rows} == {4 * 190 / 8}
    assert [row["upload"] for row in rows] == [count * 4 * 41 for count in (3, 6, 9)]
    assert logged["upload_bytes"] == 9 * 4 * 190 / 8
    again, _ = fit(9, tmp_path / "step=4.ckpt")
    strip = [[{k: v for k, v in row.items() if k != "seconds"} for row in each] for each in (rows, again)]
    assert strip[0] == strip[1]
