"""The account of a fit: figures of dp-accounting, a stop within the budget, a count that goes on after a resume."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from fedlightning import algorithms as fl
from fedlightning.callbacks import PrivacyBudget
from fedlightning.channel import AdaptiveClip, Channel, Clip, DistributedGaussianNoise, GaussianNoise, PerPhase
from fedlightning.channel.privacy import PLD
from fedlightning.core.requirements import how_to_install
from fedlightning.data.remote import RemoteClients
from fedlightning.participation import FirstResponders, Full, Poisson, Uniform
from fedlightning.tasks import ClientNumbers, PersonalQuadratic, QuadraticSaddle
from tests.support.small import trainer
from tests.support.transforms import Halved

N, RATE, DELTA = 60, 0.5, 1e-3

dp_accounting = pytest.importorskip("dp_accounting", reason=how_to_install("dp_accounting"))


def noisy(multiplier, clip=None, **options):
    clip = Clip(0.1) if clip is None else clip
    return Channel(client=[clip], server=[GaussianNoise(multiplier, **options)])


def fit(folder, budget, channel, algorithm=None, participation=None, rounds=4, task=QuadraticSaddle, **options):
    algorithm = fl.FedAvg(0.05) if algorithm is None else algorithm
    rule = Poisson(RATE) if participation is None else participation
    ckpt_path = options.pop("ckpt_path", None)
    run = trainer(folder, callbacks=[budget], max_steps=rounds, **options)
    data = ClientNumbers(N, local_steps=2, participation=rule, rounds_per_epoch=4)
    run.fit(task(algorithm, num_clients=N, channel=channel), data, ckpt_path=ckpt_path)
    return run


def poisson(*multipliers_and_counts):
    """Epsilon by dp-accounting's own calls."""
    account = dp_accounting.rdp.RdpAccountant()
    for multiplier, count in multipliers_and_counts:
        account.compose(dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(multiplier)), count)
    return account.get_epsilon(DELTA)


def epsilon_of(run):
    assert float(run.callback_metrics["delta"]) == pytest.approx(DELTA)
    return float(run.callback_metrics["epsilon"])


def test_every_round_is_logged_with_the_librarys_figure(tmp_path):
    run = fit(tmp_path, PrivacyBudget(DELTA), noisy(4.0), logger=CSVLogger(tmp_path), log_every_n_steps=1)
    with open(f"{run.logger.log_dir}/metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row.get("epsilon")]
    assert [float(row["epsilon"]) for row in rows] == pytest.approx([poisson((4.0, k)) for k in range(1, 5)], rel=1e-9)
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4]
    assert all(float(row["delta"]) == DELTA for row in rows)


def test_two_phases_are_two_releases(tmp_path):
    run = fit(tmp_path, PrivacyBudget(DELTA), noisy(4.0), fl.CDMA_ONE(lr=0.05), rounds=3)
    assert epsilon_of(run) == pytest.approx(poisson((4.0, 6)), rel=1e-6)


def test_phases_with_noise_of_their_own(tmp_path):
    run = fit(tmp_path, PrivacyBudget(DELTA), PerPhase([noisy(4.0), noisy(6.0)]), fl.CDMA_ONE(lr=0.05), rounds=3)
    assert epsilon_of(run) == pytest.approx(poisson((4.0, 3), (6.0, 3)), rel=1e-6)


def test_adaptive_clipping_is_part_of_the_multiplier(tmp_path):
    run = fit(tmp_path, PrivacyBudget(DELTA), noisy(4.0, AdaptiveClip(0.5, count_noise=8.0)))
    assert epsilon_of(run) == pytest.approx(poisson((4.0, 4)), rel=1e-6)


def test_shared_noise_counts_as_well(tmp_path):
    channel = Channel(client=[Clip(0.1), DistributedGaussianNoise(4.0)])
    assert epsilon_of(fit(tmp_path, PrivacyBudget(DELTA), channel)) == pytest.approx(poisson((4.0, 4)), rel=1e-6)


