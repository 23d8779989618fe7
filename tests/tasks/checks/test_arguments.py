"""Arguments of a task that are something else than their names say, or do not go together."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from fedlightning.algorithms import CDMA_ONE, FedAvg, FedDualAvg, FedMiD, FedSkip
from fedlightning.channel import Channel, Clip, FixedPoint, PerPhase
from fedlightning.federation.client_states import OnHost
from fedlightning.oracle import Sequential
from fedlightning.proximal import L1
from fedlightning.tasks.checks.arguments import (
    require_algorithm,
    require_channel,
    require_client_number,
    require_client_options,
    require_compatible,
    require_server_step,
)
from fedlightning.tasks.fit.server_step import ServerStep
from fedlightning.tasks.options import FederationOptions
from tests.support.small import Line
from tests.support.transforms import Middle, Shift


class Task:
    """The owner of the arguments, for messages."""


def test_an_algorithm_is_an_object_of_one():
    require_algorithm(Task(), FedAvg(0.1))
    for wrong in (FedAvg, "FedAvg", None):
        with pytest.raises(TypeError, match=r"^Task\(algorithm=.*expected an object of a .*FedAvg\(lr=0\.1\)"):
            require_algorithm(Task(), wrong)


def test_options_of_clients_are_what_their_names_say():
    require_client_options(Task(), None, None, None)
    require_client_options(Task(), Sequential(), OnHost(), 0)
    with pytest.raises(TypeError, match=r"^Task\(oracle='fast'\): expected a ClientBatching object, e.g. Sequential"):
        require_client_options(Task(), "fast", None, None)
    with pytest.raises(TypeError, match=r"^Task\(client_storage='disk'\): expected a Storage object"):
        require_client_options(Task(), None, "disk", None)
    with pytest.raises(ValueError, match=r"predict_client=-1"):
        require_client_options(Task(), None, None, -1)


def test_a_server_step_is_made_of_what_makes_its_parts():
    require_server_step(Task(), ServerStep(partial(torch.optim.Adam, lr=0.1), clip=1.0))
    with pytest.raises(TypeError, match=r"^Task\(server_optimizer='adam'\): expected something that makes it, e.g. "):
        require_server_step(Task(), ServerStep("adam"))
    with pytest.raises(ValueError, match=r"server_clip=0"):
        require_server_step(Task(), ServerStep(clip=0.0))


def test_a_regularizer_needs_a_composite_method_and_a_server_that_stays_in_it():
    options = FederationOptions(regularizer=L1(0.1))
    require_compatible(FedMiD(0.1), options, ServerStep())
    with pytest.raises(ValueError, match=r"^FedAvg takes no regularizer .*Composite methods here: .*FedMiD"):
        require_compatible(FedAvg(0.1), options, ServerStep())
    with pytest.raises(ValueError, match="would move the model after the proximal step"):
        require_compatible(FedMiD(0.1), options, ServerStep(clip=1.0))


def test_a_dual_server_cannot_be_moved():
    require_compatible(FedAvg(0.1), FederationOptions(), ServerStep(clip=1.0))
    with pytest.raises(ValueError, match=r"^FedDualAvg computes the point from its server state"):
        require_compatible(FedDualAvg(0.1), FederationOptions(), ServerStep(clip=1.0))


def test_a_client_s_number_is_whole():
    assert require_client_number("personalize", np.int64(3)) == 3
    with pytest.raises(TypeError, match=r"^personalize\('3' of type str\): expected a client's number, from 0 on"):
        require_client_number("personalize", "3")


def test_a_channel_suits_algorithm_and_weighting():
    clip, robust, noisy = Channel(client=[Clip(1.0)]), Channel(aggregate=Middle()), Channel(server=[Shift()])
    for channel in (None, clip, robust, noisy):
        require_channel(Task(), FedAvg(0.1), FederationOptions(channel=channel))
    require_channel(Task(), FedSkip(0.1), FederationOptions(channel=clip))
    require_channel(Task(), FedAvg(0.1), FederationOptions(channel=clip, weighting="samples"))
    require_channel(Task(), CDMA_ONE(0.1), FederationOptions(channel=PerPhase([None, robust])))
    masked = Channel(aggregate=FixedPoint(32, 1.0, 4))
    require_channel(Task(), FedAvg(0.1), FederationOptions(channel=masked, weighting="samples"))
    with pytest.raises(ValueError, match=r"^FedSkip keeps something of single clients"):
        require_channel(Task(), FedSkip(0.1), FederationOptions(channel=masked))
    with pytest.raises(TypeError, match=r"^Task\(channel=Clip\(norm=1\.0, each=False\)\): expected a Channels object"):
        require_channel(Task(), FedAvg(0.1), FederationOptions(channel=Clip(1.0)))
    with pytest.raises(ValueError, match=r"PerPhase has 1 channels, but a round of CDMA_ONE has 2 phases"):
        require_channel(Task(), CDMA_ONE(0.1), FederationOptions(channel=PerPhase([clip])))
    for channel in (robust, noisy, PerPhase([robust])):
        with pytest.raises(ValueError, match=r"^weighting='samples': .*weighting='uniform'"):
            require_channel(Task(), FedAvg(0.1), FederationOptions(channel=channel, weighting="samples"))
        with pytest.raises(ValueError, match=r"^FedSkip keeps something of single clients.*Channel\(client="):
            require_channel(Task(), FedSkip(0.1), FederationOptions(channel=channel))


@pytest.mark.parametrize(
    ("given", "meant"),
    [("personal_paramters", "personal_parameters"), ("max_parameter", "max_parameters"), ("higher_is_beter", "higher")],
)
def test_a_misspelt_attribute_of_a_class_is_answered_with_the_right_one(given, meant):
    with pytest.raises(TypeError, match=rf"Misspelt\.{given} is no attribute of tasks\. Did you mean {meant}"):
        type("Misspelt", (Line,), {given: ("head",)})


def test_attributes_of_a_users_own_are_left_alone():
    type("Own", (Line,), {"min_parameters": 3, "parameter_names": (), "max_parameters": ("head",)})
