"""The precision of a training step, as Lightning has set it."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from fedlightning.oracle import Autocast
from fedlightning.tasks.fit.precision import RoundPrecision

CPU = torch.device("cpu")


def task(**plugin):
    return SimpleNamespace(device=CPU, trainer=SimpleNamespace(precision_plugin=SimpleNamespace(**plugin)))


def test_without_autocast_and_scaler_nothing_is_changed():
    precision = RoundPrecision.of(task())
    assert precision == RoundPrecision(Autocast("cpu", None, scale=1.0), None)
    assert not precision.undoes_overflow


def test_autocast_is_that_of_the_training_step():
    with torch.autocast("cpu", torch.bfloat16):
        assert RoundPrecision.of(task()).autocast == Autocast("cpu", torch.bfloat16, scale=1.0)


def test_the_scale_is_the_scaler_s_and_an_overflow_is_undone_while_it_can_fall():
    for scale, undone in ((1024.0, True), (1.0, False)):
        scaler = SimpleNamespace(get_scale=lambda scale=scale: scale)
        precision = RoundPrecision.of(task(scaler=scaler))
        assert precision.autocast.scale == scale
        assert precision.scaler is scaler
        assert precision.undoes_overflow is undone
