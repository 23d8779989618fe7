"""Loaders of clients' data in a list or a dict, as a data module of one's own may return them."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms import FedAlt
from tests.support.evaluated import Own, held_out_data, messages, plain_loader, two_rounds
from tests.support.small import Line, trainer


def wrapped(name, wrap):
    data = held_out_data()
    loader = getattr(data, name)
    setattr(data, name, lambda: wrap(loader()))
    return data


@pytest.mark.parametrize("wrap", [lambda loader: [loader], lambda loader: {"clients": loader}])
@pytest.mark.parametrize("stage", ["val", "test"])
def test_clients_are_evaluated_with_their_own_models(stage, wrap):
    task = Own(FedAlt(0.05))
    fit = two_rounds(task, held_out_data())
    run = fit.validate if stage == "val" else fit.test
    (expected,) = run(task, held_out_data(), verbose=False)
    data = wrapped(f"{stage}_dataloader", wrap)
    assert messages(lambda: run(task, data, verbose=False)) == []
    assert {name: value.item() for name, value in fit.callback_metrics.items()} == pytest.approx(expected)


def test_clients_own_models_predict_for_a_list():
    task = Own(FedAlt(0.05))
    fit = two_rounds(task, held_out_data())
    expected = fit.predict(task, held_out_data())
    found = fit.predict(task, wrapped("predict_dataloader", lambda loader: [loader]))
    assert task.predicted_clients == [0, 1, 2, 3]
    torch.testing.assert_close(found, expected)


def test_plain_loaders_in_a_dict():
    task = Line()
    two_rounds(task)
    task.validation_step = lambda batch, batch_idx, dataloader_idx=0: task.log("loss", task.objective(batch)["loss"])
    found = trainer().validate(task, {"a": plain_loader(), "b": plain_loader()}, verbose=False)
    assert [list(each) for each in found] == [["loss/dataloader_idx_0"], ["loss/dataloader_idx_1"]]