def test_fixed_size_cohorts_have_the_relation_of_replacement(tmp_path):
    run = fit(tmp_path, PrivacyBudget(DELTA), noisy(8.0), participation=Uniform(size=30))
    account = dp_accounting.rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    account.compose(dp_accounting.SampledWithoutReplacementDpEvent(N, 30, dp_accounting.GaussianDpEvent(8.0 / 2)), 4)
    assert epsilon_of(run) == pytest.approx(account.get_epsilon(DELTA), rel=1e-6)


def test_all_clients_in_every_round(tmp_path):
    run = fit(tmp_path, PrivacyBudget(DELTA), noisy(8.0), participation=Full())
    account = dp_accounting.rdp.RdpAccountant().compose(dp_accounting.GaussianDpEvent(8.0), 4)
    assert epsilon_of(run) == pytest.approx(account.get_epsilon(DELTA), rel=1e-6)


@pytest.mark.parametrize("participation", [Poisson(RATE), Uniform(size=30)])
def test_nodes_know_who_took_part(tmp_path, participation):
    task = fit(tmp_path, PrivacyBudget(DELTA), noisy(4.0)).lightning_module
    budget, there = (
        PrivacyBudget(DELTA),
        SimpleNamespace(global_step=4, max_steps=8, max_epochs=-1, should_stop=False, callback_metrics={}, loggers=[]),
    )
    there.datamodule = RemoteClients(N, participation)
    budget.on_train_start(there, task)
    reception = task.run.simulation.server.reception
    reception.kept = replace(reception.kept, releases={"0": 7})
    budget.on_train_batch_end(there, task, None, None, 3)
    account = dp_accounting.rdp.RdpAccountant()
    account.compose(dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(4.0)), 4)
    account.compose(dp_accounting.GaussianDpEvent(4.0), 3)
    assert epsilon_of(there) == pytest.approx(account.get_epsilon(DELTA), rel=1e-6)


def test_the_tight_account(tmp_path):
    run = fit(tmp_path, PrivacyBudget(DELTA, PLD(), every_n_rounds=4), noisy(4.0))
    account = dp_accounting.pld.PLDAccountant()
    account.compose(dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(4.0)), 4)
    assert epsilon_of(run) == pytest.approx(account.get_epsilon(DELTA), rel=1e-6)


def test_the_fit_stops_before_the_budget_is_exceeded(tmp_path, caplog):
    caplog.set_level("INFO")
    budget = poisson((4.0, 3)) + 1e-6
    run = fit(tmp_path, PrivacyBudget(DELTA, stop_at_epsilon=budget), noisy(4.0), rounds=50)
    assert run.global_step == 3
    assert epsilon_of(run) <= budget < poisson((4.0, 4))


def test_the_count_goes_on_after_a_resume(tmp_path):
    whole = fit(tmp_path / "whole", PrivacyBudget(DELTA), noisy(4.0), rounds=6)
    first = fit(tmp_path / "first", PrivacyBudget(DELTA), noisy(4.0), rounds=4)
    first.save_checkpoint(tmp_path / "last.ckpt")
    second = fit(tmp_path / "second", PrivacyBudget(DELTA), noisy(4.0), rounds=6, ckpt_path=tmp_path / "last.ckpt")
    assert epsilon_of(second) == epsilon_of(whole) == pytest.approx(poisson((4.0, 6)), rel=1e-6)


def composed(*events):
    """Epsilon by dp-accounting's own calls, for pairs of a rate and a count."""
    account = dp_accounting.rdp.RdpAccountant()
    for rate, count in events:
        gaussian = dp_accounting.GaussianDpEvent(4.0)
        account.compose(gaussian if rate == 1.0 else dp_accounting.PoissonSampledDpEvent(rate, gaussian), count)
    return account.get_epsilon(DELTA)


@pytest.mark.parametrize(("then", "now", "rates"), [(0.9, 0.4, (0.9, 0.4)), (1.0, 0.4, (1.0, 0.4))])
def test_cohorts_of_before_a_resume_stay_as_they_were_drawn(tmp_path, then, now, rates):
    first = fit(tmp_path / "first", PrivacyBudget(DELTA), noisy(4.0), participation=Poisson(then))
    first.save_checkpoint(tmp_path / "last.ckpt")
    options = {"participation": Poisson(now), "rounds": 6, "ckpt_path": tmp_path / "last.ckpt"}
    second = fit(tmp_path / "second", PrivacyBudget(DELTA), noisy(4.0), **options)
    assert epsilon_of(second) == pytest.approx(composed((rates[0], 4), (rates[1], 2)), rel=1e-6)
    assert epsilon_of(second) > epsilon_of(first)


