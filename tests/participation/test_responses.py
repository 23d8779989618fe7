"""Who answers, against what the rules promise, and federations in which many are silent."""

from __future__ import annotations

import random

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.data import RoundLoader
from fedlightning.participation import (
    Devices,
    FirstResponders,
    Recruitment,
    ResponseShare,
    Selection,
    Uniform,
)
from tests.support.federations import loop_for, quadratic, responders, run
from tests.support.small import trainer


def test_responses_follow_the_paper():
    rule = FirstResponders(size=16)
    selections = [rule.select(500, 0, t, 0) for t in range(400)]
    sizes = [len(selection.ids) for selection in selections]
    assert all(selection.num_contacted == 16 for selection in selections)
    assert min(sizes) == 9  # ceil of more than half of 16
    assert max(sizes) == 16
    assert abs(sum(sizes) / 400 - 12.5) < 0.5
    assert selections == [rule.select(500, 0, t, 0) for t in range(400)]
    assert rule.select(500, 0, 3, 0) != rule.select(500, 0, 3, 1)


def test_first_answers_count_and_late_ones_are_dropped():
    everyone = FirstResponders(size=10, responses=ResponseShare(1.0, 1.0))
    first = FirstResponders(size=10, responses=ResponseShare(1.0, 1.0), first=4)
    assert len(everyone.cohort(50, 0, 0, 0)) == 10
    assert len(first.cohort(50, 0, 0, 0)) == 4
    assert set(first.cohort(50, 0, 0, 0)) < set(everyone.cohort(50, 0, 0, 0))


def test_too_few_answers_are_asked_again_then_given_up():
    silent = ResponseShare(0.0, 0.0)
    assert FirstResponders(size=5, responses=silent, retries=2).select(50, 0, 0, 0) == Selection([], 15)
    rare = FirstResponders(size=4, responses=Devices(low=0.3, high=0.3), at_least=3, retries=400)
    selections = [rare.select(50, 0, t, 0) for t in range(50)]
    assert all(len(selection.ids) >= 3 for selection in selections)
    assert max(selection.num_contacted for selection in selections) > 8


def test_the_second_phase_may_ask_the_same_clients_again():
    rule = FirstResponders(size=6, responses=ResponseShare(0.5, 0.5), reinvite=False)
    everybody = FirstResponders(size=6, responses=ResponseShare(1.0, 1.0), reinvite=False)
    invited = {*everybody.cohort(100, 0, 4, 0)}
    assert invited == {*everybody.cohort(100, 0, 4, 1)}
    assert all({*rule.cohort(100, 0, 4, phase)} < invited for phase in (0, 1))
    assert any(rule.cohort(100, 0, t, 0) != rule.cohort(100, 0, t, 1) for t in range(20))
    assert {*everybody.cohort(100, 0, 5, 0)} != invited
    often = FirstResponders(size=6, responses=ResponseShare(0.0, 1.0), at_least=4, retries=9, reinvite=False)
    twice = [(often.select(100, 0, t, 0), often.select(100, 0, t, 1)) for t in range(200)]
    assert any(first.num_contacted > 6 for first, _ in twice)
    for first, second in twice:
        if second.num_contacted == 6:  # six invited, of whom at least four answer each time: two at least did both
            assert len({*first.ids} & {*second.ids}) >= 2


@pytest.mark.parametrize(("share", "invited", "count"), [(0.07, 100, 7), (0.28, 25, 7), (0.5, 5, 3), (0.01, 10, 1)])
def test_shares_are_rounded_up_exactly(share, invited, count):
    assert len(ResponseShare(share, share).arrivals(list(range(invited)), 0, random.Random(0))) == count


def answers(responses, round_index=0, num_clients=20_000):
    return responses.arrivals(list(range(num_clients)), round_index, random.Random(0))


def test_devices_have_their_own_availability():
    responses = Devices(low=0.2, high=0.8)
    counts = [0] * 40
    for t in range(500):
        for client in responses.arrivals(list(range(40)), t, random.Random(t)):
            counts[client] += 1
    assert min(counts) < 0.35 * 500
    assert max(counts) > 0.65 * 500
    assert abs(len(answers(responses)) / 20_000 - 0.5) < 0.02


