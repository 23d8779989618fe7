"""Stopping rules compare what they say."""

from __future__ import annotations

import pytest
import torch

from fedlightning.local import DecreasingTolerance, FixedSteps, GradientTolerance, RelativeDecrease, Subproblem


def test_rules_compare_what_they_say():
    squared, first = torch.tensor([1.0, 0.01, 0.0]), torch.tensor([2.0, 2.0, 0.0])
    problem = Subproblem(torch.zeros(2), weight=5.0, smoothness=1.0)
    assert GradientTolerance(0.01).done(problem, squared, first).tolist() == [False, True, True]
    assert not FixedSteps().done(problem, squared, first).any()
    # (5 - 1)^2 / (5 + 1)^2 = 4 / 9: of the start's 2, r = 0.0113 leaves 0.01004 and r = 0.0112 leaves 0.00996
    assert RelativeDecrease(0.0113).done(problem, squared, first).tolist() == [False, True, True]
    assert RelativeDecrease(0.0112).done(problem, squared, first).tolist() == [False, False, True]
    tiny = torch.full((3,), 1e-34, dtype=torch.float64)
    assert not RelativeDecrease(0.5).done(problem, tiny, tiny).any()
    rounded = Subproblem(torch.ones(2, dtype=torch.float64), weight=5.0)
    assert RelativeDecrease(0.5).done(rounded, tiny, tiny).all()
    turns = torch.tensor([0.0, 1.0, 2.0])
    late = Subproblem(torch.zeros(2), weight=5.0, turn=turns)
    assert DecreasingTolerance(1.0, 0.5).done(late, torch.tensor([1.0, 0.6, 0.25]), first).tolist() == [
        True,
        False,
        True,
    ]


def test_relative_decrease_wants_a_convex_subproblem():
    problem = Subproblem(torch.zeros(2), weight=1.0, smoothness=2.0)
    with pytest.raises(ValueError, match=r"weight - L_i is -1.*Raise the penalty"):
        RelativeDecrease(0.1).done(problem, torch.ones(1), torch.ones(1))


def test_a_tolerance_that_tightens_wants_turns():
    problem = Subproblem(torch.zeros(2), weight=1.0)
    with pytest.raises(ValueError, match=r"counts none.*GradientTolerance\(Exponential\(eps, gamma=nu\)\)"):
        DecreasingTolerance(1.0, 0.5).done(problem, torch.ones(1), torch.ones(1))