def test_a_resume_with_cohorts_that_hide_something_else_is_refused(tmp_path):
    first = fit(tmp_path / "first", PrivacyBudget(DELTA), noisy(4.0), participation=Uniform(size=30))
    first.save_checkpoint(tmp_path / "last.ckpt")
    options = {"participation": Full(), "rounds": 6, "ckpt_path": tmp_path / "last.ckpt"}
    with pytest.raises(ValueError, match=r"4 releases were made with FixedSizeSampling.*EveryClient.*cannot stand for"):
        fit(tmp_path / "second", PrivacyBudget(DELTA), noisy(4.0), **options)


def test_releases_of_a_checkpoint_without_an_account_count_as_if_all_clients_took_part(tmp_path):
    first = trainer(tmp_path / "first", max_steps=4)
    data = ClientNumbers(N, local_steps=2, participation=Poisson(RATE))
    first.fit(QuadraticSaddle(fl.FedAvg(0.05), num_clients=N, channel=noisy(4.0)), data)
    first.save_checkpoint(tmp_path / "last.ckpt")
    options = {"rounds": 6, "ckpt_path": tmp_path / "last.ckpt"}
    second = fit(tmp_path / "second", PrivacyBudget(DELTA), noisy(4.0), **options)
    assert epsilon_of(second) == pytest.approx(composed((1.0, 4), (RATE, 2)), rel=1e-6)


@pytest.mark.parametrize("same_budget", [True, False])
def test_another_fit_of_the_same_task_goes_on_counting(tmp_path, same_budget):
    budget = PrivacyBudget(DELTA)
    task = QuadraticSaddle(fl.FedAvg(0.05), num_clients=N, channel=noisy(4.0))
    for seed, participation in enumerate((Poisson(0.9), Poisson(RATE))):
        run = trainer(tmp_path, callbacks=[budget if same_budget else PrivacyBudget(DELTA)], max_steps=4)
        run.fit(task, ClientNumbers(N, local_steps=2, participation=participation, seed=seed))
    assert epsilon_of(run) == pytest.approx(composed((0.9, 4), (RATE, 4)), rel=1e-6)
    run.save_checkpoint(tmp_path / "last.ckpt")
    third = fit(tmp_path / "third", PrivacyBudget(DELTA), noisy(4.0), rounds=6, ckpt_path=tmp_path / "last.ckpt")
    assert epsilon_of(third) == pytest.approx(composed((0.9, 4), (RATE, 6)), rel=1e-6)


def test_a_raised_number_of_rounds_goes_on_counting(tmp_path):
    run = trainer(tmp_path, callbacks=[PrivacyBudget(DELTA)], max_steps=4)
    task = QuadraticSaddle(fl.FedAvg(0.05), num_clients=N, channel=noisy(4.0))
    data = ClientNumbers(N, local_steps=2, participation=Poisson(RATE))
    run.fit(task, data)
    run.fit_loop.epoch_loop.max_steps = 6
    run.fit(task, data)
    assert run.global_step == 6
    assert epsilon_of(run) == pytest.approx(poisson((4.0, 6)), rel=1e-6)


def test_a_fit_from_weights_alone_says_that_the_account_starts_at_zero(tmp_path, capfd, caplog):
    caplog.set_level("INFO")
    fit(tmp_path, PrivacyBudget(DELTA), noisy(4.0))
    assert "starts at zero" in (said := caplog.text + capfd.readouterr().err)
    assert "PrivacyBudget(earlier=...)" in said
    caplog.clear()
    fit(tmp_path, PrivacyBudget(DELTA, earlier=2), noisy(4.0))
    assert "starts at zero" not in caplog.text + capfd.readouterr().err


def test_the_last_rounds_are_accounted_for_whatever_the_interval(tmp_path):
    run = fit(tmp_path, PrivacyBudget(DELTA, every_n_rounds=3), noisy(4.0), rounds=5)
    assert epsilon_of(run) == pytest.approx(poisson((4.0, 5)), rel=1e-6)


