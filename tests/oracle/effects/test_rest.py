"""Parameters with and without a gradient, by evaluation."""

from __future__ import annotations

import torch

from fedlightning.oracle.effects.rest import Rest


def test_a_parameter_may_have_a_gradient_in_some_evaluations():
    rest = Rest()
    rest.note(["a", "b"], [torch.ones(1), None])
    assert (rest.having, rest.without) == ({"a"}, {"b"})
    rest.note(["b"], [torch.zeros(1)])  # a gradient of zero is one
    assert (rest.having, rest.without) == ({"a", "b"}, {"b"})
    other = Rest()
    other.include(rest)
    rest.forget()
    assert (other.having, other.without) == ({"a", "b"}, {"b"})
    assert not rest.having | rest.without


def test_it_tells_which_gradients_nobody_has_expected_to_be_missing():
    rest = Rest()
    assert not rest.note(["a", "b"], [torch.ones(1)] * 2)
    assert rest.note(["a", "b"], [torch.ones(1), None]) == {"b"}
    rest.accept({"b"})
    rest.forget()
    assert not rest.note(["a", "b"], [torch.ones(1), None])
    assert rest.note(["a", "b"], [None, None]) == {"a"}
