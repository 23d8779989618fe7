"""A fit that draws the cohorts and minibatches of another one says so."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy

import pytest
from lightning.pytorch import Callback

from fedlightning.algorithms import FedADMM, FedAvg
from fedlightning.participation import Full, Uniform
from tests.support.small import Line, fitted, regression_data, trainer

AGAIN = r"Line: this Trainer begins at round 1 again, where seed=1 of .* drawn the {}minibatches of {} rounds"


def told(count, what="cohorts and "):
    return pytest.warns(UserWarning, match=AGAIN.format(what, count)) if count else nullcontext()


def test_a_loop_over_short_fits_with_some_of_the_clients_is_told():
    task = Line()
    for count in (0, 2, 2):
        with told(count):
            fitted(task, regression_data(participation=Uniform(2)), max_steps=2, limit_val_batches=0)


def test_what_is_drawn_anew_needs_no_word(tmp_path):
    task, run = Line(), trainer(max_steps=2, limit_val_batches=0)
    data = regression_data(participation=Uniform(2))
    run.fit(task, data)
    run.save_checkpoint(tmp_path / "two.ckpt")
    run.fit_loop.epoch_loop.max_steps = 3
    run.fit(task, data)  # goes on counting
    trainer(max_steps=3, limit_val_batches=0).fit(task, data, ckpt_path=tmp_path / "two.ckpt")
    fitted(task, regression_data(participation=Uniform(2), seed=2), max_steps=2, limit_val_batches=0)
    with told(3):
        fitted(task, data, max_steps=1, limit_val_batches=0)


@pytest.mark.parametrize("way", ["copied", "loaded"])
def test_other_objects_of_the_task_know_what_it_has_drawn(way, tmp_path):
    task, data = Line(), regression_data(participation=Uniform(2))
    fitted(task, data, tmp_path=tmp_path, max_steps=2).save_checkpoint(tmp_path / "two.ckpt")
    other = deepcopy(task) if way == "copied" else Line.load_from_checkpoint(tmp_path / "two.ckpt")
    with told(2):
        fitted(other, data, max_steps=1)


def test_a_resume_with_another_seed_forgets_nothing(tmp_path):
    task = Line()
    fitted(task, regression_data(participation=Uniform(2)), tmp_path=tmp_path, max_steps=2).save_checkpoint(
        tmp_path / "two.ckpt"
    )
    other = Line()
    then = trainer(max_steps=3)
    then.fit(other, regression_data(participation=Uniform(2), seed=2), ckpt_path=tmp_path / "two.ckpt")
    assert other.run.drawn == {1: 2, 2: 3}


class Ends(Callback):
    def on_train_start(self, *args):
        raise ValueError("ended")


@pytest.mark.filterwarnings("error:.*begins at round")
def test_a_fit_without_rounds_has_drawn_nothing():
    task = Line()
    fitted(task, regression_data(participation=Uniform(2)), max_steps=2)
    data = regression_data(participation=Uniform(2), seed=2)
    with pytest.raises(ValueError, match="ended"):
        fitted(task, data, max_steps=2, callbacks=[Ends()])
    fitted(task, data, max_steps=2)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [(FedAvg(0.05), True), (FedADMM(sigma=1.0), False)],
)
def test_minibatches_of_all_clients_that_come_again_are_mentioned(algorithm, said, caplog):
    caplog.set_level("INFO")
    task = Line(algorithm, dropout=0.0)
    for _ in range(2):
        fitted(task, regression_data(participation=Full()), max_steps=1, limit_val_batches=0)
    assert ("has drawn the minibatches of 1 rounds of another fit. To go on" in caplog.text) == said
