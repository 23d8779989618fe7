"""Nodes that fall silent are named once; nodes that fail are counted."""

from __future__ import annotations

import warnings

import pytest

from fedlightning.federation.remote.silence import NodeError, Silence


def said(call, *arguments):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments)
    return [str(each.message) for each in caught]


def test_a_silent_node_is_named_when_its_silence_begins():
    silence = Silence()
    first = said(silence.begin, 7, "node a (client 3)", "Round 2, phase 1", "Node Unavailable")
    assert first == [
        "Round 2, phase 1: node a (client 3) did not answer: Node Unavailable. It is named again once it has answered "
        "in between."
    ]
    assert said(silence.begin, 7, "node a", "Round 3, phase 1", "Node Unavailable") == []
    silence.end(7)
    assert len(said(silence.begin, 7, "node a", "Round 5, phase 1", "Node Unavailable")) == 1


def test_a_node_that_fails_again_and_again_stops_the_run():
    silence = Silence(tolerance=2)
    for _ in range(3):
        assert len(said(silence.begin, 7, "node a", "Round 1", "ValueError: no", True)) == 1
        silence.end(7)
    said(silence.begin, 7, "node a", "Round 4", "ValueError: no", True)
    said(silence.begin, 8, "node b", "Round 4", "ValueError: no", True)
    with pytest.raises(
        NodeError, match=r"Round 5: node a has failed 2 times in a row: ValueError: no\. Mend the cause"
    ):
        silence.begin(7, "node a", "Round 5", "ValueError: no", True)


def test_a_tolerance_is_at_least_one():
    with pytest.raises(ValueError, match="tolerance=0: expected a number of errors from 1 on"):
        Silence(tolerance=0)
