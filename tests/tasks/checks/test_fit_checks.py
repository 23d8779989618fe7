"""What a fit would pass over in silence is said or refused."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch

from fedlightning.algorithms import CDMA_ONE, FedADMMGong, FedAlt, FedAvg, FedPD
from fedlightning.callbacks import EvaluateClients
from fedlightning.local import SGD, LocalSteps
from fedlightning.participation import Full, Uniform
from fedlightning.schedules import Exponential
from fedlightning.tasks.checks.fit_checks import evaluates_clients, require_round
from tests.support.evaluated import Own, held_out_data
from tests.support.small import Line, regression_data, trainer


def test_a_training_batch_is_a_round():
    first = next(iter(regression_data().train_dataloader()))
    require_round(first, phases=1, expected=0)
    require_round(first, phases=1, expected=None)
    with pytest.raises(TypeError, match="training_step got a list instead of a round of cohorts: train with"):
        require_round([torch.zeros(2)], phases=1, expected=0)


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
@pytest.mark.parametrize(("algorithm", "due"), [(FedAvg(0.05), "round 6 of 1"), (CDMA_ONE(lr=0.05), "round 1 of 2")])
def test_a_loader_without_its_trainer_gives_rounds_that_are_not_due(algorithm, due):
    """Its second epoch begins with the first round again, and it has one phase for every algorithm."""
    fit = trainer(max_steps=8, limit_val_batches=0)
    with pytest.raises(RuntimeError, match=rf"Round 1 of 1 phases came from the train loader where {due} is due"):
        fit.fit(Line(algorithm), regression_data().train_dataloader())
    assert fit.global_step == (5 if len(algorithm.phases) == 1 else 0)


def test_a_validation_that_no_epoch_reaches_is_refused_in_rounds():
    def fit(**options):
        trainer(max_steps=12, **options).fit(Line(), regression_data(rounds_per_epoch=5))

    with pytest.raises(
        ValueError,
        match=r"^Trainer\(val_check_interval=6\): an epoch has 5 rounds, .*check_val_every_n_epoch=None \(.*\) beside "
        r"it, to validate after every 6 rounds of the run, or rounds_per_epoch=6 \(.*\) of the data module\.$",
    ):
        fit(val_check_interval=6)
    fit(val_check_interval=5)
    fit(val_check_interval=6, check_val_every_n_epoch=None)


def test_the_callback_that_evaluates_clients_is_found():
    task = Line()
    task.trainer = trainer(callbacks=[EvaluateClients()])
    assert evaluates_clients(task)
    task.trainer = trainer()
    assert not evaluates_clients(task)


class WithoutCallback(Own):
    def configure_callbacks(self):
        return []


def test_models_that_nobody_would_validate_are_refused_before_the_first_round():
    task = WithoutCallback(FedAvg(0.05))
    with pytest.raises(TypeError, match=r"WithoutCallback\.configure_callbacks leaves out EvaluateClients"):
        trainer(max_steps=1).fit(task, held_out_data())
    assert not task.run.exists


def test_a_method_for_personal_parameters_says_what_it_is_without_them():
    with pytest.warns(UserWarning, match="FedAlt is a method for personal parameters, and Line has none: it runs"):
        trainer(max_steps=1).fit(Line(FedAlt(0.05)), regression_data())


@pytest.mark.parametrize(
    ("algorithm", "participation", "told"),
    [(FedPD(0.05), Uniform(2), 1), (FedPD(0.05), Full(), 0), (FedAvg(0.05), Uniform(2), 0)],
    ids=["partial", "all", "needs no advice"],
)
def test_the_price_of_partial_cohorts_is_said_where_it_is_paid(algorithm, participation, told, monkeypatch):
    said = []
    monkeypatch.setattr("fedlightning.tasks.checks.fit_checks.rank_zero_info", said.append)
    trainer(max_steps=1).fit(Line(algorithm), regression_data(participation=participation))
    assert said == told * [
        "FedPD: with some of the clients a round it does not converge to the minimiser; FedADMM does."
    ]


@pytest.mark.parametrize(("lr_server", "told"), [(1.0, True), (0.5, False), ({"body": 1.0, "head": 0.5}, False)])
def test_whole_server_steps_on_partial_cohorts_are_advised_against(lr_server, told):
    assert (FedADMMGong(rho=5.0, lr_server=lr_server).partial_cohorts is not None) == told


@pytest.mark.parametrize(("lr", "told"), [(Exponential(0.05, gamma=0.5), True), (0.05, False)])
def test_a_schedule_that_goes_on_in_a_second_fit_is_told(lr, told, recwarn):
    task, fit = Line(FedAvg(lr)), trainer(max_steps=2, limit_val_batches=0)
    for end in (2, 4):
        fit.fit_loop.epoch_loop.max_steps = end
        fit.fit(task, regression_data())
    words = "goes on at round 3, and so does the schedule of lr. With a new Trainer it begins again"
    assert any(words in str(warning.message) for warning in recwarn) == told


@pytest.mark.parametrize(("lr", "told"), [([0.05, 0.01], True), ([0.05, 0.05], False), (0.05, False)])
def test_a_value_for_a_max_block_that_there_is_none_of_is_told(lr, told, recwarn):
    trainer(max_steps=1, limit_val_batches=0).fit(Line(FedAvg(lr)), regression_data())
    words = "is a pair [min, max], and Line maximises nothing: the second value is not used"
    assert any(words in str(each.message) for each in recwarn) == told


def heavy(lr):
    return partial(torch.optim.SGD, lr=lr, momentum=0.9)


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        (
            FedAvg(0.05, local_optimizer=partial(torch.optim.Adam, lr=1e-6)),
            r"FedAvg\(local_optimizer=Adam\) has lr=1e-06 of",
        ),
        (FedAvg(0.05, local_optimizer=heavy(torch.tensor(3.0))), r"has lr=3 of its own, .* of FedAvg\(lr=0\.05\)\."),
        (FedAvg([0.05, 0.1], local_optimizer=heavy(0.5)), r"lr=0\.5 of.*lr=\[0\.05, 0\.1\]"),
        (FedAvg([0.05, 0.1], local_optimizer=heavy(0.05)), None),
        (FedAvg({"body": 0.1, "head": 0.1}, local_optimizer=heavy(0.5)), r"lr=0\.5.*'head': 0\.1"),
        (FedAvg(Exponential(0.05, gamma=0.9), local_optimizer=heavy(0.5)), r"lr=0\.5.*Exponential"),
        (FedPD(eta=1.0, solver=LocalSteps(lr=0.1, optimizer=heavy(0.5))), r"LocalSteps\(optimizer=SGD\).*lr=0\.5"),
        (FedAvg(0.05, local_optimizer=heavy(torch.tensor(0.05))), None),
        (FedAvg({"body": 0.1, "head": 0.1}, local_optimizer=heavy(0.1)), None),
        (FedAvg(Exponential(0.05, gamma=0.9), local_optimizer=heavy(0.05)), None),
        (FedAvg(0.05, local_optimizer=partial(torch.optim.SGD, momentum=0.9)), None),
        (FedAvg(0.05, local_optimizer=torch.optim.Adam), None),
        (FedAvg(0.05, local_optimizer=SGD(momentum=0.9)), None),
        (FedPD(eta=1.0), None),
    ],
)
def test_a_step_size_of_the_optimizer_that_no_step_has_is_told_once(algorithm, told, recwarn):
    trainer(max_steps=3, limit_val_batches=0).fit(Line(algorithm), regression_data())
    found = [str(each.message) for each in recwarn if "of its own, which no step has" in str(each.message)]
    assert len(found) == (told is not None)
    assert told is None or re.search(told, found[0])


def test_a_client_that_is_to_predict_is_one_of_the_data():
    with pytest.raises(ValueError, match=r"Line\(predict_client=4\): the data have clients 0 to 3\."):
        trainer(max_steps=1).fit(Line(predict_client=4), regression_data())
