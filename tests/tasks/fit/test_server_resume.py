"""Resumed runs whose server optimizer or schedule is another one than before."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch

from fedlightning.algorithms import FedAvg
from fedlightning.core.errors import InvalidValueError
from tests.support.lightning_nodes import seeded
from tests.support.small import Line, fitted, regression_data, trainer

SGD, ADAM = torch.optim.SGD, torch.optim.Adam
ROUNDS = 2


def line(optimizer=None, scheduler=None):
    server = {"server_optimizer": optimizer, "server_scheduler": scheduler}
    return seeded(lambda: Line(FedAvg(0.05), dropout=0.0, **server))


def halves(gamma=0.5):
    return partial(torch.optim.lr_scheduler.StepLR, step_size=ROUNDS, gamma=gamma)


@pytest.fixture
def resumed(tmp_path):
    """Trains the one task for two rounds and resumes with the other, and returns the moves of its rounds."""

    def resume(first, second, rounds=1):
        fit = fitted(first, max_steps=ROUNDS)
        fit.save_checkpoint(tmp_path / "last.ckpt")
        points = [first.server_state.z.clone()]
        for k in range(rounds):
            path = tmp_path / "last.ckpt"
            fit = trainer(max_steps=ROUNDS + k + 1)
            fit.fit(second, regression_data(), ckpt_path=path)
            points.append(second.server_state.z.clone())
            fit.save_checkpoint(path)
        resume.groups = fit.optimizers[0].param_groups
        return [after - before for before, after in pairwise(points)]

    return resume


def test_a_new_rate_acts_and_is_told(resumed, caplog):
    (as_before,) = resumed(line(partial(SGD, lr=0.5)), line(partial(SGD, lr=0.5)))
    assert "resumed with" not in caplog.text
    (slower,) = resumed(line(partial(SGD, lr=0.5)), line(partial(SGD, lr=0.05)))
    torch.testing.assert_close(slower, as_before / 10, rtol=1e-4, atol=1e-7)
    assert "resumed with the server optimizer's lr=0.05 in place of lr=0.5.\n" in caplog.text


def test_momentum_that_is_added_acts_from_the_second_round_on(resumed):
    first, _ = resumed(line(), line(), rounds=2)
    heavy, second = resumed(line(), line(partial(SGD, lr=1.0, momentum=0.9)), rounds=2)
    torch.testing.assert_close(heavy, first, rtol=1e-4, atol=1e-7)
    anew, _ = resumed(line(), line(partial(SGD, lr=1.0, momentum=1e-9)), rounds=2)
    torch.testing.assert_close(anew, first, rtol=1e-4, atol=1e-7)
    third = resumed(line(), line(), rounds=2)[1]
    torch.testing.assert_close(second, third + 0.9 * first, rtol=1e-4, atol=1e-6)


def test_another_optimizer_begins_anew_and_is_told(resumed, caplog):
    for first in (line(), line(partial(SGD, lr=0.5, momentum=0.9))):
        caplog.clear()
        (move,) = resumed(first, line(partial(ADAM, lr=0.01, eps=1e-16)))
        torch.testing.assert_close(move.abs(), torch.full_like(move, 0.01))  # Adam's first step
        assert "class=Adam in place of class=SGD: its state begins anew" in caplog.text


@pytest.mark.parametrize(
    ("optimizer", "scheduler"), [(partial(ADAM, lr=0.1), None), (partial(SGD, lr=0.5, momentum=0.9), halves())]
)
def test_a_run_may_go_on_without_its_server_optimizer(optimizer, scheduler, resumed):
    first, second = line(optimizer, scheduler), line()
    (move,) = resumed(first, second)
    assert resumed.groups[0]["lr"] == 1.0
    other = line(partial(SGD, lr=1.0))
    (again,) = resumed(line(optimizer, scheduler), other)
    torch.testing.assert_close(move, again, rtol=1e-4, atol=1e-7)


def test_a_schedule_goes_on_may_be_left_out_and_may_be_added(resumed, caplog):
    sgd = partial(SGD, lr=1.0)
    for then, now, rate in ((halves(), halves(), 0.5), (halves(), None, 1.0), (None, halves(), 1.0)):
        caplog.clear()
        resumed(line(sgd, then), line(sgd, now))
        assert resumed.groups[0]["lr"] == rate
        assert ("another schedule at the server" in caplog.text) == (rate == 1.0)


def test_momentum_may_be_added_beside_a_schedule_which_goes_on(resumed):
    resumed(line(partial(SGD, lr=1.0), halves()), line(partial(SGD, lr=1.0, momentum=0.9), halves()))
    assert (resumed.groups[0]["lr"], resumed.groups[0]["momentum"]) == (0.5, 0.9)


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (line(partial(SGD, lr=1.0), halves(0.1)), "StepLR with gamma=0.5, this run has StepLR with gamma=0.1"),
        (line(partial(SGD, lr=0.1), halves()), r"StepLR with base_lrs=\[1.0\], .* base_lrs=\[0.1\]"),
        (line(partial(ADAM, lr=1.0), halves()), "a schedule of SGD, this run has a schedule of Adam"),
    ],
)
def test_a_schedule_in_place_of_another_one_is_refused(now, says, resumed):
    with pytest.raises(InvalidValueError, match=rf"trained with server_scheduler {says}.* Resume with the same"):
        resumed(line(partial(SGD, lr=1.0), halves()), now)


def test_a_rate_set_by_hand_goes_on(resumed):
    class Halved(Line):
        def on_train_batch_start(self, batch, batch_idx):
            if self.global_step == 1:
                self.optimizers().param_groups[0]["lr"] = 0.5

    first = seeded(lambda: Halved(FedAvg(0.05), dropout=0.0, server_optimizer=partial(SGD, lr=1.0)))
    resumed(first, line(partial(SGD, lr=1.0)))
    assert resumed.groups[0]["lr"] == 0.5


@pytest.mark.parametrize("frozen", [True, False])
def test_other_trained_parameters_are_refused_by_name(frozen, resumed):
    tasks = [line(), line()]
    tasks[frozen].body.requires_grad_(False)
    ends = "not among" if frozen else "among"
    with pytest.raises(ValueError, match=rf"'body\.0\.weight' .*parameters that are trained, now it is {ends} them"):
        resumed(*tasks)
