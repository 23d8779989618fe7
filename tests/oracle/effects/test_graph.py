"""The graph behind a loss shows what the user has written, and what runs once more."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from fedlightning.oracle.effects.graph import has_own_functions, is_checkpointed


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


X = torch.ones(3, requires_grad=True)


@pytest.mark.parametrize(
    ("loss", "own", "checkpointed"),
    [
        (X.detach().sum(), False, False),
        ((X.exp() * X).sum(), False, False),
        (Twice.apply(X.exp()).sum(), True, False),
        (checkpoint(torch.exp, 2 * X, use_reentrant=True).sum(), True, True),
        (checkpoint(torch.exp, 2 * X, use_reentrant=False).sum(), False, False),
    ],
)
def test_functions_of_the_users_and_reentrant_checkpoints_are_found(loss, own, checkpointed):
    assert (has_own_functions(loss), is_checkpointed(loss)) == (own, checkpointed)