TIME = {"milliseconds": 1}
RARE = Poisson(0.19)  # of 60 clients none but one, with a probability of 4e-6


def test_empty_cohorts_are_found_out_before_the_first_round(tmp_path):
    message = (
        r"Poisson\(rate=0\.19\) with 60 clients.*Over 1000 rounds.*\d+ rounds are possible.*Poisson\(rate=0\.\d+\)"
    )
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, PrivacyBudget(DELTA), noisy(60.0), participation=RARE, rounds=1000)


@pytest.mark.parametrize(
    ("limits", "rounds"),
    [
        ({"max_epochs": 250}, 1000),
        ({"max_epochs": 250, "rounds": 2000}, 1000),
        ({"max_epochs": 1000, "rounds": 1500}, 1500),
        ({"max_epochs": 500, "limit_train_batches": 2}, 1000),
    ],
)
def test_rounds_of_all_epochs_are_checked_for_empty_cohorts(tmp_path, limits, rounds):
    """An epoch has four rounds here."""
    with pytest.raises(ValueError, match=rf"Over {rounds} rounds"):
        fit(tmp_path, PrivacyBudget(DELTA), noisy(60.0), participation=RARE, **{"rounds": -1, **limits})


def test_rounds_behind_a_checkpoint_are_not_checked_again(tmp_path):
    first = fit(tmp_path, PrivacyBudget(DELTA), noisy(60.0), participation=RARE, rounds=40)
    first.save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match="Over 960 rounds"):
        fit(
            tmp_path,
            PrivacyBudget(DELTA),
            noisy(60.0),
            participation=RARE,
            rounds=-1,
            max_epochs=250,
            ckpt_path=tmp_path / "last.ckpt",
        )


def test_a_fit_without_limits_is_checked_for_a_round(tmp_path):
    """A time ends it."""
    run = fit(tmp_path, PrivacyBudget(DELTA), noisy(60.0), participation=RARE, rounds=-1, max_epochs=-1, max_time=TIME)
    assert run.global_step > 0


def test_a_budget_ends_the_fit_where_empty_cohorts_have_used_up_delta(tmp_path, capfd, caplog):
    caplog.set_level("INFO")
    budget = PrivacyBudget(2e-4, stop_at_epsilon=100.0)
    run = fit(tmp_path, budget, noisy(60.0), participation=RARE, rounds=1000)
    assert 1 < run.global_step < 20
    assert "cohorts that may be empty have used up delta" in caplog.text + capfd.readouterr().err
    assert float(run.callback_metrics["epsilon"]) < 100.0


def test_a_delta_that_allows_to_publish_a_client_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match=r"delta=0\.02.*with 60 clients.*below 0\.0166667"):
        fit(tmp_path, PrivacyBudget(0.02), noisy(4.0), rounds=1)


def test_a_used_up_budget_stays_used_up_after_a_resume(tmp_path):
    spent = PrivacyBudget(DELTA, stop_at_epsilon=poisson((4.0, 3)) + 1e-6)
    first = fit(tmp_path / "first", spent, noisy(4.0), rounds=50)
    first.save_checkpoint(tmp_path / "last.ckpt")
    second = fit(tmp_path / "second", spent, noisy(4.0), rounds=50, ckpt_path=tmp_path / "last.ckpt")
    assert first.global_step == second.global_step == 3


def test_releases_that_no_checkpoint_knows_of_are_added(tmp_path):
    run = fit(tmp_path, PrivacyBudget(DELTA, earlier=5), noisy(4.0))
    assert epsilon_of(run) == pytest.approx(poisson((4.0, 9)), rel=1e-6)


def test_a_small_cohort_stands_for_a_deployment(tmp_path):
    run = fit(tmp_path, PrivacyBudget(DELTA, population=900), noisy(1.0, noise_cohort_size=45))
    account = dp_accounting.rdp.RdpAccountant()
    account.compose(dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.0)), 4)
    assert epsilon_of(run) == pytest.approx(account.get_epsilon(DELTA), rel=1e-6)


