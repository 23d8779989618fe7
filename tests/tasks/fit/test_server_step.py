"""The server optimizer: pseudo-gradients, schedules, clipping."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision

from fedlightning.algorithms import FedAvg
from fedlightning.core.errors import InvalidValueError, UsageError
from fedlightning.tasks import ClientNumbers, QuadraticSaddle
from tests.support.small import Line, fitted


def final_point(**federation):
    torch.manual_seed(0)
    task = Line(FedAvg(0.05), dropout=0.0, **federation)
    fitted(task)
    return task.server_state.z


def test_server_sgd_of_lr_one_is_the_algorithm_itself():
    torch.testing.assert_close(final_point(server_optimizer=partial(torch.optim.SGD, lr=1.0)), final_point())


def test_server_adam_equals_adam_on_the_pseudo_gradient():
    torch.manual_seed(0)
    task = QuadraticSaddle(FedAvg(0.05), server_optimizer=partial(torch.optim.Adam, lr=0.1))
    z = torch.cat([task.x, task.y]).detach().clone().requires_grad_()
    matrix, offset = task.matrix.clone(), task.offset.clone()
    fitted(task, ClientNumbers(local_steps=3), max_steps=4)
    adam = torch.optim.Adam([z], lr=0.1)
    for _ in range(4):
        w = z.detach().expand(8, -1)
        for _ in range(3):
            w = w - 0.05 * ((matrix @ w.unsqueeze(2)).squeeze(2) + offset)
        z.grad = z.detach() - w.mean(0)
        adam.step()
    torch.testing.assert_close(task.server_state.z, z.detach())


def test_server_scheduler_is_stepped_once_a_round(tmp_path):
    task = Line(
        server_optimizer=partial(torch.optim.SGD, lr=1.0),
        server_scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5),
    )
    monitor = LearningRateMonitor(logging_interval="step")
    fit = fitted(task, tmp_path=tmp_path, max_steps=6, logger=CSVLogger(tmp_path), callbacks=[monitor])
    assert fit.optimizers[0].param_groups[0]["lr"] == 0.125


class HalfSteps(Line):
    name = "lr"

    def on_train_batch_start(self, batch, batch_idx):
        if self.global_step == 2:
            self.optimizers().param_groups[0][self.name] = 0.5


class Heavy(HalfSteps):
    name = "momentum"


def test_a_rate_set_by_hand_acts_on_a_server_optimizer_and_is_refused_without():
    sgd = partial(torch.optim.SGD, lr=1.0)
    task, whole = (kind(FedAvg(0.05), dropout=0.0, server_optimizer=sgd) for kind in (HalfSteps, Line))
    whole.load_state_dict(task.state_dict())
    before = Line(FedAvg(0.05), dropout=0.0)
    before.load_state_dict(task.state_dict())
    for each, rounds in ((task, 3), (whole, 3), (before, 2)):
        fitted(each, max_steps=rounds)
    start = before.server_state.z
    torch.testing.assert_close(task.server_state.z - start, 0.5 * (whole.server_state.z - start))
    for kind in (HalfSteps, Heavy):
        refused = kind(FedAvg(0.05), dropout=0.0)
        with pytest.raises(
            InvalidValueError, match=rf"The {kind.name} of .* set to 0\.5, but .* Give server_optimizer="
        ):
            fitted(refused)
        assert refused.run.changed is None  # the round that was refused has not begun
        assert refused.run.rounds == 2


class Halts(Callback):
    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        for parameter in pl_module.parameters():
            parameter.grad.zero_()


class Looks(Callback):
    def __init__(self):
        self.norms = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.norms.append(pl_module.head.weight.grad.norm().item())


def test_a_hook_may_change_the_step_of_a_server_optimizer_alone():
    task = Line(server_optimizer=partial(torch.optim.SGD, lr=1.0))
    start = task.head.weight.detach().clone()
    fitted(task, max_steps=2, callbacks=[Halts()])
    assert torch.equal(task.head.weight, start)
    with pytest.raises(UsageError, match=r"changed the server's step of 'body.0.weight', but without server_optimizer"):
        fitted(Line(), max_steps=2, callbacks=[Halts()])


@pytest.mark.parametrize("plugins", [[], [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]])
def test_a_hook_may_look_at_the_step(plugins):
    looks = Looks()
    fitted(Line(), max_steps=3, callbacks=[looks], plugins=plugins)
    assert len(looks.norms) == 3
    assert min(looks.norms) > 0


def test_server_clip_bounds_the_move():
    task = QuadraticSaddle(FedAvg(0.05), server_clip=0.01)
    before = torch.cat([task.x, task.y]).detach().clone()
    fitted(task, ClientNumbers(), max_steps=1)
    moved = (torch.cat([task.x, task.y]) - before).norm()
    torch.testing.assert_close(moved.item(), 0.01, rtol=1e-3, atol=0)


def test_server_clip_under_loss_scaling():
    def moved(**options):
        torch.manual_seed(0)
        task = Line(server_clip=0.01, dropout=0.0)
        before = torch.cat([p.detach().flatten() for p in task.parameters()])
        fitted(task, max_steps=1, **options)
        return (torch.cat([p.detach().flatten() for p in task.parameters()]) - before).norm()

    scaled = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=256.0))
    assert float(moved()) == pytest.approx(0.01, rel=1e-3)
    assert float(moved(plugins=[scaled])) == pytest.approx(0.01, rel=1e-2)


@pytest.mark.parametrize(
    "option", [{"server_optimizer": torch.optim.Adam}, {"server_clip": 1000.0}], ids=["server_optimizer", "server_clip"]
)
def test_a_server_that_moves_freely_needs_parameters_of_32_bits(option):
    """Its point, in 32 bits, would be read back from them in every round."""
    (name,) = option
    with pytest.raises(
        InvalidValueError, match=f"{name} moves parameters of torch.bfloat16, to which .* or without {name}"
    ):
        fitted(Line(**option), max_steps=1, precision="bf16-true")
    fitted(Line(**option), max_steps=1, precision="bf16-mixed")
    fitted(Line(), max_steps=1, precision="bf16-true")


def test_a_server_that_hardly_moves_is_told():
    with pytest.warns(UserWarning, match=r"SGD\(lr=0\.001\), torch's default, moves the model by a thousandth"):
        fitted(Line(server_optimizer=torch.optim.SGD), max_steps=1)


def test_options_that_torch_refuses_are_named():
    with pytest.raises(InvalidValueError, match=r"server_optimizer: Invalid learning rate: -1\. Give it other options"):
        fitted(Line(server_optimizer=partial(torch.optim.SGD, lr=-1)), max_steps=1)
