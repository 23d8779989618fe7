"""Replies are pulled side by side, so that one that never gets whole holds up few others."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event, Lock
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.flower.pull import Pulls


@dataclass
class Reply:
    """What a link answers: a reply, or that it has none any more."""

    number: str
    code: int = 0

    @property
    def metadata(self):
        return SimpleNamespace(reply_to_message_id=self.number)

    @property
    def error(self):
        return SimpleNamespace(code=self.code)

    def has_error(self):
        return bool(self.code)


class Grid:
    """Hands each reply out once, as the link does; some do not get whole until they are released.

    Attributes:
        absent: Numbers of messages that have no reply yet.
    """

    def __init__(self, *stalled, error=None, absent=()):
        self.stalled, self.error, self.released, self.asked = set(stalled), error, Event(), []
        self.absent, self._handed_out, self._lock = set(absent), set(), Lock()

    def pull_messages(self, numbers):
        self.asked.append(list(numbers))
        with self._lock:
            gone = [Reply(number, 3) for number in numbers if number in self._handed_out]
            there = [number for number in numbers if number not in self._handed_out | self.absent]
            self._handed_out |= set(there)
        if self.stalled & set(there):
            self.released.wait(60)
        if self.error is not None:
            raise self.error
        return gone + [Reply(number) for number in there]


def pulled(pulls, waiting):
    """The numbers of the replies that are there, which nobody waits for any more."""
    found = list(pulls.replies(waiting, 60.0))
    assert not any(each.has_error() for each in found)
    numbers = [each.number for each in found]
    waiting -= set(numbers)
    return numbers


def test_a_few_messages_are_each_asked_for_alone():
    grid = Grid()
    assert pulled(Pulls(grid, ["1", "2", "3"]), {"1", "3"}) == ["1", "3"]
    assert grid.asked == [["1"], ["3"]]
    assert list(Pulls(grid, []).replies([], 60.0)) == []


def test_many_messages_are_asked_for_in_eight_groups():
    grid, numbers = Grid(), [str(number) for number in range(20)]
    assert sorted(pulled(Pulls(grid, numbers), set(numbers))) == sorted(numbers)
    assert grid.asked[:5] == [["0", "8", "16"], ["1", "9", "17"], ["2", "10", "18"], ["3", "11", "19"], ["4", "12"]]
    assert len(grid.asked) == 8


def test_a_reply_that_is_not_whole_is_asked_for_once_and_comes_later():
    grid = Grid("1")
    pulls, waiting = Pulls(grid, ["1", "2"], patience=0.1), {"1", "2"}
    assert pulled(pulls, waiting) == ["2"]
    assert pulled(pulls, waiting) == []
    assert grid.asked == [["1"], ["2"]]
    grid.released.set()
    found = []
    while not found:
        found = pulled(pulls, waiting)
    assert found == ["1"]
    assert len(grid.asked) == 2


def test_a_reply_that_is_not_whole_does_not_hold_up_later_ones_of_its_group():
    """Of the group of 0, 8 and 16, the first stalls while 16 has its answer and 8 has none yet."""
    numbers = [str(number) for number in range(20)]
    grid = Grid("0", absent={"8"})
    pulls, waiting = Pulls(grid, numbers, patience=0.1), set(numbers)
    assert set(pulled(pulls, waiting)) == set(numbers) - {"0", "8", "16"}
    assert pulled(pulls, waiting) == []
    grid.absent.clear()
    assert pulled(pulls, waiting) == ["8"]
    asked = len(grid.asked)
    assert pulled(pulls, waiting) == []
    assert len(grid.asked) == asked  # both are held by the request that stalls
    grid.released.set()
    found = []
    while not found:
        found = pulled(pulls, waiting)
    assert found == ["0", "16"]
    assert waiting == set()


def test_a_reply_that_is_gone_is_told():
    grid = Grid()
    grid.pull_messages(["2"])  # it went elsewhere
    found = list(Pulls(grid, ["2"]).replies({"2"}, 60.0))
    assert [(each.number, each.code) for each in found] == [("2", 3)]


def test_nobody_waits_when_no_time_is_left():
    grid = Grid("1")
    assert list(Pulls(grid, ["1"]).replies(["1"], -1.0)) == []
    grid.released.set()


def test_errors_of_flower_s_are_those_of_the_caller():
    with pytest.raises(ConnectionError, match="gone"):
        list(Pulls(Grid(error=ConnectionError("gone")), ["1"]).replies(["1"], 60.0))
