"""Answers that are left out, each for the reason that is named."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
import torch

from fedlightning.algorithms import fed_exp
from fedlightning.algorithms.base import Point
from fedlightning.algorithms.scaffold import Upload
from fedlightning.federation.protocol import Answer, Request, Stamp
from fedlightning.federation.remote.checks import AnswerChecks
from fedlightning.federation.remote.expectations import Expectation

REQUEST = Request(Stamp(4, 1), 1, Point(torch.zeros(3)), torch.zeros(3), torch.zeros(2))
EXPECTED = Expectation(Upload(torch.zeros(1, 3), torch.zeros(1, 3)), torch.zeros(1, 2), frozenset({"drift"}), ())
RIGHT = Answer(
    Stamp(4, 1),
    [7],
    Upload(torch.ones(1, 3), torch.ones(1, 3)),
    torch.ones(1, 2),
    {"drift": torch.ones(1)},
    {"train_loss": torch.ones(1)},
    torch.tensor([True]),
)


def objection(answer, largest=1e12):
    return AnswerChecks(largest).objection(answer, REQUEST, EXPECTED, [6, 7])


CHANNEL = replace(EXPECTED, reports={"0.r": None}, bound=4.0)
PASSED = replace(RIGHT, bits=torch.tensor([500.0]).double(), reports={"0.r": torch.ones(1)})


def test_a_loss_may_be_larger_than_the_numbers_of_an_update():
    assert objection(replace(RIGHT, tally={"train_loss": torch.tensor([2.3])}), largest=1.0) is None


def test_an_answer_through_a_channel_passes():
    assert AnswerChecks().objection(PASSED, REQUEST, CHANNEL, [7]) is None
    not_finite = replace(PASSED, update=replace(PASSED.update, dz=torch.full((1, 3), torch.nan)))
    assert AnswerChecks().objection(not_finite, REQUEST, CHANNEL, [7]) is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (RIGHT, r"reports \[\] to a channel; expected \['0\.r'\]"),
        (
            replace(PASSED, reports={"0.r": torch.ones(2)}),
            r"'0\.r' is a torch\.float32 \[2\]; expected one real number",
        ),
        (replace(PASSED, reports={"0.r": torch.full((1,), 1e13)}), r"'0\.r' has numbers up to 1e\+13"),
        (replace(PASSED, bits=None), "does not say how many bits"),
        (replace(PASSED, bits=torch.ones(2)), "does not say how many bits"),
        (replace(PASSED, bits=torch.tensor([-1.0])), "takes -1 bits; expected 0 to"),
        (replace(PASSED, bits=torch.tensor([1e9])), r"takes 1e\+09 bits; expected 0 to"),
        (replace(PASSED, bits=torch.tensor([torch.nan])), "takes nan bits; expected 0 to"),
        (
            replace(PASSED, update=replace(PASSED.update, dc=torch.full((1, 3), 3.0))),
            "has the norm .*, above 4, to which",
        ),
        (replace(PASSED, buffers=torch.full((1, 2), 3.0)), "has the norm .*, above 4, to which the channel clips"),
    ],
)
def test_lies_about_a_channel_are_named(answer, why):
    with pytest.raises(ValueError, match=why):
        raise ValueError(AnswerChecks().objection(answer, REQUEST, CHANNEL, [7]))


@pytest.mark.parametrize(
    ("value", "passes"), [(-0.5, True), (0.5, True), (torch.nan, True), (0.4, False), (1e6, False)]
)
def test_a_report_that_may_have_few_values_has_one_of_them(value, passes):
    expected = replace(CHANNEL, reports={"0.r": (-0.5, 0.5)})
    found = AnswerChecks().objection(replace(PASSED, reports={"0.r": torch.tensor([value])}), REQUEST, expected, [7])
    assert found == (None if passes else f"'0.r' is {value:g}; expected -0.5 or 0.5")


def test_without_a_channel_nothing_is_reported():
    assert "passes through no channel" in objection(replace(RIGHT, bits=torch.ones(1)))
    assert "to a channel" in objection(replace(RIGHT, reports={"0.r": torch.ones(1)}))


def with_update(dz):
    return replace(RIGHT, update=replace(RIGHT.update, dz=dz))


def test_a_right_answer_passes():
    assert objection(RIGHT) is None
    assert objection(replace(RIGHT, tally={}, evaluated=None)) is None


def test_numbers_that_are_not_finite_are_the_server_s_to_leave_out():
    assert objection(with_update(torch.tensor([[torch.nan, torch.inf, 1.0]]))) is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (replace(RIGHT, stamp=Stamp(3, 1)), "it answers phase 2 of round 4"),
        (replace(RIGHT, client_ids=[8]), "not asked for this client"),
        (replace(RIGHT, client_ids=[6, 7]), "of 2 clients; expected one"),
        (replace(RIGHT, update=Point(torch.ones(1, 3))), "its update is a Point; expected a Upload"),
        (replace(RIGHT, update=None), "is a NoneType"),
        (with_update(None), r"it sends \['buffers', 'dc'\]"),
        (with_update(torch.ones(1, 30)), r"'dz' is torch.float32 \[1, 30\]; expected torch.float32 \[1, 3\]"),
        (with_update(torch.ones(3)), r"'dz' is torch.float32 \[3\]"),
        (with_update(torch.ones(1, 3).double()), r"'dz' is torch.float64"),
        (with_update(torch.tensor([[0.0, torch.nan, -1e30]])), "'dz' has numbers up to 1e\\+30, above 1e\\+12"),
        (replace(RIGHT, buffers=torch.full((1, 2), 1e13)), "'buffers' has numbers up to 1e\\+13"),
        (replace(RIGHT, metrics={}), r"it logs \[\]; expected \['drift'\]"),
        (replace(RIGHT, per_client=("drift",)), "it logs"),
        (replace(RIGHT, tally={"train_loss": torch.ones(2)}), r"'train_loss' is a torch.float32 \[2\]"),
        (replace(RIGHT, evaluated=torch.ones(2) > 0), "'evaluated' is a torch.bool"),
        (replace(RIGHT, sound=torch.ones(1)), "'sound' is a torch.float32"),
        (replace(RIGHT, sound=torch.tensor([-4])), "'sound' is a torch.int64"),
        (replace(RIGHT, evaluated=torch.tensor([10**12])), "'evaluated' is a torch.int64"),
        (replace(RIGHT, metrics={"drift": torch.tensor([1e30])}), r"'drift' has numbers up to 1e\+30"),
        (replace(RIGHT, tally={"train_loss": torch.tensor([1e30])}), r"'train_loss' has numbers up to 1e\+30"),
        (replace(RIGHT, tally={"clients": torch.ones(1)}), "logs 'clients' of its objective; .* begin with 'train_'"),
        (replace(RIGHT, per_client=("drift",)), r"logs \['drift'\] client by client; expected \[\]"),
    ],
)
def test_wrong_answers_are_named(answer, why):
    found = objection(answer)
    assert found is not None
    with pytest.raises(ValueError, match=why):
        raise ValueError(found)


@pytest.mark.parametrize(
    ("dz", "squared", "why"),
    [
        ([3.0, 4.0], 25.0, None),
        ([3.0, 4.0], 25.001, None),
        ([0.0, 0.0], 0.0, None),
        ([torch.nan, 4.0], 1e6, None),
        ([3.0, 4.0], torch.inf, None),
        ([3.0, 4.0], 1e6, "'squared' is 1e+06; the squared norm of 'dz' is 25"),
        ([3.0, 4.0], -25.0, "'squared' is -25; the squared norm of 'dz' is 25"),
        ([0.0, 0.0], 1e-6, "'squared' is 1e-06; the squared norm of 'dz' is 0"),
    ],
)
def test_a_squared_norm_is_that_of_what_is_sent(dz, squared, why):
    """By a larger one, FedExP's server would go as far beyond the mean move as one node likes."""
    expected = replace(EXPECTED, update=fed_exp.Upload(torch.zeros(1, 2), torch.zeros(1)))
    sent = replace(RIGHT, update=fed_exp.Upload(torch.tensor([dz]), torch.tensor([squared])))
    assert AnswerChecks().objection(sent, REQUEST, expected, [7]) == why


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_squared_norm_may_be_computed_in_few_digits(dtype):
    dz = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0)).to(dtype) / 5000
    expected = replace(EXPECTED, update=fed_exp.Upload(torch.zeros_like(dz), dz.new_zeros(1)))
    sent = replace(RIGHT, update=fed_exp.Upload(dz, dz.square().sum(1)))
    assert AnswerChecks().objection(sent, REQUEST, expected, [7]) is None


