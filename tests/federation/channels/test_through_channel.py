"""What the server receives through a channel, by closed forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedlightning.algorithms import FedAvg, count, over_all_clients, relative_to
from fedlightning.algorithms.base import from_each_client
from fedlightning.channel import Channel, Clip, FixedPoint, Mean, Release
from fedlightning.federation.channels.through_channel import ThroughChannel
from fedlightning.federation.processes import OneProcess
from fedlightning.federation.protocol import Answer, Request, Roster, Stamp
from fedlightning.federation.terms import Terms
from tests.support.transforms import Middle

Z = torch.tensor([1.0, 2.0])
MOVES = torch.tensor([[2.0, 0.0], [4.0, 0.0], [9.0, 3.0]])


@dataclass(frozen=True)
class Message:
    z: Tensor


@dataclass(frozen=True)
class Up:
    w: Tensor = relative_to("z")
    c: Tensor = over_all_clients()
    steps: Tensor = count()


@dataclass(frozen=True)
class Own:
    w: Any = from_each_client(relative_to="z")


@dataclass(frozen=True)
class Seen(Release):
    """Adds one, and writes down what it was told."""

    told: list

    def apply(self, values, aggregated):
        self.told.append(aggregated)
        return {name: value + 1 for name, value in values.items()}


def received(channel, update=None, by_samples=False, buffers=None, expected=None, **answer):
    """What comes of three of ten clients' updates, of whom four were asked."""
    buffers = torch.empty(3, 0) if buffers is None else buffers
    request = Request(Stamp(0, 0), 3, Message(Z), Z, torch.zeros(buffers.shape[1]), terms=Terms(4, 10, {}, expected))
    cohort = ThroughChannel(Roster(torch.arange(1, 11)), by_samples, request, channel, FedAvg(0.1))
    update = Up(MOVES, torch.tensor([1.0, 2.0, 3.0]), torch.full((3,), 5.0)) if update is None else update
    cohort.add(Answer(Stamp(0, 0), [0, 1, 2], update, buffers, bits=torch.full((3,), 7.0).double(), **answer))
    cohort.gather(OneProcess(), torch.device("cpu"))
    return cohort


def test_the_mean_of_differences_is_added_to_what_the_server_knows():
    cohort = received(Channel(client=[Clip(1.0)]))
    update = cohort.update()
    torch.testing.assert_close(update.w, Z + torch.tensor([5.0, 1.0]))
    torch.testing.assert_close(update.c, torch.tensor(0.6))
    assert (float(update.steps), cohort.bits, cohort.buffers()) == (5.0, 21.0, None)


def test_weights_count_where_nothing_presupposes_that_clients_are_alike():
    update = received(Channel(client=[Clip(1.0)]), by_samples=True).update()
    torch.testing.assert_close(update.w, Z + (MOVES * torch.tensor([[1.0], [2.0], [3.0]])).sum(0) / 6)


def test_aggregates_stand_in_for_means_and_sums():
    update = received(Channel(aggregate=Middle()), buffers=torch.tensor([[1.0], [2.0], [5.0]])).update()
    torch.testing.assert_close(update.w, Z + torch.tensor([5.5, 1.5]))
    torch.testing.assert_close(update.c, torch.tensor(2.0 * 3 / 10))


def test_counts_are_aggregated_by_their_median():
    update = received(Channel(aggregate=Middle()), Up(MOVES, MOVES[:, 0], torch.tensor([5.0, 1e9, 6.0]))).update()
    assert float(update.steps) == 6.0


@pytest.mark.parametrize(("expected", "divisor"), [(None, 4.0), (2.5, 2.5)])
def test_under_noise_sums_are_divided_by_what_is_public(expected, divisor):
    told = []
    channel = Channel(client=[Clip(2.0)], server=[Seen(told), Seen(told)])
    cohort = received(channel, expected=expected, sound=torch.tensor([True, True, False]), reports={"r": torch.ones(3)})
    update = cohort.update()
    torch.testing.assert_close(update.w, Z + torch.tensor([6.0, 0.0]) / divisor + 2)  # the third is left out
    torch.testing.assert_close(update.c, torch.tensor(0.3 + 2))
    assert float(update.steps) == 5.0
    assert float(cohort.reports()["r"]) == pytest.approx(2 / divisor)
    first, second = told
    assert (first.bound, first.divisors) == (2.0, {"w": divisor, "c": 10.0})
    assert first.purpose != second.purpose
    assert first.exchange.accumulated == {"c"}


