"""Configurations of schedulers are taken as Lightning takes them, and nothing in them is passed over."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from fedlightning.tasks.federated.scheduler_config import SchedulerConfig


def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def test_a_scheduler_alone_has_the_defaults_of_lightning():
    scheduler = StepLR(optimizer(), 1)
    assert SchedulerConfig.of(scheduler) == SchedulerConfig(scheduler, "epoch", 1, None, True)


def test_all_keys_of_lightning_are_read():
    scheduler = ReduceLROnPlateau(optimizer())
    given = {"scheduler": scheduler, "interval": "epoch", "frequency": 3, "monitor": "val_loss", "strict": False}
    config = SchedulerConfig.of({**given, "name": "rate", "reduce_on_plateau": True})
    assert config == SchedulerConfig(**given)
    assert config.waits


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda o: StepLR(o, 1), {"intervall": "step"}, "scheduler with 'intervall': there are scheduler, interval"),
        (lambda o: StepLR(o, 1), {"interval": "hour"}, "StepLR: interval='hour': expected 'epoch' or 'step'"),
        (lambda o: StepLR(o, 1), {"frequency": 0}, r"StepLR\(frequency=0\): expected >= 1"),
        (lambda o: StepLR(o, 1), {"reduce_on_plateau": True}, "StepLR: reduce_on_plateau=True: .*Leave it out"),
        (ReduceLROnPlateau, {"monitor": "val_loss", "interval": "step"}, "ReduceLROnPlateau: interval='step'"),
    ],
)
def test_what_is_not_supported_is_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        SchedulerConfig.of({"scheduler": make(optimizer()), **options})


def test_a_configuration_without_a_scheduler_is_refused():
    with pytest.raises(TypeError, match=r"returns {'interval': 'step'} as a scheduler: expected one of torch"):
        SchedulerConfig.of({"interval": "step"})
