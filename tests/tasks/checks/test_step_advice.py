"""Clauses that say what a task can set in place of Lightning's optimizers."""

from __future__ import annotations

import pytest

from fedlightning.algorithms import SCAFFOLD, FedADMM, FedAvg, FedSGDA
from fedlightning.proximal import L1
from fedlightning.tasks.checks.step_advice import clip_options, server_moves, step_advice
from tests.support.cases import CASES
from tests.support.small import Line


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        (FedAvg(0.1), "set the clients' with lr, local_optimizer and local_clip of the algorithm, the server's with"),
        (SCAFFOLD(0.1), "set the clients' with lr of the algorithm, the server's with the task's arguments"),
        (FedADMM(sigma=0.1), "set the clients' with lr of the algorithm's solver"),
    ],
    ids=["FedAvg", "SCAFFOLD", "FedADMM"],
)
def test_the_steps_are_set_by_options_that_exist(algorithm, text):
    assert step_advice(Line(algorithm))["optimizers"].startswith(text)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_server_step_is_advised_where_it_is_allowed(case):
    task = Line(case.algorithm())
    try:
        Line(case.algorithm(), server_clip=1.0)
    except ValueError:
        assert not server_moves(task)
        assert "server_clip" not in " ".join(step_advice(task).values())
    else:
        assert server_moves(task)
        assert "model.server_clip" in clip_options(task)


def test_a_regularizer_leaves_no_server_step():
    task = Line(FedSGDA(0.1), regularizer=L1(0.1))
    assert clip_options(task) == []
    assert step_advice(task)["server_scheduler"] == "FedSGDA with a regularizer moves the global model by itself alone"