def test_fast_devices_answer_first_and_slow_ones_miss_the_deadline():
    arrived = answers(Devices(low=1.0, high=1.0, spread=0.5, jitter=0.0))
    again = Devices(low=1.0, high=1.0, spread=0.5, jitter=0.0).arrivals(list(range(20_000)), 7, random.Random(5))
    assert arrived == again  # without jitter the order is the devices' own
    in_time = answers(Devices(low=1.0, high=1.0, spread=0.5, jitter=0.0, deadline=1.0))
    assert in_time == arrived[: len(in_time)]
    assert abs(len(in_time) / 20_000 - 0.5) < 0.02


def test_devices_keep_their_hours():
    responses = Devices(low=0.5, high=0.5, day=24, swing=1.0)
    morning, noon, next_morning = (set(answers(responses, t, 2000)) for t in (0, 12, 24))
    assert len(morning & next_morning) > 1.5 * len(morning & noon)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FirstResponders(size=3, at_least=4), "expected 1 <= at_least <= size"),
        (lambda: FirstResponders(size=3, first=1, at_least=2), "expected first >= at_least"),
        (lambda: FirstResponders(size=3, retries=-1), r"FirstResponders\(retries=-1\)"),
        (lambda: FirstResponders(size=9).check(8), r"FirstResponders\(size=9\): more are invited"),
        (lambda: ResponseShare(0.9, 0.1), "expected 0 <= low <= high <= 1"),
        (lambda: Devices(low=0.9, high=0.1), r"Devices\(low=0.9, high=0.1\)"),
        (lambda: Devices(spread=-1), r"Devices\(spread=-1"),
        (lambda: Devices(deadline=0), r"Devices\(deadline=0\)"),
        (lambda: Devices(day=1), r"Devices\(day=1\)"),
        (lambda: Devices(swing=2), r"Devices\(swing=2\)"),
    ],
)
def test_wrong_responders_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_most_invited_are_silent_and_training_goes_on(tmp_path):
    """70 % silence ends where a run with as many answers ends, within the spread over seeds."""
    ends = {}
    for share, size in ((0.3, 10), (1.0, 3)):
        distances = []
        for seed in range(4):
            task = quadratic(fl.CDMA_ONE(0.02), num_clients=30, heterogeneity=0.3)
            data = responders(size=size, responses=ResponseShare(share, share))
            data.seed = seed
            trainer(tmp_path, max_steps=40, precision="64-true").fit(task, data)
            assert task.traffic[0] == 40 * 2 * 3 * 8  # three answers in each of two phases
            distances.append((task.server_state.z - task.solution).norm())
        ends[share] = torch.stack(distances)
    gap = (ends[0.3].mean() - ends[1.0].mean()).abs()
    assert gap < ends[0.3].std() + ends[1.0].std()


def test_first_responders_resume_bitwise(tmp_path):
    algorithm = fl.CDMA_ADA(0.05)

    def loop_and_batches():

        data = responders(size=10)
        batches = [b.place(torch.device("cpu"), torch.float64) for b in RoundLoader(data, algorithm.phases)]
        return loop_for(quadratic(algorithm, num_clients=30)), batches[:6]

    whole, batches = loop_and_batches()
    trajectory = run(whole, batches)
    first, _ = loop_and_batches()
    run(first, batches[:3])
    second, _ = loop_and_batches()
    second.load_state_dict(first.state_dict())
    assert torch.equal(run(second, batches[3:]), trajectory[3:])


def test_where_clients_answer_for_themselves_the_cohort_is_invited_once():
    rule = Uniform(size=3)
    assert rule.recruit(9, 1, 2, 0) == Recruitment((rule.cohort(9, 1, 2, 0),))


@pytest.mark.parametrize("reinvite", [True, False])
def test_the_invitations_are_those_of_a_simulation_in_which_as_many_answer(reinvite):
    rule = FirstResponders(6, ResponseShare(0.0, 1.0), first=4, at_least=3, retries=2, reinvite=reinvite)
    for round_index in range(30):
        last = 0
        for phase in range(2):
            selection = rule.select(20, 1, round_index, phase)
            recruited = rule.recruit(20, 1, round_index, phase)
            assert (recruited.first, recruited.at_least) == (4, 3)
            assert recruited.continues == (phase == 1 and not reinvite)
            start = last if recruited.continues else 0
            cohorts = recruited.cohorts[start : start + 3]
            assert len(cohorts) == 3
            if not selection.ids:
                break
            place = selection.num_contacted // 6 - 1
            assert set(selection.ids) <= set(cohorts[place])
            last = place
