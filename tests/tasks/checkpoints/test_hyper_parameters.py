"""Hyper-parameters that checkpoints cannot hold are named with what to write instead."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAvg
from fedlightning.core.serialisation import CheckpointError
from fedlightning.local import LocalSteps
from fedlightning.tasks import Classification
from fedlightning.tasks.checkpoints.hyper_parameters import plain_hyper_parameters
from tests.support.evaluated import messages, two_rounds
from tests.support.small import Line

REMEDY = r"Use functools\.partial of a class .* or give it again to load_from_checkpoint\(path, algorithm=\.\.\.\)"


@pytest.mark.parametrize(
    ("optimizer", "what"),
    [
        (lambda p: torch.optim.AdamW(p), "is a function, which"),
        (partial(lambda p: torch.optim.AdamW(p)), "is made by "),
    ],
    ids=["lambda", "partial"],
)
def test_an_algorithm_with_a_lambda_is_left_out_with_a_remedy(optimizer, what, tmp_path):
    task = Line(FedAvg(0.1, local_optimizer=optimizer))
    with pytest.warns(
        UserWarning, match=rf"^Hyper-parameter 'algorithm' .* algorithm\.local_optimizer {what}.*{REMEDY}"
    ):
        fit = two_rounds(task)  # Lightning's own warning would be an error here
    file = tmp_path / "end.ckpt"
    fit.save_checkpoint(file)
    with pytest.raises(
        CheckpointError, match=r"lack algorithm, .*: Line\.load_from_checkpoint\(path, algorithm=\.\.\.\)"
    ):
        Line.load_from_checkpoint(file)
    again = Line.load_from_checkpoint(file, algorithm=FedAvg(0.1, local_optimizer=optimizer))
    assert torch.equal(again.head.weight, task.head.weight)
    assert again.hparams.dropout == task.hparams.dropout


def test_a_partial_of_an_optimizer_is_stored(tmp_path):
    made = partial(torch.optim.AdamW, weight_decay=0.1)
    fit = []
    assert messages(lambda: fit.append(two_rounds(Line(FedAvg(0.1, local_optimizer=made))))) == []
    fit[0].save_checkpoint(tmp_path / "end.ckpt")
    assert Line.load_from_checkpoint(tmp_path / "end.ckpt").algorithm.local_optimizer.keywords == made.keywords


def test_the_place_is_named():
    solver = LocalSteps(optimizer=torch.sgn)
    with pytest.warns(
        UserWarning, match=r"'parts' .* parts\['a'\]\[1\]\.optimizer is a builtin_function_or_method, which"
    ):
        plain = plain_hyper_parameters(Line, {"parts": {"a": [1, solver]}, "width": 3})
    assert plain == {"width": 3, "_left_out": ["parts"]}


class Act(Enum):
    relu = "relu"
    tanh = "tanh"


class Kind(str, Enum):
    wide = "w"


@dataclass
class Body:
    width: int = 3
    act: Act = Act.relu


class Shaped(Line):
    """Takes what users annotate: enums, a dataclass, a path, a function."""

    def __init__(self, algorithm=None, act: Act = Act.relu, kind: Kind | None = None, body: Body | None = None, **more):
        super().__init__(algorithm)
        self.save_hyperparameters()
        self.act, self.kind, self.shape, self.more = act, kind, body, more


def test_enums_and_dataclasses_come_back(tmp_path):
    task = Shaped(act=Act.tanh, kind=Kind.wide, body=Body(4, Act.tanh), other=Act.tanh, root=Path("a"))
    fit = []
    assert messages(lambda: fit.append(two_rounds(task))) == []
    fit[0].save_checkpoint(tmp_path / "end.ckpt")
    again = Shaped.load_from_checkpoint(tmp_path / "end.ckpt")
    assert (again.act, again.kind, again.shape) == (Act.tanh, Kind.wide, Body(4, Act.tanh))
    assert again.more["other"] is Act.tanh
    assert again.more["root"] == "a"  # nothing says that it was a path


def test_values_of_the_command_line_come_back_as_annotated(tmp_path):
    """Lightning stores what the command line parsed: names of enums and dicts of fields."""
    task = Shaped(act=Act.tanh)
    task.hparams.update({"act": "tanh", "body": {"width": 4, "act": "tanh"}})
    two_rounds(task).save_checkpoint(tmp_path / "end.ckpt")
    again = Shaped.load_from_checkpoint(tmp_path / "end.ckpt")
    assert (again.act, again.shape) == (Act.tanh, Body(4, Act.tanh))


def test_a_function_with_a_default_is_asked_for(tmp_path):
    class Own(Line):
        def __init__(self, algorithm=None, act=torch.relu):
            super().__init__(algorithm)
            self.save_hyperparameters()
            self.act = act

    with pytest.warns(UserWarning, match="Hyper-parameter 'act' is left out of checkpoints"):
        two_rounds(Own(act=torch.tanh)).save_checkpoint(tmp_path / "end.ckpt")
    with pytest.raises(CheckpointError, match=r"hyper_parameters lack act, .* Own\.load_from_checkpoint\(path, act="):
        Own.load_from_checkpoint(tmp_path / "end.ckpt")
    assert Own.load_from_checkpoint(tmp_path / "end.ckpt", act=torch.tanh).act is torch.tanh


class Kept(Line):
    """Has a function as a default, and an enum of its own."""

    class Mode(Enum):
        one = 1
        two = 2

    def __init__(self, algorithm=None, act=torch.relu, mode: Kept.Mode | None = None):
        super().__init__(algorithm)
        self.save_hyperparameters()
        self.act, self.mode = act, mode


@pytest.mark.filterwarnings("ignore:Hyper-parameter 'act' is left out")
def test_a_default_is_not_asked_for_and_nested_enums_come_back(tmp_path):
    two_rounds(Kept(mode=Kept.Mode.two)).save_checkpoint(tmp_path / "end.ckpt")
    again = Kept.load_from_checkpoint(tmp_path / "end.ckpt")
    assert again.act is torch.relu
    assert again.mode is Kept.Mode.two


@pytest.mark.filterwarnings("ignore:Hyper-parameter 'network' is left out")
@pytest.mark.parametrize("hands_on", [False, True])
def test_what_a_class_sets_itself_is_not_asked_for(tmp_path, hands_on):
    class Fixed(Classification):
        def __init__(self):
            super().__init__(FedAvg(0.1), network=nn.Linear(6, 2))

    class Open(Classification):
        def __init__(self, algorithm, **others):
            super().__init__(algorithm, network=nn.Linear(6, 2), **others)

    features = [TensorDataset(torch.randn(8, 6), torch.arange(8) % 2) for _ in range(2)]
    task = Open(FedAvg(0.1)) if hands_on else Fixed()
    data = FederatedDataModule.from_datasets(features, batch_size=4, local_steps=1)
    two_rounds(task, data).save_checkpoint(tmp_path / "end.ckpt")
    told = pytest.warns(UserWarning, match="Unless Open sets them itself: .* lack network")
    with told if hands_on else nullcontext():
        again = type(task).load_from_checkpoint(tmp_path / "end.ckpt")
    assert torch.equal(again.network.weight, task.network.weight)
