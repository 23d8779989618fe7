"""Features are shared out between two heads, by what one of them looks for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlightning.models import ConditionalPolicy
from fedlightning.models.conditional_policy import head_context


def test_the_shares_of_both_heads_sum_to_the_features():
    policy, features = ConditionalPolicy(4), torch.randn(3, 4)
    own, common = policy(features, torch.randn(4))
    torch.testing.assert_close(own + common, features)
    assert (own / features).min() > 0
    assert (own / features).max() < 1


def test_only_the_direction_of_the_context_counts():
    policy, features, context = ConditionalPolicy(4), torch.randn(3, 4), torch.randn(4)
    torch.testing.assert_close(policy(features, context), policy(features, 7 * context))
    assert not torch.allclose(policy(features, context)[0], policy(features, -context)[0])


def test_the_context_of_a_head_is_the_gradient_of_its_summed_logits():
    """Through linear layers alone; that is the sum over classes of the product of their weights."""
    head = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    features = torch.zeros(4, requires_grad=True)
    head(features).sum().backward()
    context = head_context(head)
    torch.testing.assert_close(context, features.grad)
    assert not context.requires_grad


def test_a_head_without_linear_layers_is_refused():
    with pytest.raises(ValueError, match=r"ReLU has no nn\.Linear, so it says nothing of its features"):
        head_context(nn.ReLU())
