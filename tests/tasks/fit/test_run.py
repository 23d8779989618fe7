"""The server and clients of a task: made when they are needed, restored from a checkpoint, given up for another fit."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms import SCAFFOLD, FedAvg, FedDyn
from fedlightning.core.parameter_space import read
from fedlightning.core.serialisation import CheckpointError
from tests.support.small import Line, Personal, clients, fitted, regression_data


def test_looking_at_the_loop_before_the_first_round_makes_nothing_that_lasts():
    task = Line()
    with torch.no_grad():
        task.head.bias.fill_(1.0)
    assert task.run.loop.server.point[-1] == 1.0
    assert not task.run.exists
    assert not task.run.has_client_states
    assert task.run.at_round_boundary
    assert task.run.evaluation_request("val").point is None


def test_after_a_fit_the_simulation_is_kept_and_asked_for_its_point():
    task = Line(SCAFFOLD(0.05))
    fitted(task, max_steps=2)
    assert task.run.exists
    assert task.run.has_client_states
    assert task.run.loop is task.run.simulation.loop
    assert torch.equal(task.run.evaluation_request("test").point, task.run.simulation.server.point)
    assert task.run.trained_on == regression_data().identity


def test_a_model_that_was_changed_since_the_last_round_is_noticed():
    task = Line()
    fitted(task, max_steps=1)
    assert task.run.changed is None
    with torch.no_grad():
        task.head.bias.add_(1.0)
    assert task.run.changed == "parameter 'head.bias'"


@pytest.mark.parametrize("name", ["offset", "line.weight"])
def test_a_start_of_clients_that_was_changed_is_noticed_as_well(name):
    task = Personal(FedAvg(0.05))
    fitted(task, max_steps=1)
    assert task.run.changed is None
    with torch.no_grad():
        task.get_parameter(name).add_(1.0)
    assert task.run.changed == f"parameter '{name}'"


def test_a_model_that_has_gone_to_nan_with_the_server_was_not_changed():
    task = Line()
    fitted(task, max_steps=1)
    with torch.no_grad():
        task.head.bias.fill_(torch.nan)
    assert task.run.changed == "parameter 'head.bias'"
    task.run.simulation.server.move_to(read(task.parameter_space().shared, task))
    assert task.run.changed is None


def test_loaded_states_that_do_not_fit_name_their_file():
    donor = Line(SCAFFOLD(0.05))
    fitted(donor, max_steps=1)
    state = donor.run.simulation.state_dict()
    state["server"] = {**state["server"], "z": torch.zeros(3)}
    task = Line(SCAFFOLD(0.05))
    task.run.read_from("mine.ckpt")
    task.run.load(state, {})
    assert task.run.exists
    with pytest.raises(CheckpointError, match=r"^mine\.ckpt: The checkpoint's server state has .*'z': \(3,\)"):
        task.run.simulation  # noqa: B018


@pytest.mark.parametrize(("algorithm", "kept"), [(SCAFFOLD(0.05), True), (FedAvg(0.05), False)])
def test_what_belongs_to_single_clients_is_known_of_a_loaded_checkpoint(algorithm, kept):
    donor, task = Line(algorithm), Line(algorithm)
    fitted(donor, max_steps=1)
    task.run.load(donor.run.simulation.state_dict(), {})
    assert task.run.restores_client_states is kept
    task.run.release_loaded()
    assert not task.run.exists


def test_weights_alone_are_told_from_states():
    task = Line()
    assert not task.run.holds_weights_alone
    task.load_state_dict(Line().state_dict())
    assert task.run.holds_weights_alone
    fitted(task, max_steps=1)
    assert not task.run.holds_weights_alone


def test_a_client_s_model_is_put_in_and_taken_out_again():
    task = Personal(FedAvg(0.05))
    fitted(task, max_steps=3)
    _, own, _ = task.run.simulation.models([2])
    before = read(task.parameter_space().shared, task)
    task.run.put_in(2)
    assert task.offset.item() == own.item() != 0.0
    task.run.put_in(None)
    assert task.offset.item() == 0.0
    assert torch.equal(read(task.parameter_space().shared, task), before)
    with pytest.raises(IndexError, match="client=4: the federation has clients 0 to 3"):
        task.run.put_in(4)


def test_a_personal_copy_has_the_client_s_model_and_no_states():
    task = Personal(FedAvg(0.05))
    fitted(task, max_steps=3)
    copied = task.run.personalized(1)
    assert copied.run.is_of_one_client
    assert not copied.run.exists
    assert copied.offset.item() == task.run.simulation.models([1])[1].item()
    assert task.run.exists
    assert task.offset.item() == 0.0


def test_a_second_fit_goes_on_from_the_clients_models_of_the_same_clients_only():
    task = Personal(FedAvg(0.05))
    fitted(task, max_steps=1)
    offsets = [task.run.simulation.models([i])[1].item() for i in range(4)]
    task.run.begin_again(regression_data())
    assert [task.run.simulation.models([i])[1].item() for i in range(4)] == offsets
    task.run.release_loaded()
    other = type(regression_data()).from_datasets(clients(3), batch_size=4, local_steps=1)
    with pytest.warns(UserWarning, match="clients' own models of the fit before are given up"):
        task.run.begin_again(other)
    assert not task.run.exists


def test_a_second_fit_by_another_algorithm_begins_with_new_models_and_says_so():
    task = Personal(FedAvg(0.05))
    fitted(task, max_steps=1)
    task.algorithm = SCAFFOLD(0.05)
    with pytest.warns(UserWarning, match="are given up: the task's parameters or its algorithm were changed since"):
        fitted(task, max_steps=1)
    assert task.server_state.c.any()


@pytest.mark.parametrize(
    ("algorithm", "said"), [(SCAFFOLD(0.05), True), (FedDyn(0.05, alpha=1.0), True), (FedAvg(0.05), False)]
)
def test_a_second_fit_that_drops_states_says_so(algorithm, said, caplog):
    caplog.set_level("INFO")
    task = Line(algorithm)
    for count in (0, int(said)):
        fitted(task, max_steps=1)
        told = [each.message for each in caplog.records if "goes on from the model alone" in each.message]
        assert len(told) == count
    assert all(f"of {type(algorithm).__name__} have kept" in each for each in told)
