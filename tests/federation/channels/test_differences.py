"""Updates as differences from what the server knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedlightning.algorithms import SCAFFOLD, FedAvg, count, increment, over_all_clients, relative_to, squared_norm_of
from fedlightning.algorithms.base import PerClient, from_each_client
from fedlightning.federation.channels.differences import Differences, accumulated, counts_of, squared_norms_of
from fedlightning.federation.protocol import Request, Stamp

Z = torch.tensor([1.0, 2.0])


@dataclass(frozen=True)
class Message:
    z: Any = None


@dataclass(frozen=True)
class Update:
    w: Tensor = relative_to("z")
    g: Tensor = increment()
    c: Tensor = over_all_clients()
    steps: Tensor = count()


@dataclass(frozen=True)
class Own:
    w: Tensor = from_each_client(relative_to="z")


@dataclass(frozen=True)
class Measured:
    g: Tensor = increment()
    squared: Tensor = squared_norm_of("g")


@dataclass(frozen=True)
class Undeclared:
    w: Tensor


def differences(z=Z, message=None):
    request = Request(Stamp(0, 0), 0, Message(z) if message is None else message, torch.tensor([5.0, 6.0]), Z[:0])
    return Differences(FedAvg(0.1), request)


def update(**changes):
    given = {"w": torch.ones(3, 2), "g": torch.ones(3, 2), "c": torch.ones(3), "steps": torch.full((3,), 7.0)}
    return Update(**{**given, **changes})


def test_points_are_written_relative_to_the_broadcast_and_back():
    found = differences().of(update(w=torch.stack([Z, 2 * Z, 3 * Z])), [0, 1, 2])
    assert {name: list(value.shape) for name, value in found.items()} == {"w": [3, 2], "g": [3, 2], "c": [3, 1]}
    torch.testing.assert_close(found["w"], torch.stack([0 * Z, Z, 2 * Z]))
    torch.testing.assert_close(differences().added(Update, "w", found["w"].mean(0)), 2 * Z)
    assert differences().added(Update, "g", Z) is Z
    assert differences().added(Update, "steps", Z) is Z


def test_numbers_are_put_in_by_their_shapes():
    before = update()
    after = differences().put(before, {"c": torch.zeros(3, 1), "w": torch.zeros(3, 2)})
    assert (after.c.shape, after.w.sum(), after.g is before.g) == ((3,), 0.0, True)
    assert differences().put(None, {}) is None


def test_squared_norms_follow_the_numbers_that_are_put_in():
    before = Measured(torch.ones(3, 2), torch.full((3,), 2.0))
    assert list(differences().of(before, [0, 1, 2])) == ["g"]
    after = differences().put(before, {"g": torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]])})
    assert after.squared.tolist() == [25.0, 1.0, 0.0]
    assert differences().put(before, {}).squared is before.squared
    assert squared_norms_of(Measured) == {"squared": "g"}
    assert squared_norms_of(None) == {}


def test_something_of_every_local_step_is_relative_to_one_point():
    found = differences().of(update(w=Z.expand(3, 4, 2)), [0, 1, 2])
    assert found["w"].abs().max() == 0
    assert list(found["w"].shape) == [3, 8]


def test_without_a_new_point_it_is_the_global_model():
    found = differences(z=None).of(update(w=torch.tensor([[5.0, 6.0]] * 3)), [0, 1, 2])
    assert found["w"].abs().max() == 0


def test_each_client_knows_its_own():
    known = PerClient(Z, torch.tensor([4]), 3 * Z[None])
    found = differences(z=known).of(Own(torch.stack([Z, 3 * Z])), [1, 4])
    assert found["w"].abs().max() == 0
    torch.testing.assert_close(differences(z=known).added(Own, "w", found["w"], [1, 4]), torch.stack([Z, 3 * Z]))


def test_fields_that_declare_nothing_are_refused_by_name():
    with pytest.raises(TypeError, match=r"FedAvg sends Undeclared\.w, .*relative_to\('z'\).*increment\(\).*count\(\)"):
        differences().of(Undeclared(torch.ones(3, 2)), [0, 1, 2])


def test_a_broadcast_without_the_field_is_refused():
    @dataclass(frozen=True)
    class Other:
        y: Tensor

    with pytest.raises(ValueError, match=r"Update\.w relative to 'z', but it broadcasts a Other without such a field"):
        differences(message=Other(Z)).of(update(), [0, 1, 2])


@pytest.mark.parametrize("w", [torch.ones(3, 5), torch.ones(3)])
def test_another_shape_than_the_broadcasts_is_refused(w):
    with pytest.raises(ValueError, match=r"sends 'w' of shape .* relative to 'z' of shape \[2\]"):
        differences().of(update(w=w), [0, 1, 2])


def test_whole_numbers_are_refused():
    with pytest.raises(TypeError, match=r"sends 'g' as torch\.int64, .*g: Tensor = count\(\)"):
        differences().of(update(g=torch.ones(3, 2, dtype=torch.long)), [0, 1, 2])


def test_counts_and_what_accumulates():
    assert (counts_of(update()), counts_of(Update), counts_of(None)) == (["steps"], ["steps"], [])
    assert accumulated(FedAvg(0.1), update()) == {"c"}
    assert accumulated(SCAFFOLD(0.1), update()) == {"g", "c"}
    assert accumulated(SCAFFOLD(0.1), None) == frozenset()
