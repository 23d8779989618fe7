"""Views of points and of matrices that lie elsewhere for a while."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlightning.oracle import Vectorized
from fedlightning.oracle.recording.own_memory import LARGE_FOR_THREADS, in_own_memory
from tests.support.cohorts import setting

pytestmark = pytest.mark.usefixtures("two_threads")

S, N, A, B, FIRST = 3, 50, 4, 5, 7
"""Clients, numbers of each, and rows, columns and place of a matrix among them."""


def points(offset=0):
    memory = torch.arange(float(offset + S * N))
    return memory[offset:].view(S, N)


def matrix_in(point):
    return point[:, FIRST : FIRST + A * B].view(S, A, B)


VIEWS = {
    "the matrix": matrix_in,
    "transposed": lambda point: matrix_in(point).mT,
    "one client's": lambda point: matrix_in(point)[1],
    "its last clients'": lambda point: matrix_in(point)[1:],
    "every other client's": lambda point: matrix_in(point)[::2],
    "some rows": lambda point: matrix_in(point)[:, 1:3],
    "every other column": lambda point: matrix_in(point)[..., ::2],
    "diagonals": lambda point: matrix_in(point).diagonal(dim1=1, dim2=2),
    "expanded": lambda point: matrix_in(point)[:, None].expand(S, 2, A, B),
    "one number": lambda point: matrix_in(point)[2, 3, 4],
    "without numbers": lambda point: point[:, :0],
    "before": lambda point: point[:, :FIRST],
    "behind": lambda point: point[:, FIRST + A * B :],
}


@pytest.mark.parametrize("offset", [0, 11])
@pytest.mark.parametrize("name", VIEWS)
def test_views_are_found_in_the_copy(name, offset):
    point = points(offset)
    before, here = point.clone(), VIEWS[name](point)
    (own, view), copy_back = in_own_memory(point, [matrix_in(point)], [matrix_in(point), here])
    assert own.is_contiguous()
    assert torch.equal(view, here)
    own.mul_(-1.0)
    assert torch.equal(point, before)
    seen = view.clone()
    copy_back()
    assert torch.equal(here, seen)
    assert torch.equal(matrix_in(point), -matrix_in(before))
    assert torch.equal(point[:, FIRST + A * B :], before[:, FIRST + A * B :])


@pytest.mark.parametrize(
    "overlapping",
    [
        lambda point: point,
        lambda point: point[:, FIRST - 1 : FIRST + 1],
        lambda point: point[:, ::2],
        lambda point: torch.view_as_complex(point.view(S, N // 2, 2)),
        lambda point: point.view(-1)[:: N + 1],
    ],
    ids=["whole", "across its edge", "every other number", "complex numbers", "across the clients"],
)
def test_nothing_moves_if_a_view_is_partly_elsewhere(overlapping):
    point = points()
    views = [matrix_in(point), overlapping(point)]
    found, copy_back = in_own_memory(point, [matrix_in(point)], views)
    assert all(one is other for one, other in zip(found, views, strict=True))
    found[0].mul_(-1.0)
    after = point.clone()
    copy_back()
    assert torch.equal(point, after)


def test_large_matrices_and_those_of_one_client_stay():
    side = int(LARGE_FOR_THREADS**0.5)
    for clients, rows in ((2, side), (1, 3)):
        point = torch.zeros(clients, rows * side + 1)
        matrix = point[:, : rows * side].view(clients, rows, side)
        (found,), _ = in_own_memory(point, [matrix], [matrix])
        assert found is matrix


def test_matrices_stay_on_one_thread(one_thread):
    point = points()
    matrix = matrix_in(point)
    (found,), _ = in_own_memory(point, [matrix], [matrix])
    assert found is matrix


class Tied(nn.Module):
    """Its second layer is its first one's, transposed, and its loss reads some rows alone."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(150, 130), nn.Linear(130, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x))) + self.first.weight[3:5].sum() + self.first.weight.mT[:2].mean()


NETWORKS = {
    "tied": Tied,
    "two layers": lambda: nn.Sequential(
        nn.Linear(150, 120), nn.Tanh(), nn.Linear(120, 140), nn.Tanh(), nn.Linear(140, 3)
    ),
}


def course(name, steps=4):
    """An oracle's recorded course, and where plain steps lead."""
    objective, w, v, b, data = setting(NETWORKS[name](), (150,))
    objective.draws = False
    evaluate, plain = Vectorized().evaluator(objective, 100), w.clone()
    for _ in range(steps):
        plain -= 0.1 * evaluate(plain, v, b, data).g
    return evaluate, w.clone(), (v, b, data), plain


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_lead_to_where_plain_steps_lead(name):
    evaluate, point, (v, b, data), plain = course(name)
    with evaluate.steps_in_place(point, v, "both", 0.1) as step:
        for _ in range(4):
            step(b, data, None)
    torch.testing.assert_close(point, plain, rtol=1e-12, atol=1e-13)


def test_the_points_hold_every_step_when_an_error_ends_them():
    evaluate, point, (v, b, data), plain = course("two layers", steps=2)
    taken = []

    def interrupted():
        with evaluate.steps_in_place(point, v, "both", 0.1) as step:
            taken.extend(step(b, data, None) for _ in range(2))
            assert not torch.allclose(point, plain)  # its matrices are still elsewhere
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(taken) == 2
    torch.testing.assert_close(point, plain, rtol=1e-12, atol=1e-13)
