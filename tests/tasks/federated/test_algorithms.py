"""Algorithms take the steps of an optimizer where their own are plain, and say so where they do not."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from fedlightning.algorithms import FIAELT, SCAFFOLD, FedADMM, FedAvg, FedDR, FedProx, LpProj, StatefulFedAvg
from fedlightning.core.errors import InvalidValueError
from fedlightning.local import Adam, ByValue, LocalSteps
from fedlightning.tasks.federated.algorithms import with_clip, with_open_step_size, with_steps
from fedlightning.tasks.federated.optimizers import Steps

PLAIN, ADAM = Steps(0.3, None, "SGD"), Steps({"body": 0.1, "default": 0.2}, Adam(), "Adam")


def test_an_algorithm_without_a_step_size_takes_the_optimizers():
    for make in (FedAvg, StatefulFedAvg, partial(FedProx, mu=0.5)):
        algorithm = with_steps(with_open_step_size(make)[0], ADAM, lr_is_open=True)
        assert algorithm.lr == ADAM.lr
        assert algorithm.local_optimizer is ADAM.optimizer
    assert algorithm.mu == 0.5


@pytest.mark.filterwarnings("ignore:.* has a step size of its own")
def test_what_the_algorithm_names_stays():
    own = FedAvg(0.01, local_optimizer=Adam(beta1=0.5))
    assert vars(with_steps(own, ADAM, lr_is_open=False)) == vars(own)
    half = with_steps(FedAvg(0.01), ADAM, lr_is_open=False)
    assert (half.lr, half.local_optimizer) == (0.01, ADAM.optimizer)
    assert with_steps(own, None, lr_is_open=False) is own


@pytest.mark.filterwarnings("ignore:.* has a step size of its own")
def test_solvers_step_as_the_optimizer_does():
    algorithm = with_steps(FedDR(1.0, solver=LocalSteps()), ADAM, lr_is_open=False)
    assert algorithm.solver.lr == ADAM.lr
    assert algorithm.solver.optimizer is ADAM.optimizer
    assert with_steps(FedDR(1.0, solver=LocalSteps(lr=0.5)), ADAM, lr_is_open=False).solver.lr == 0.5


def test_plain_steps_of_an_algorithms_own_take_a_plain_step_size_alone():
    assert with_steps(with_open_step_size(SCAFFOLD)[0], PLAIN, lr_is_open=True).lr == 0.3
    message = r"^SCAFFOLD takes plain gradient steps, and the step size of the module's Adam was chosen for others"
    with pytest.raises(ValueError, match=message):
        with_steps(with_open_step_size(SCAFFOLD)[0], ADAM, lr_is_open=True)


def test_a_given_step_size_makes_do_without_the_optimizer_and_says_so():
    algorithm = SCAFFOLD(0.1)
    with pytest.warns(
        UserWarning, match=r"^SCAFFOLD takes plain gradient steps of its own.* module's Adam is not used\.$"
    ):
        assert with_steps(algorithm, ADAM, lr_is_open=False) is algorithm


@pytest.mark.parametrize(
    ("scheduled", "said"),
    [
        (False, "the step sizes by parameter group of the module's optimizer are not used."),
        (True, "the schedule and the step sizes by parameter group of the module's optimizer are not used."),
    ],
)
def test_step_sizes_that_are_not_used_are_said(scheduled, said):
    steps = Steps({"module.body": 0.1, "module.head": 0.2}, None, "SGD")
    with pytest.warns(UserWarning, match=f"^FedAvg has a step size of its own: {said}$"):
        assert with_steps(FedAvg(0.01), steps, lr_is_open=False, ignores_schedule=scheduled).lr == 0.01


def test_an_optimizer_whose_moments_cannot_be_kept_is_named():
    steps = Steps(0.1, partial(torch.optim.RMSprop, lr=1.0), "RMSprop")
    with pytest.raises(
        TypeError,
        match=r"^StatefulFedAvg does not take over .* module's RMSprop: .* Torch's SGD, Adam and AdamW become",
    ):
        with_steps(with_open_step_size(StatefulFedAvg)[0], steps, lr_is_open=True)
    assert with_steps(with_open_step_size(FedAvg)[0], steps, lr_is_open=True).local_optimizer is steps.optimizer


@pytest.mark.filterwarnings("ignore:.* has a step size of its own")
@pytest.mark.parametrize(
    ("lr", "shown"),
    [(0.0, ""), (float("inf"), ""), ({"module.head": 0.0, "module": 1.0}, "for 'head' in every round,")],
)
def test_a_step_size_of_the_module_that_moves_nothing_is_its_optimizers(lr, shown):
    still = Steps(lr, Adam(), "Adam")
    with pytest.raises(ValueError, match=rf"^The module's Adam has lr=.*{shown}.* expected a finite number > 0"):
        with_steps(with_open_step_size(FedAvg)[0], still, lr_is_open=True)
    assert with_steps(FedAvg(0.1), still, lr_is_open=False).lr == 0.1


def test_without_an_optimizer_there_is_no_step_size():
    with pytest.raises(ValueError, match=r"federate\(algorithm=FedAvg\): the module has no optimizer"):
        with_steps(with_open_step_size(FedAvg)[0], None, lr_is_open=True)


def of_ones_own(size):
    return FedAvg(size)


@pytest.mark.parametrize(
    ("algorithm", "name", "said"),
    [
        (FedADMM, "FedADMM", r"no step size lr of its own, .* FedADMM\(sigma=\.\.\., solver=LocalSteps\(lr=\.\.\.\)\)"),
        (partial(FedADMM, sigma=1.0), "FedADMM", r"an object, FedADMM\(sigma=\.\.\., solver=LocalSteps\(\)\) to leave"),
        (FIAELT, "FIAELT", r"an object, FIAELT\(solver=LocalSteps\(\)\) to leave"),
        (LpProj, "LpProj", r"it needs dim beside a step size\. Give functools\.partial\(LpProj, dim=\.\.\.\) to leave"),
        (of_ones_own, "of_ones_own", r"from a step size alone: .* Give an object, of_ones_own\(size=\.\.\.\)\.$"),
        (partial(FedAvg, mu=3), "FedAvg", r"from a step size alone: .*'mu'\. Give an object, FedAvg\(\.\.\.\)\.$"),
    ],
)
def test_an_algorithm_that_needs_more_than_a_step_size_is_refused(algorithm, name, said):
    with pytest.raises(TypeError, match=rf"^federate\(algorithm={name}\): .*{said}"):
        with_open_step_size(algorithm)


def test_what_is_advised_for_algorithms_without_a_step_size_takes_the_modules():
    assert with_steps(FedADMM(sigma=1.0, solver=LocalSteps()), PLAIN, lr_is_open=False).solver.lr == 0.3
    assert with_steps(with_open_step_size(partial(LpProj, dim=2))[0], PLAIN, lr_is_open=True).lr == 0.3


def test_limits_go_where_gradients_are_computed():
    assert with_clip(FedAvg(0.1), None, "given").local_clip is None
    assert with_clip(FedAvg(0.1), ByValue(0.5), "given").local_clip == ByValue(0.5)
    assert with_clip(FedDR(1.0, solver=LocalSteps()), 0.5, "given").solver.clip == 0.5
    with pytest.raises(ValueError, match="given: SCAFFOLD has no option that clips clients' gradients"):
        with_clip(SCAFFOLD(0.1), 1.0, "given")


def test_a_partial_that_names_a_step_size_keeps_it():
    algorithm, is_open = with_open_step_size(partial(FedAvg, lr=0.3))
    assert not is_open
    assert with_steps(algorithm, PLAIN, is_open).lr == 0.3
    with pytest.raises(InvalidValueError, match="expected > 0"):
        with_open_step_size(partial(FedAvg, lr=-1.0))
    assert with_open_step_size(partial(FedProx, mu=0.1))[1]
