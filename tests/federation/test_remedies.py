"""Advice names options that the algorithm at hand has."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import SCAFFOLD, FedAvg, FedDR
from fedlightning.federation.remedies import LOOK_AT_DATA, client_options, one_of, smaller_steps
from fedlightning.federation.server import RoundRejectedError
from fedlightning.local import SVRG
from tests.support.cases import CASES
from tests.support.evaluated import messages, two_rounds
from tests.support.small import Line, clients

ALGORITHM = "model.algorithm"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_option_can_be_given(case):
    algorithm = case.algorithm()
    for key in client_options(algorithm).values():
        *owner, name = key.removeprefix(f"{ALGORITHM}.").split(".")
        owned = getattr(algorithm, owner[0]) if owner else algorithm
        assert name in inspect.signature(type(owned)).parameters


def test_options_are_those_of_the_algorithm_or_of_its_solver():
    of_steps = ("lr", "local_optimizer", "local_clip")
    assert client_options(FedAvg(0.1)) == {name: f"{ALGORITHM}.{name}" for name in of_steps}
    assert client_options(SCAFFOLD(0.1)) == {"lr": f"{ALGORITHM}.lr"}
    of_solver = (f"{ALGORITHM}.solver.{name}" for name in ("lr", "optimizer", "clip"))
    assert client_options(FedDR(0.2)) == dict(zip(of_steps, of_solver, strict=True))
    assert client_options(FedDR(0.2, solver=SVRG())) == {"lr": f"{ALGORITHM}.solver.lr"}


def test_the_sentence_has_what_the_algorithm_has():
    lr, clip = "ower lr (--model.algorithm.lr=...)", "set local_clip (--model.algorithm.local_clip=...)"
    assert smaller_steps(FedAvg(0.1), LOOK_AT_DATA) == f"L{lr}, {clip}, or look at the clients' data."
    assert smaller_steps(SCAFFOLD(0.1), LOOK_AT_DATA) == f"L{lr} or look at the clients' data."


@pytest.mark.parametrize(("items", "text"), [("a", "a"), ("ab", "a or b"), ("abc", "a, b, or c")])
def test_alternatives_are_enumerated(items, text):
    assert one_of(items) == text


def data(broken):
    """Four clients, of whom some have NaN among their samples."""
    sets = [
        TensorDataset(x + torch.nan if i in broken else x, y) for i, (x, y) in enumerate(c.tensors for c in clients())
    ]
    return FederatedDataModule.from_datasets(sets, batch_size=4, local_steps=1)


@pytest.mark.parametrize(
    ("algorithm", "clips"), [(FedAvg(0.1), True), (SCAFFOLD(0.1), False)], ids=["FedAvg", "SCAFFOLD"]
)
def test_messages_of_a_round_advise_what_the_algorithm_has(algorithm, clips):
    with pytest.raises(RoundRejectedError, match=r"Lower lr \(--model\.algorithm\.lr=") as rejected:
        two_rounds(Line(algorithm), data(range(4)))
    assert ("local_clip" in str(rejected.value)) is clips
    (left_out,) = [text for text in messages(lambda: two_rounds(Line(algorithm), data([1]))) if "left out" in text]
    assert "Lower lr (--model.algorithm.lr=...)" in left_out
    assert ("local_clip" in left_out) is clips