@pytest.mark.parametrize("rule", [None, Mean(), FixedPoint(50, 10.0, 3)], ids=["none", "mean", "masked sum"])
@pytest.mark.parametrize(("expected", "divisor"), [(None, 4.0), (2.5, 2.5)])
def test_under_noise_a_rule_that_is_a_mean_changes_nothing(rule, expected, divisor):
    channel = Channel(client=[Clip(2.0)], aggregate=rule, server=[Seen([])])
    cohort = received(channel, expected=expected, sound=torch.tensor([True, True, False]), reports={"r": torch.ones(3)})
    update = cohort.update()
    torch.testing.assert_close(update.w, Z + torch.tensor([6.0, 0.0]) / divisor + 1)
    torch.testing.assert_close(update.c, torch.tensor(0.3 + 1))
    assert float(cohort.reports()["r"]) == pytest.approx(2 / divisor)


@pytest.mark.parametrize("rule", [Mean(), FixedPoint(50, 10.0, 3)], ids=["mean", "masked sum"])
def test_weights_count_where_the_rule_is_a_mean(rule):
    update = received(Channel(aggregate=rule), by_samples=True).update()
    torch.testing.assert_close(update.w, Z + (MOVES * torch.tensor([[1.0], [2.0], [3.0]])).sum(0) / 6)
    torch.testing.assert_close(update.c, torch.tensor((1.0 + 4.0 + 9.0) / 55))


def test_what_a_rule_returns_is_not_scaled_by_who_counts():
    channel, all_but_one = Channel(aggregate=Middle(), server=[Seen([])]), torch.tensor([True, True, False])
    update = received(channel, sound=all_but_one).update()  # two of four that were asked
    torch.testing.assert_close(update.w, Z + (MOVES[0] + MOVES[1]) / 2 + 1)


def test_reports_are_means_without_noise():
    cohort = received(Channel(), reports={"r": torch.tensor([1.0, 2.0, 6.0])})
    assert float(cohort.reports()["r"]) == 3.0


def test_a_report_that_is_not_finite_leaves_its_client_out():
    cohort = received(Channel(), reports={"r": torch.tensor([1.0, 3.0, torch.nan])})
    assert cohort.left_out == [2]
    assert float(cohort.reports()["r"]) == 2.0


def test_buffers_are_released_with_the_rest():
    cohort = received(Channel(server=[Seen([])]), buffers=torch.tensor([[4.0], [0.0], [0.0]]))
    cohort.update()
    assert cohort.buffers().tolist() == [2.0]


def test_counts_that_differ_are_refused_under_noise():
    cohort = received(Channel(server=[Seen([])]), Up(MOVES, MOVES[:, 0], torch.tensor([5.0, 5.0, 6.0])))
    with pytest.raises(ValueError, match=r"sent 'steps' from 5 to 6, .*without noise.*local_steps"):
        cohort.update()


def test_fields_of_single_clients_pass_transforms_alone():
    update = received(Channel(client=[Clip(1.0)]), Own(MOVES), by_samples=True).update()
    torch.testing.assert_close(update.w.values, Z + MOVES)
    weights = torch.tensor([[1.0], [2.0], [3.0]])
    torch.testing.assert_close(update.w.default, ((Z + MOVES) * weights).sum(0) / 6)
    for channel in (Channel(aggregate=Middle()), Channel(server=[Seen([])])):
        with pytest.raises(ValueError, match=r"FedAvg lets the server receive 'w' of every client by itself"):
            received(channel, Own(MOVES))


def test_an_exchange_in_which_nothing_is_sent_has_not_passed():
    request = Request(Stamp(0, 0), 3, Message(Z), Z, Z[:0], terms=Terms(4, 10))
    cohort = ThroughChannel(Roster(torch.ones(10)), False, request, Channel(), FedAvg(0.1))
    assert not cohort.passed
    cohort.add(Answer(Stamp(0, 0), [0], None, torch.empty(1, 0)))
    assert (cohort.passed, cohort.update()) == (False, None)
    assert received(Channel()).passed
