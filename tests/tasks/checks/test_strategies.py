"""Strategies that shard the model or lose states are refused by name, with a remedy, before data are prepared."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    SingleDeviceStrategy,
)

from fedlightning.tasks.checks.strategies import refuse_sharded_models, refuse_spawned_processes
from tests.support.small import Line, regression_data, trainer


class OnCPU(FSDPStrategy):
    """Lightning asks for a GPU only where the class is FSDPStrategy itself."""


class WithoutDeepSpeed(DeepSpeedStrategy):
    """Makes a strategy where DeepSpeed is not installed."""

    def __init__(self):
        super(DeepSpeedStrategy, self).__init__()


REFUSED = {"fsdp": OnCPU, "deepspeed": WithoutDeepSpeed, "ModelParallelStrategy": ModelParallelStrategy}


@pytest.mark.parametrize("name", REFUSED)
def test_sharding_strategies_are_refused(name):
    with pytest.raises(TypeError, match=rf"Trainer\(strategy='{name}'\) cuts the model .* Use strategy='ddp'"):
        refuse_sharded_models(REFUSED[name]())


@pytest.mark.parametrize("name", ["fsdp", "ModelParallelStrategy"])
def test_a_fit_refuses_before_it_prepares_data(name, monkeypatch):
    data = regression_data()
    monkeypatch.setattr(data, "prepare_data", lambda: pytest.fail("data were prepared"))
    with pytest.raises(TypeError, match=rf"strategy='{name}'"):
        trainer(strategy=REFUSED[name]()).fit(Line(), data)


@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork"])
def test_processes_that_end_with_the_fit_are_refused(strategy):
    for given in (strategy, trainer(accelerator="cpu", devices=2, strategy=strategy).strategy):
        with pytest.raises(TypeError, match=r"'ddp_spawn'\), and .* go the states .* Use strategy='ddp' in a script"):
            refuse_spawned_processes(given)


def test_whole_models_are_welcome():
    refuse_sharded_models("ddp")
    refuse_sharded_models(None)
    refuse_sharded_models(DDPStrategy())
    refuse_spawned_processes("ddp")
    refuse_spawned_processes(None)
    refuse_spawned_processes(trainer(accelerator="cpu", devices=2, strategy="ddp").strategy)
    refuse_sharded_models(SingleDeviceStrategy(torch.device("cpu")))
