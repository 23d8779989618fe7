"""Hyper-parameters of a user's algorithm that may differ by block, however their annotations are spelt."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from fedlightning.core.parameter_space import ParameterSpace

SOURCE = """
{future}
from dataclasses import dataclass
from typing import Optional, Union

from fedlightning.algorithms import FedAvg
from fedlightning.algorithms.base import PerBlock, per_block
from fedlightning.core import parameter_space
from fedlightning.core.validation import require


@dataclass(frozen=True, eq=False)
class Mine(FedAvg):
    beta: {annotation} = {default}
    steps: Optional[int] = None

    def __post_init__(self):
        super().__post_init__()
        require(self, "beta", at_least=0.0, optional=True)
        require(self, "steps", at_least=1, optional=True)
"""
ANNOTATIONS = [
    "PerBlock",
    "Optional[PerBlock]",
    "PerBlock | None",
    "Union[PerBlock, None]",
    "parameter_space.PerBlock",
]
FUTURE = {"text": "from __future__ import annotations", "types": ""}


class Saddle(torch.nn.Module):
    """Two minimised numbers and a maximised one."""

    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(2))
        self.y = torch.nn.Parameter(torch.zeros(1))


@pytest.fixture
def users_algorithm(tmp_path, monkeypatch):
    """A function that writes a user's module and imports its algorithm."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(future, annotation, default):
        name = f"users_{abs(hash((tmp_path, future, annotation, default)))}"
        (tmp_path / f"{name}.py").write_text(SOURCE.format(future=future, annotation=annotation, default=default))
        return import_module(name).Mine

    return make


def bound(algorithm):
    return algorithm.bind(ParameterSpace(Saddle(), ("y",)), torch.zeros(1))


@pytest.mark.parametrize("future", FUTURE.values(), ids=FUTURE)
@pytest.mark.parametrize("annotation", ANNOTATIONS)
def test_a_pair_becomes_a_vector(users_algorithm, future, annotation):
    mine = users_algorithm(future, annotation, "per_block(None)")
    torch.testing.assert_close(bound(mine(0.1, beta=[0.5, 2.0])).beta, torch.tensor([0.5, 0.5, 2.0]))
    assert bound(mine(0.1, beta=3.0)).beta == 3.0
    assert bound(mine(0.1)).beta is None


@pytest.mark.parametrize("future", FUTURE.values(), ids=FUTURE)
@pytest.mark.parametrize("annotation", ANNOTATIONS)
def test_each_number_of_a_pair_is_checked(users_algorithm, future, annotation):
    mine = users_algorithm(future, annotation, "per_block(None)")
    with pytest.raises(ValueError, match=r"^Mine\(beta=\[0.5, -2.0\]\): expected >= 0, or null.$"):
        mine(0.1, beta=[0.5, -2.0])


@pytest.mark.parametrize("future", FUTURE.values(), ids=FUTURE)
@pytest.mark.parametrize("annotation", ANNOTATIONS)
def test_a_forgotten_declaration_is_told(users_algorithm, future, annotation):
    mine = users_algorithm(future, annotation, "1.0")
    for beta in (2.0, [0.5, 2.0]):
        with pytest.raises(TypeError, match=r"^Mine\.beta is declared PerBlock, .*beta: PerBlock = per_block\(\)"):
            bound(mine(0.1, beta=beta))


@pytest.mark.parametrize("future", FUTURE.values(), ids=FUTURE)
def test_a_number_by_its_annotation_stays_one(users_algorithm, future):
    mine = users_algorithm(future, "float", "1.0")
    assert bound(mine(0.1, beta=2.0)).beta == 2.0
    with pytest.raises(TypeError, match=r"beta=\[0.5, 2.0\]\): expected a number"):
        mine(0.1, beta=[0.5, 2.0])


@pytest.mark.parametrize("future", FUTURE.values(), ids=FUTURE)
def test_whole_numbers_are_known_by_text_and_by_type(users_algorithm, future):
    mine = users_algorithm(future, "float", "1.0")
    assert mine(0.1, steps=3).steps == 3
    with pytest.raises(TypeError, match=r"Mine\(steps=2.5\): expected a whole number"):
        mine(0.1, steps=2.5)
