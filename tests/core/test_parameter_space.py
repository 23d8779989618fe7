"""Blocks of a model's parameters as flat vectors, and values by prefix."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlightning import FederatedLightningModule
from fedlightning.algorithms import FedAvg, FedMiD
from fedlightning.core.parameter_space import ParameterSpace, read, write
from fedlightning.oracle import Vectorized
from fedlightning.proximal import SquaredL2
from tests.support.small import Line, Personal, fitted


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 2)
        self.critic = nn.Linear(2, 1)
        self.critics = nn.Linear(1, 1, bias=False)
        self.head = nn.Linear(2, 2, bias=False)
        self.norm = nn.BatchNorm1d(2, affine=False)


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def space(net):
    return ParameterSpace(net, max_parameters=["critic"], personal_parameters=["head"])


def test_min_block_comes_first_and_prefixes_end_at_dots(space):
    assert space.shared.names == ("body.weight", "body.bias", "critics.weight", "critic.weight", "critic.bias")
    assert space.personal.names == ("head.weight",)
    assert (space.shared.dim, space.shared.min_dim, space.personal.dim) == (12, 9, 4)


def test_constants_are_in_no_block_of_any_architecture(net):
    space = ParameterSpace(net, ["critic"], ["head"], constants=["body.weight", "critic.bias", "absent"])
    for each in (space, space.of_active(net)):
        assert each.shared.names == ("body.bias", "critics.weight", "critic.weight")
        assert each.personal.names == ("head.weight",)
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_positions_are_sorted_by_what_comes_after_the_prefix(space):
    places = space.shared.positions("critic", "heads", torch.device("cpu"))
    assert list(places) == [".bias", ".weight"]
    assert places[".bias"].tolist() == [11]
    assert places[".weight"].tolist() == [[9, 10]]
    with pytest.raises(ValueError, match="heads: 'head' matches no trainable parameter"):
        space.shared.positions("head", "heads", torch.device("cpu"))


def test_views_share_memory_and_flatten_is_their_inverse(space):
    rows = torch.randn(4, 12)
    views = space.shared.views(rows)
    assert views["body.weight"].shape == (4, 2, 3)
    assert views["body.weight"].data_ptr() == rows.data_ptr()
    assert torch.equal(space.shared.flatten(views.values(), 4), rows)


def test_scalars_have_views():
    module = nn.Module()
    module.a = nn.Parameter(torch.tensor(2.0))
    layout = ParameterSpace(module).shared
    assert layout.views(torch.tensor([3.0]))["a"].shape == ()
    assert layout.views(torch.tensor([[3.0], [4.0]]))["a"].shape == (2,)


def test_operator_turns_the_sign_of_the_max_block(space):
    gradients = list(space.shared.views(torch.ones(2, 12)).values())
    operator = space.shared.flatten(space.shared.to_operator(gradients), 2)
    assert operator.tolist() == [[1.0] * 9 + [-1.0] * 3] * 2
    assert all(gradient.eq(1).all() for gradient in gradients)


def test_read_and_write_are_inverse(net, space):
    z = read(space.shared, net)
    write(space.shared, net, z + 1)
    torch.testing.assert_close(read(space.shared, net), z + 1)
    torch.testing.assert_close(net.critic.bias.detach(), z[-1:] + 1)


def test_integer_buffers_are_rounded(net, space):
    values = read(space.buffers, net, like=torch.zeros(()))
    assert len(values) == 5
    write(space.buffers, net, values + 1.9)
    assert net.norm.num_batches_tracked == 2
    torch.testing.assert_close(net.norm.running_mean, torch.full((2,), 1.9))


def test_spread_by_number_pair_and_prefix(space):
    like = torch.zeros(12)
    assert space.shared.spread(0.1, "lr", like) == 0.1
    assert space.shared.spread([0.1, 0.1], "lr", like) == 0.1
    pair = space.shared.spread([0.1, 0.2], "lr", like)
    torch.testing.assert_close(pair, torch.tensor([0.1] * 9 + [0.2] * 3))
    by_prefix = space.shared.spread({"default": 1.0, "body": 2.0, "body.bias": 3.0}, "lr", like)
    assert by_prefix.tolist() == [2.0] * 6 + [3.0] * 2 + [1.0] * 4


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([0.1, 0.2, 0.3], r"lr=\[0.1, 0.2, 0.3\]: expected one number or a pair \[min, max\]"),
        ({"boby": 1.0, "default": 1.0}, r"lr: 'boby' matches no .* Did you mean 'body'\?"),
        ({"body": 1.0}, "lr: no entry covers parameter 'critics.weight'"),
    ],
)
def test_spread_names_what_is_wrong(space, value, message):
    with pytest.raises(ValueError, match=message):
        space.shared.spread(value, "lr", torch.zeros(12))


def test_a_string_is_no_sequence_of_prefixes(net):
    with pytest.raises(ValueError, match=r"max_parameters='critic': expected a sequence"):
        ParameterSpace(net, max_parameters="critic")


def test_mixed_dtypes_are_refused(net):
    net.head.double()
    with pytest.raises(ValueError, match=r"dtypes \['torch.float32', 'torch.float64'\]"):
        ParameterSpace(net)


def test_complex_parameters_have_a_way_out():
    module = nn.Module()
    module.wave = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"torch\.complex64.*view_as_real"):
        ParameterSpace(module)
    module.wave = nn.Parameter(torch.view_as_real(module.wave.detach()))
    assert ParameterSpace(module).shared.dim == 6


def test_unknown_prefix_within_a_module_suggests_a_prefix(net):
    outer = nn.Module()
    outer.network = net
    with pytest.raises(ValueError, match=r"'network\.hed' matches no .* Did you mean 'network\.head'\?"):
        ParameterSpace(outer, personal_parameters=["network.hed"])


def test_unknown_prefix_lists_what_there_is(net):
    with pytest.raises(ValueError, match=r"'zzz' matches no trainable parameter\. Names begin with: 'body', 'critic'"):
        ParameterSpace(net, max_parameters=["zzz"])


@pytest.mark.parametrize("attribute", ["max_parameters", "personal_parameters"])
def test_misspelt_prefix(attribute):
    task = Line()
    setattr(task, attribute, ("haed",))
    with pytest.raises(ValueError, match=rf"{attribute}: 'haed' matches no .* Did you mean 'head'\?"):
        fitted(task)


def test_overlapping_blocks():
    task = Line()
    task.max_parameters, task.personal_parameters = ("head",), ("head.bias",)
    with pytest.raises(ValueError, match=r"'head\.bias' is named by max_parameters and by personal_parameters"):
        fitted(task)


def test_nothing_to_federate():
    class Frozen(Line):
        def __init__(self):
            super().__init__()
            self.requires_grad_(False)

    with pytest.raises(ValueError, match="no shared trainable parameters"):
        fitted(Frozen())


def test_frozen_parameters_are_constants():
    task = Line()
    task.body.requires_grad_(False)
    before = task.body[0].weight.clone()
    fitted(task)
    assert torch.equal(task.body[0].weight, before)
    assert len(task.server_state.z) == 6


class OverFrozen(FederatedLightningModule):
    """A frozen backbone of any dtype is registered first; the objective moves nothing by much."""

    def __init__(self, dtype, personal=(), algorithm=None, **federation):
        super().__init__(algorithm or FedAvg(1e-3), **federation)
        self.personal_parameters = personal
        self.backbone = nn.Parameter(torch.ones(2).to(dtype), requires_grad=False)
        self.line = nn.Linear(6, 1)
        self.offset = nn.Parameter(torch.tensor([0.123456789, -1.0001234]))

    def objective(self, batch):
        x, y = batch
        scale = self.backbone.to(x.dtype).mean() + self.offset.sum()
        return F.mse_loss(scale * self.line(x).squeeze(1), y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8], ids=str)
@pytest.mark.parametrize("personal", [(), ("offset",)], ids=["shared", "personal"])
def test_the_dtype_of_a_frozen_first_parameter_changes_nothing(dtype, personal):
    tasks = []
    for each in (torch.float32, dtype):
        torch.manual_seed(0)
        tasks.append(OverFrozen(each, personal))
        for _ in range(2):  # the second begins where the first has ended
            fitted(tasks[-1], max_steps=2)
    plain, other = tasks
    assert torch.equal(plain.line.weight, other.line.weight)
    assert torch.equal(plain.personalize(1).offset, other.personalize(1).offset)
    assert other.server_state.z.dtype == torch.float32


def test_regularizers_are_of_the_exact_parameters_over_a_frozen_one_of_few_digits():
    task = OverFrozen(torch.int8, algorithm=FedMiD(0.1), regularizer={"offset": SquaredL2(1.0), "line": None})
    assert task.regularization() == task.offset.detach().square().sum() / 2


def test_tied_weights_are_one_parameter():
    class Tied(FederatedLightningModule):
        def __init__(self):
            super().__init__(FedAvg(0.001))
            self.a = nn.Linear(6, 6, bias=False)
            self.b = nn.Linear(6, 6, bias=False)
            self.b.weight = self.a.weight

        def objective(self, batch):
            return (self.b(self.a(batch[0])).sum(1) - batch[1]).square().mean()

    task = Tied()
    fitted(task)
    assert len(task.server_state.z) == 36
    assert torch.equal(task.a.weight, task.b.weight)


def test_lr_by_prefix_covers_shared_and_personal_parameters():
    def moved(lr):
        torch.manual_seed(0)
        task = Personal(FedAvg(lr), oracle=Vectorized())  # one oracle, whose bits repeat
        before = task.line.weight.detach().clone()
        fitted(task, max_steps=1)
        return (task.line.weight.detach() - before).norm(), task.personalize(0).offset.detach().abs().sum()

    both = moved({"line": 0.05, "offset": 0.05})
    assert moved(0.05) == both == moved({"line": 0.05, "default": 0.05})
    assert moved({"line": 0.05, "offset": 1e-9})[1] < 1e-6
    with pytest.raises(ValueError, match=r"lr: 'ofset' matches no trainable parameter\. Did you mean 'offset'"):
        moved({"line": 0.05, "ofset": 0.05})


def test_a_second_name_of_tied_parameters_is_said_to_be_one():
    net = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3, bias=False), "c": nn.Linear(3, 3)})
    net["b"].weight = net["a"].weight
    with pytest.raises(
        ValueError, match=r"personal_parameters: 'b' names no parameter of its own: 'b.weight' is tied to"
    ):
        ParameterSpace(net, personal_parameters=("b",))
    assert ParameterSpace(net, personal_parameters=("a.weight",)).personal.names == ("a.weight",)


@pytest.mark.parametrize("argument", ["max_parameters", "personal_parameters"])
def test_a_prefix_does_not_leave_out_what_is_tied_elsewhere(argument):
    net = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "c": nn.Linear(3, 3)})
    net["b"].weight = net["a"].weight
    with pytest.raises(ValueError, match=rf"{argument}: 'b.weight' under 'b' is tied to 'a.weight', which no prefix"):
        ParameterSpace(net, **{argument: ("b",)})
    space = ParameterSpace(net, **{argument: ("b", "a.weight")})
    found = space.personal.names or space.shared.names[space.shared.minimised :]
    assert set(found) == {"a.weight", "b.bias"}


@pytest.mark.parametrize("argument", ["max_parameters", "personal_parameters"])
def test_a_prefix_of_frozen_parameters_alone_is_said_to_be_one(argument):
    net = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    net["a"].requires_grad_(False)
    with pytest.raises(ValueError, match=rf"{argument}: 'a' names frozen parameters alone, such as 'a\.weight'.*thaw"):
        ParameterSpace(net, **{argument: ("a",)})
    net["a"].bias.requires_grad_(True)
    ParameterSpace(net, personal_parameters=("a",))


def test_what_was_replaced_is_named():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    space = ParameterSpace(net)
    net[1] = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(RuntimeError, match=r"Sequential has no '1.weight' any more, which the fit began with"):
        read(space.shared, net)
