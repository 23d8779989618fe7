"""Names of logged values: the first says them, and most are right."""

from __future__ import annotations

from fedlightning.federation.remote.logged_names import LoggedNames


def test_the_first_answer_says_the_names():
    names = LoggedNames()
    names.begin(0)
    assert names.names is None
    assert [names.fit(each) for each in (["b", "a"], ["a", "b"], [], ["a"], ["a", "b", "c"])] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert names.names == ["a", "b"]


def test_one_wrong_answer_rules_for_a_round_at_most():
    names = LoggedNames()
    names.begin(0)
    assert [names.fit(each) for each in (["x"], ["a"], ["a"])] == [True, False, False]
    names.begin(0)
    assert [names.fit(each) for each in (["x"], ["a"], ["a"])] == [False, True, True]


def test_phases_may_log_different_values():
    names = LoggedNames()
    for phase, logged in ((0, ["a"]), (1, ["b"]), (0, ["a"]), (1, ["b"])):
        names.begin(phase)
        assert names.fit(logged)
