"""Names of logged values: the first says them, and most are right."""

from __future__ import annotations

from fedlightning.federation.remote.logged_names import LoggedNames


def test_the_first_answer_says_the_names():
    names = LoggedNames()
    names.begin(0)
    assert names.names is None
    heard = (["b", "a"], ["a", "b"], [], ["a"], ["a", "b", "c"])
    assert [names.fit(each, client) for client, each in enumerate(heard)] == [
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
    assert [names.fit(each, client) for client, each in enumerate((["x"], ["a"], ["a"]))] == [True, False, False]
    names.begin(0)
    assert [names.fit(each, client) for client, each in enumerate((["x"], ["a"], ["a"]))] == [False, True, True]


def test_an_answer_that_comes_again_and_again_has_one_say():
    names = LoggedNames()
    names.begin(0)
    assert names.fit(["a"], 0)
    assert names.fit(["a"], 1)
    assert not any(names.fit(["x"], 2) for _ in range(100))
    names.begin(0)
    assert names.names == ["a"]


def test_phases_may_log_different_values():
    names = LoggedNames()
    for phase, logged in ((0, ["a"]), (1, ["b"]), (0, ["a"]), (1, ["b"])):
        names.begin(phase)
        assert names.fit(logged, 0)
