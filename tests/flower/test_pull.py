"""Replies are pulled side by side, so that one that never gets whole holds up few others."""

from __future__ import annotations

from threading import Event

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.flower.pull import Pulls


class Grid:
    """Has a reply to every message, of which some are not whole until they are released."""

    def __init__(self, *stalled, error=None):
        self.stalled, self.error, self.released, self.asked = set(stalled), error, Event(), []

    def pull_messages(self, numbers):
        self.asked.append(list(numbers))
        if self.stalled & set(numbers):
            self.released.wait(60)
        if self.error is not None:
            raise self.error
        return [f"reply to {number}" for number in numbers]


def test_a_few_messages_are_each_asked_for_alone():
    grid = Grid()
    assert list(Pulls(grid, ["1", "2", "3"]).replies(["1", "3"], 60.0)) == ["reply to 1", "reply to 3"]
    assert grid.asked == [["1"], ["3"]]
    assert list(Pulls(grid, []).replies([], 60.0)) == []


def test_many_messages_are_asked_for_in_eight_groups():
    grid, numbers = Grid(), [str(number) for number in range(20)]
    assert sorted(Pulls(grid, numbers).replies(numbers, 60.0)) == sorted(f"reply to {number}" for number in numbers)
    assert grid.asked[:5] == [["0", "8", "16"], ["1", "9", "17"], ["2", "10", "18"], ["3", "11", "19"], ["4", "12"]]
    assert len(grid.asked) == 8


def test_a_reply_that_is_not_whole_is_asked_for_once_and_comes_later():
    grid = Grid("1")
    pulls, waiting = Pulls(grid, ["1", "2"], patience=0.1), {"1", "2"}
    assert list(pulls.replies(waiting, 60.0)) == ["reply to 2"]
    waiting.remove("2")
    assert list(pulls.replies(waiting, 60.0)) == []
    assert grid.asked == [["1"], ["2"]]
    grid.released.set()
    found = []
    while not found:
        found += pulls.replies(waiting, 60.0)
    assert found == ["reply to 1"]
    assert len(grid.asked) == 2


def test_nobody_waits_when_no_time_is_left():
    grid = Grid("1")
    assert list(Pulls(grid, ["1"]).replies(["1"], -1.0)) == []
    grid.released.set()


def test_errors_of_flower_s_are_those_of_the_caller():
    with pytest.raises(ConnectionError, match="gone"):
        list(Pulls(Grid(error=ConnectionError("gone")), ["1"]).replies(["1"], 60.0))