@pytest.mark.parametrize(
    ("value", "largest"),
    [
        (torch.tensor([1.0, -9e12]), "9e+12"),
        (torch.tensor([torch.nan, -9e12]), "9e+12"),
        (torch.tensor([-torch.inf, 9e12, torch.inf]), "9e+12"),
        (torch.tensor([5 * 10**12]), "5e+12"),
        (torch.tensor([2.0**50], dtype=torch.bfloat16), "1e+15"),
        (torch.tensor([torch.nan, torch.inf]), None),
        (torch.tensor([True, False]), None),
        (torch.zeros(0, 3), None),
        (torch.tensor([-128], dtype=torch.int8), None),
    ],
)
def test_the_largest_finite_number_is_found_among_all_kinds(value, largest):
    expected = [] if largest is None else [f"'w' has numbers up to {largest}, above 1e+12"]
    assert list(AnswerChecks().too_large({"w": value})) == expected


@dataclass(frozen=True)
class Counted:
    """An update with a number and a flag beside its tensor."""

    w: torch.Tensor
    steps: float = 3.0
    complete: bool | None = None


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"steps": 5.0}, None),
        ({"steps": None}, "'steps' is a NoneType; expected a float"),
        ({"steps": True}, "'steps' is a bool; expected a float"),
        ({"steps": 1e30}, r"'steps' is 1e\+30, above 1e\+12"),
        ({"steps": float("nan")}, "'steps' is nan, above"),
        ({"complete": True}, "'complete' is a bool; expected a NoneType"),
    ],
)
def test_plain_values_of_an_update_are_compared_too(changed, why):
    expected = replace(EXPECTED, update=Counted(torch.zeros(1, 3)))
    answer = replace(RIGHT, update=Counted(torch.ones(1, 3), **changed))
    found = AnswerChecks().objection(answer, REQUEST, expected, [6, 7])
    assert (found is None) if why is None else re.search(why, found)


def test_the_limit_is_the_user_s():
    assert objection(with_update(torch.full((1, 3), 5.0)), largest=4.0) is not None
    assert objection(with_update(torch.full((1, 3), 1e30)), largest=1e31) is None
    with pytest.raises(ValueError, match="largest=0: expected a number above 0"):
        AnswerChecks(largest=0)