def test_clients_with_states_go_with_poisson_cohorts(tmp_path):
    run = fit(tmp_path, PrivacyBudget(DELTA), noisy(4.0), fl.SCAFFOLD(lr=0.05))
    assert epsilon_of(run) == pytest.approx(poisson((4.0, 4)), rel=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "task", "channel"),
    [
        (fl.SCAFFOLD(lr=0.05), QuadraticSaddle, noisy(4.0)),
        (fl.FedAvg(0.05), PersonalQuadratic, noisy(4.0)),
        (fl.FedAvg(0.05), QuadraticSaddle, Channel(client=[Halved(), Clip(1.0)], server=[GaussianNoise(4.0)])),
    ],
)
def test_clients_with_states_do_not_go_with_cohorts_of_a_fixed_size(tmp_path, algorithm, task, channel):
    with pytest.raises(ValueError, match=r"Uniform draws cohorts of a fixed size.*Use Poisson\(rate=0.5\)"):
        fit(tmp_path, PrivacyBudget(DELTA), channel, algorithm, Uniform(size=30), task=task)


class Counting(QuadraticSaddle):
    """Clients keep a number of evaluations, and running statistics of a layer."""

    def __init__(self, algorithm, counts=True, **options):
        super().__init__(algorithm, buffers="local", **options)
        self.norm = nn.InstanceNorm1d(1, track_running_stats=True)
        self.register_buffer("seen", torch.zeros(()))
        self.counts = counts

    def objective(self, batch):
        self.norm(self.x[None, None])
        if self.counts:
            self.seen += 1
        return super().objective(batch) * (1 + self.seen.detach())


def test_buffers_of_clients_do_not_go_with_cohorts_of_a_fixed_size_but_for_running_statistics(tmp_path):
    rule = Uniform(size=30)
    with pytest.raises(
        ValueError, match=r"'seen' changes at each client.*cohorts of a fixed size.*Poisson\(rate=0.5\)"
    ):
        fit(tmp_path, PrivacyBudget(DELTA), noisy(4.0), participation=rule, task=Counting)
    fit(tmp_path, PrivacyBudget(DELTA), noisy(4.0), task=Counting)
    fit(tmp_path, PrivacyBudget(DELTA), noisy(4.0), participation=rule, task=partial(Counting, counts=False))


@pytest.mark.parametrize(
    ("budget", "changes", "message"),
    [
        ({}, {"channel": None}, "no noise to account for"),
        ({}, {"channel": Channel(client=[Clip(1.0)])}, "no noise to account for"),
        ({}, {"participation": FirstResponders(size=30)}, "who answers first is not drawn at random"),
        ({"stop_at_epsilon": 1e-3}, {}, r"the first round alone has epsilon .*fedlightning privacy noise"),
        ({"stop_at_epsilon": 5.0}, {"min_steps": 3}, "min_steps=3.*would go on after the budget"),
        ({"stop_at_epsilon": 5.0}, {"min_epochs": 3}, "min_epochs=3"),
        ({"population": 100}, {}, "leave population out"),
        ({}, {"channel": noisy(4.0, noise_cohort_size=500)}, "population, the number of clients"),
        ({}, {"channel": Channel(server=[GaussianNoise(4.0)])}, "nothing bounds what one client may change"),
        ({}, {"channel": Channel(client=[Clip(1.0), Halved()], server=[GaussianNoise(4.0)])}, "nothing bounds"),
    ],
)
def test_what_has_no_account_is_refused(tmp_path, budget, changes, message):
    arguments = {"channel": noisy(4.0), **changes}
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, PrivacyBudget(DELTA, **budget), **arguments)


@pytest.mark.parametrize(
    "wrong",
    [
        {"delta": 0.0},
        {"delta": 1.0},
        {"stop_at_epsilon": 0.0},
        {"population": 0},
        {"every_n_rounds": 0},
        {"earlier": -1},
    ],
)
def test_wrong_arguments_are_named(wrong):
    with pytest.raises(ValueError, match=r"PrivacyBudget\("):
        PrivacyBudget(**{"delta": DELTA, **wrong})
    with pytest.raises(TypeError, match=r"PrivacyBudget\(accountant"):
        PrivacyBudget(DELTA, accountant="rdp")
