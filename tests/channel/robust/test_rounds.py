"""Whole rounds through robust rules and attacks follow loops over clients, and resume bit for bit."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from fedlightning import FederatedDataModule
from fedlightning.algorithms import SCAFFOLD, FedAPM, FedAvg, FedMM
from fedlightning.channel import (
    ALIE,
    Channel,
    InnerProductManipulation,
    Krum,
    Mean,
    Median,
    NearestNeighbourMixing,
    SignFlip,
    TrimmedMean,
)
from fedlightning.cli import FederatedCLI
from fedlightning.data import LabelFlip
from fedlightning.oracle import Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import QuadraticSaddle
from tests.support.commands import SMALL, of
from tests.support.federations import (
    K,
    cohorts_of,
    loop_for,
    numpy_operators,
    quadratic,
    rounds_of,
    run,
    start_of,
)
from tests.support.references import robust as references
from tests.support.rules import RULES
from tests.support.small import Line, clients, trainer

CLIENTS, COHORT = 12, 11
BAD = frozenset({2, 7})

AGGREGATES = {
    "mean": (Mean(), lambda rows: rows.mean(axis=0)),
    "median": (Median(), references.median),
    "trimmed mean": (TrimmedMean(0.2), lambda rows: references.trimmed_mean(rows, 2)),
    "Krum": (Krum(3), lambda rows: references.multi_krum(rows, 3, 1)),
    "mixing": (NearestNeighbourMixing(Median(), 3), lambda rows: references.median(references.mixed(rows, 3))),
}
SENT = {
    "nothing else": (None, lambda rows, bad: rows),
    "sign flip": (SignFlip(clients=[2, 7], scale=4.0), lambda rows, bad: np.where(bad[:, None], -4 * rows, rows)),
    "ALIE": (
        ALIE(clients=[2, 7]),
        lambda rows, bad: np.where(bad[:, None], rows[~bad].mean(0) + 1.5 * rows[~bad].std(0, ddof=1), rows),
    ),
    "IPM": (
        InnerProductManipulation(clients=[2, 7]),
        lambda rows, bad: np.where(bad[:, None], -2 * rows[~bad].mean(0), rows),
    ),
}
over_aggregates = pytest.mark.parametrize(("rule", "aggregate"), AGGREGATES.values(), ids=AGGREGATES)
over_attacks = pytest.mark.parametrize(("attack", "forged"), SENT.values(), ids=SENT)


def eleven(**options):
    """Regression data of eleven clients."""
    return FederatedDataModule.from_datasets(clients(COHORT), batch_size=4, local_steps=3, **options)


def trajectories(algorithm, channel, rounds=4):
    """The points of a simulation, and what a loop needs to follow it."""
    task = quadratic(algorithm, num_clients=CLIENTS)
    batches = rounds_of(algorithm, rounds, CLIENTS, COHORT)
    return run(loop_for(task, channels=channel), batches), numpy_operators(task), start_of(task), cohorts_of(batches)


@over_aggregates
@over_attacks
def test_fed_avg_follows_a_loop_over_clients(rule, aggregate, attack, forged):
    found, operators, z, cohorts = trajectories(FedAvg(0.02), Channel(aggregate=rule, adversary=attack))
    for point, cohort in zip(found, cohorts, strict=True):
        moves = []
        for client in cohort:
            w = z.copy()
            for _ in range(K):
                w = w - 0.02 * operators[client](w)
            moves.append(w - z)
        sent = forged(np.array(moves), np.array([client in BAD for client in cohort]))
        z = z + aggregate(sent)
        np.testing.assert_allclose(point.numpy(), z, rtol=1e-9, atol=1e-9)


@over_aggregates
@over_attacks
def test_scaffold_follows_a_loop_over_clients(rule, aggregate, attack, forged):
    """Both fields pass the rule by themselves; the change of the control variate counts for S of N clients."""
    found, operators, z, cohorts = trajectories(SCAFFOLD(0.02), Channel(aggregate=rule, adversary=attack))
    c, own = np.zeros_like(z), [np.zeros_like(z) for _ in range(CLIENTS)]
    for point, cohort in zip(found, cohorts, strict=True):
        moves, changes = [], []
        for i in cohort:
            w = z.copy()
            for _ in range(K):
                w = w - 0.02 * (operators[i](w) - own[i] + c)
            new = own[i] - c + (z - w) / (K * 0.02)
            moves.append(w - z)
            changes.append(new - own[i])
            own[i] = new
        bad = np.array([client in BAD for client in cohort])
        z = z + aggregate(forged(np.array(moves), bad))
        c = c + COHORT / CLIENTS * aggregate(forged(np.array(changes), bad))
        np.testing.assert_allclose(point.numpy(), z, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RULES if name != "centred clipping"])  # its radius suits no scale
@pytest.mark.parametrize("make", [FedAvg, partial(FedMM, mu=5.0), SCAFFOLD, FedAPM])
@pytest.mark.filterwarnings("ignore:.*NaN or infinite")
def test_every_rule_withstands_a_sign_flip_that_the_mean_does_not(name, make):
    def away(rule, rounds):
        algorithm = make(0.05)
        task = quadratic(algorithm, num_clients=CLIENTS, heterogeneity=0.1)
        channel = Channel(aggregate=rule, adversary=SignFlip(clients=[2, 7], scale=30.0))
        points = run(loop_for(task, channels=channel), rounds_of(algorithm, rounds, CLIENTS))
        return [float((point - task.solution).norm()) for point in points]

    first, *_, last = away(RULES[name], 25)
    assert last < 0.5 * first
    first, *_, last = away(None, 5)
    assert last > 10 * first


@pytest.mark.parametrize("name", RULES)
def test_runs_resume_bit_for_bit(name, tmp_path):
    channel = Channel(aggregate=RULES[name], adversary=ALIE(share=0.25))

    def fit(rounds, ckpt_path=None):
        torch.manual_seed(0)
        task, fitting = Line(FedMM(0.05), channel=channel, oracle=Vectorized()), trainer(tmp_path, max_steps=rounds)
        fitting.fit(task, eleven(participation=Uniform(COHORT)), ckpt_path=ckpt_path)
        fitting.save_checkpoint(tmp_path / f"{rounds}.ckpt")
        return task

    fit(2)
    resumed, whole = fit(5, tmp_path / "2.ckpt"), fit(5)
    for one, other in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(one, other)
    again = Line.load_from_checkpoint(tmp_path / "5.ckpt", weights_only=True)
    assert again.federation_options.channel == channel


def test_chunks_of_clients_change_nothing():
    def end(chunk):
        task = quadratic(FedMM(0.05), num_clients=CLIENTS)
        channel = Channel(aggregate=NearestNeighbourMixing(Krum(2), 2), adversary=ALIE(share=0.2))
        loop = loop_for(task, Vectorized(chunk_size=chunk), channels=channel)
        return run(loop, rounds_of(task.algorithm, 4, CLIENTS))

    torch.testing.assert_close(end(5), end(CLIENTS), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*NaN or infinite")
def test_clients_with_numbers_that_are_not_finite_are_left_out_before():
    """Four of eleven are left; the other seven are enough for two adversaries and not for three."""

    class Failing(QuadraticSaddle):
        def objective(self, batch):
            return super().objective(batch) * torch.where((batch < 4).any(), torch.nan, 1.0)

    def one_round(rule):
        task = Failing(FedAvg(0.05), num_clients=11, problem_seed=3).double()
        loop = loop_for(task, channels=Channel(aggregate=rule))
        start = loop.point.clone()
        return run(loop, rounds_of(task.algorithm, 1, 11))[-1] - start

    assert one_round(Krum(2)).norm() > 0.01
    with pytest.warns(RuntimeWarning, match=r"skipped: Krum\(adversaries=3\) needs .* 9 clients or more, .*, 7 sent"):
        assert one_round(Krum(3)).norm() == 0


def test_rules_attacks_and_poisonings_come_from_a_config(tmp_path):
    config = tmp_path / "robust.yaml"
    config.write_text(CONFIG)
    folder = f"--trainer.default_root_dir={tmp_path}"
    cli = FederatedCLI(["fit", *of("classification", "fed_avg"), f"--config={config}", *SMALL, folder])
    channel = cli.model.federation_options.channel
    assert channel.aggregate == NearestNeighbourMixing(TrimmedMean(0.2), 2)
    assert channel.adversary == SignFlip(share=0.2, seed=3, scale=2.0)
    assert cli.datamodule.poisoning == LabelFlip(share=0.2, seed=3)


CONFIG = """
model:
  init_args:
    channel:
      class_path: fedlightning.channel.Channel
      init_args:
        aggregate:
          class_path: fedlightning.channel.NearestNeighbourMixing
          init_args:
            adversaries: 2
            inner: {class_path: fedlightning.channel.TrimmedMean, init_args: {share: 0.2}}
        adversary: {class_path: fedlightning.channel.SignFlip, init_args: {share: 0.2, seed: 3, scale: 2.0}}
data:
  init_args:
    poisoning: {class_path: fedlightning.data.LabelFlip, init_args: {share: 0.2, seed: 3}}
"""
