"""psi over a model's flat vector: blocks, prefixes, matrices, errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.proximal import L1, Composite, GroupLasso, L2Ball, Nuclear, Simplex, SquaredL2, compose


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)
        self.head = nn.Linear(4, 5)
        self.attack = nn.Parameter(torch.randn(2, 2))


def layout(max_parameters=("attack",)):
    torch.manual_seed(0)
    return ParameterSpace(Net().double(), max_parameters).shared


def vector(space, clients=()):
    return torch.randn(*clients, space.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_nothing_leaves_points_as_they_are():
    space = layout()
    psi, z = compose(space, None, None), vector(space)
    assert not psi
    for same in (psi.prox(z, 0.3), psi.project(z), psi.to_dual(z), psi.from_dual(z, 0.3)):
        assert torch.equal(same, z)
        assert same.data_ptr() != z.data_ptr()
    assert psi.value(z) == 0
    assert not psi.subgradient(z).any()


def test_blocks_have_their_own():
    space = layout()
    z = vector(space, (3,))
    psi = compose(space, L1(0.5), L2Ball(0.1))
    x, y = space.blocks(z)
    expected = torch.cat([L1(0.5).prox(x, 0.7), L2Ball(0.1).prox(y, 0.7)], dim=1)
    torch.testing.assert_close(psi.prox(z, 0.7), expected)
    assert len(psi.terms) == 2  # a sum over elements needs no term a tensor


def test_prefixes_pick_tensors_and_the_longest_wins():
    space = layout()
    z = vector(space)
    psi = compose(space, {"head": L1(0.5), "head.weight": Nuclear(0.4), "conv.weight": GroupLasso(0.3)}, None)
    before, after = space.views(z), space.views(psi.prox(z, 0.7))
    torch.testing.assert_close(after["head.weight"], Nuclear(0.4).prox(before["head.weight"], 0.7))
    torch.testing.assert_close(after["head.bias"], L1(0.5).prox(before["head.bias"], 0.7))
    flat = before["conv.weight"].flatten(1)
    torch.testing.assert_close(after["conv.weight"].flatten(1), GroupLasso(0.3).prox(flat, 0.7))
    assert torch.equal(after["conv.bias"], before["conv.bias"])
    assert torch.equal(after["attack"], before["attack"])
    value = Nuclear(0.4).value(before["head.weight"]) + L1(0.5).value(before["head.bias"])
    torch.testing.assert_close(psi.value(z), value + GroupLasso(0.3).value(flat))


def test_step_sizes_by_block():
    space = layout()
    z = vector(space)
    t = torch.cat([torch.full((space.min_dim,), 0.7), torch.full((space.dim - space.min_dim,), 0.2)]).double()
    psi = compose(space, {"head.weight": Nuclear(0.4), "conv": L1(0.5)}, L1(0.3))
    before, after = space.views(z), space.views(psi.prox(z, t))
    torch.testing.assert_close(after["head.weight"], Nuclear(0.4).prox(before["head.weight"], 0.7))
    torch.testing.assert_close(after["attack"], L1(0.3).prox(before["attack"], 0.2))


def test_batches_and_weights_agree():
    space = layout()
    psi = compose(space, {"head.weight": Nuclear(0.4) + SquaredL2(0.1), "conv": L1(0.5)}, L1(0.3, radius=1.0))
    z = vector(space, (4,))
    torch.testing.assert_close(psi.prox(z, 0.7), torch.stack([psi.prox(row, torch.tensor(0.7)) for row in z]))


@pytest.mark.parametrize(
    ("arguments", "max_parameters", "message"),
    [
        ((Nuclear(0.1), None), ("attack",), r"Nuclear is a function of matrices.*'conv.bias' has shape \[3\]"),
        (
            ({"hed": L1(0.1)}, None),
            ("attack",),
            r"'hed' matches no trainable parameter. Did you mean 'head'",
        ),
        (({"attack": L1(0.1)}, None), ("attack",), r"regularizer: 'attack' is maximised: give it to max_regularizer"),
        ((None, {"head": L1(0.1)}), ("attack",), r"max_regularizer: 'head' is minimised: give it to regularizer"),
        ((None, L1(0.1)), (), r"max_regularizer: the task has no parameters in this block"),
    ],
)
def test_errors_name_the_prefix(arguments, max_parameters, message):
    with pytest.raises(ValueError, match=message):
        compose(layout(max_parameters), *arguments)


def test_personal_parameters_have_no_regulariser():
    space = ParameterSpace(Net(), personal_parameters=["head"])
    with pytest.raises(ValueError, match=r"'head' is personal: add its penalty in objective\(\)"):
        compose(space.shared, {"head": L1(0.1)}, None, personal=space.personal.names)


@pytest.mark.parametrize("wrong", [[L1(0.1)], L1, {"head": 0.1}])
def test_what_is_no_regulariser_is_refused(wrong):
    with pytest.raises(TypeError, match=r"is no regulariser\. Give one, e\.g\. L1\(0\.01\)"):
        compose(layout(), wrong, None)


def test_none_exempts_a_prefix():
    space = layout()
    psi = compose(space, {"default": L1(0.5), "head.bias": None}, None)
    before, after = space.views(vector(space)), space.views(psi.prox(vector(space), 1.0))
    torch.testing.assert_close(after["head.bias"], before["head.bias"])
    torch.testing.assert_close(after["head.weight"], L1(0.5).prox(before["head.weight"], 1.0))


def test_tensors_without_elements_are_skipped():
    net = nn.Linear(2, 1).double()
    net.none = nn.Parameter(torch.empty(0, dtype=torch.float64))
    space = ParameterSpace(net).shared
    psi, z = compose(space, Simplex(), None), vector(space)
    assert psi.prox(z, 1.0).sum() == pytest.approx(2)
    assert psi.value(psi.prox(z, 1.0)) == 0


def test_default_is_empty():
    assert Composite() == Composite(())
