"""Hyper-parameters that checkpoints cannot hold are named with what to write instead."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from fedlightning.algorithms import FedAvg
from fedlightning.local import LocalSteps
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
        plain = plain_hyper_parameters({"parts": {"a": [1, solver]}, "width": 3})
    assert plain == {"width": 3}
