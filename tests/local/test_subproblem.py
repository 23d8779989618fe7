"""Subproblems: conditioning by block."""

from __future__ import annotations

import torch

from fedlightning.local import Subproblem


def test_relative_decrease_takes_the_worst_block():
    problem = Subproblem(torch.zeros(2), weight=torch.tensor([5.0, 50.0]), smoothness=1.0)
    least, most = problem.conditioning(like=torch.zeros(1))
    assert (float(least), float(most)) == (4.0, 51.0)
    own = Subproblem(torch.zeros(2), weight=torch.tensor([[5.0], [10.0]]))
    assert [t.tolist() for t in own.conditioning(like=torch.zeros(1))] == [[4.0, 8.0], [6.0, 12.0]]
