"""The limit of gradients comes from the task or from its Trainer, which gets it back."""

from __future__ import annotations

import pytest
from lightning.pytorch.trainer.states import TrainerFn

from fedlightning import federate
from fedlightning.algorithms import SCAFFOLD, FedAvg
from fedlightning.local import ByValue
from fedlightning.tasks.federated.clipping import GradientClipping
from tests.support.lit import made
from tests.support.small import regression_data, trainer


def test_the_tasks_own_limit_comes_first():
    fit = trainer(max_steps=1, gradient_clip_val=3.0)
    task = federate(made(), FedAvg, gradient_clip_val=0.5, gradient_clip_algorithm="value")
    fit.fit(task, regression_data())
    assert task.algorithm.local_clip == ByValue(0.5)
    assert fit.gradient_clip_val == 3.0


def test_the_trainers_limit_is_used_in_every_fit():
    fit = trainer(max_steps=1, gradient_clip_val=3.0)
    for _ in range(2):
        task = federate(made(), FedAvg)
        fit.fit(task, regression_data())
        assert task.algorithm.local_clip == 3.0
        assert fit.gradient_clip_val == 3.0


def test_the_trainer_gets_its_limit_back_from_a_fit_that_is_refused():
    fit = trainer(max_steps=1, gradient_clip_val=3.0)
    with pytest.raises(ValueError, match=r"^Trainer\(gradient_clip_val=3.0\): SCAFFOLD has no option that clips"):
        fit.fit(federate(made(), SCAFFOLD), regression_data())
    assert fit.gradient_clip_val == 3.0
    fit = trainer(max_steps=1, gradient_clip_val=3.0, accumulate_grad_batches=2)
    with pytest.raises(ValueError, match="accumulate_grad_batches=2"):
        fit.fit(federate(made(), FedAvg), regression_data())
    assert fit.gradient_clip_val == 3.0


def test_limits_out_of_range_are_refused():
    assert GradientClipping(None, "norm").limit is None
    with pytest.raises(ValueError, match=r"^federate\(gradient_clip_val=-1.0\): expected > 0"):
        federate(made(), FedAvg, gradient_clip_val=-1.0)
    with pytest.raises(
        ValueError, match=r"^federate\(gradient_clip_algorithm='max'\): expected 'norm', 'value' or null"
    ):
        federate(made(), FedAvg, gradient_clip_algorithm="max")


@pytest.mark.parametrize("kind", ["norm", "value"])
def test_limits_of_a_trainer_are_named_as_the_user_wrote_them(kind):
    fit = trainer(max_steps=1, gradient_clip_val=-2.0, gradient_clip_algorithm=kind)
    with pytest.raises(ValueError, match=r"^Trainer\(gradient_clip_val=-2.0\): expected >= 0"):
        fit.fit(federate(made(), FedAvg), regression_data())
    none = trainer(max_steps=1, gradient_clip_val=0.0)
    task = federate(made(), FedAvg)
    none.fit(task, regression_data())
    assert task.algorithm.local_clip is None


def test_the_kind_of_limit_may_be_the_tasks_and_the_limit_the_trainers():
    clipping = GradientClipping(None, "value")
    fit = trainer(gradient_clip_val=0.5)
    fit.state.fn = TrainerFn.FITTING
    with clipping.taken(fit):
        assert clipping.limit == ByValue(0.5)


def test_two_limits_are_refused():
    with pytest.raises(
        ValueError, match=r"FedAvg limits clients' gradients by 0.01, and Trainer\(gradient_clip_val=5.0\) by 5.0"
    ):
        trainer(gradient_clip_val=5.0).fit(federate(made(), FedAvg(0.05, local_clip=0.01)), regression_data())
