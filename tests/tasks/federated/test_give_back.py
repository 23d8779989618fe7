"""What was taken for a fit is given back when it ends or fails."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback

from fedlightning import federate
from fedlightning.algorithms import FedAvg
from tests.support.lit import Lit, made
from tests.support.small import regression_data, trainer


class HeadAlone(Lit):
    def configure_optimizers(self):
        return torch.optim.SGD(self.head.parameters(), lr=0.05)


class Fails(Callback):
    def on_train_batch_end(self, trainer, pl_module, *args):
        assert not pl_module.module.body[0].weight.requires_grad
        assert trainer.gradient_clip_val is None
        raise RuntimeError("stop here")


def test_a_fit_that_fails_leaves_trainer_and_module_as_they_were():
    module, fit = made(HeadAlone), trainer(max_steps=5, gradient_clip_val=1.0, callbacks=[Fails()])
    with pytest.raises(RuntimeError, match="stop here"):
        fit.fit(federate(module, FedAvg), regression_data())
    assert module.body[0].weight.requires_grad
    assert fit.gradient_clip_val == 1.0
