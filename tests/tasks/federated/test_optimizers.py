"""The optimizer of a module is read off with all its parameter groups."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.optim import SGD as TorchSGD
from torch.optim import Adam as TorchAdam
from torch.optim.lr_scheduler import StepLR

from fedlightning import federate
from fedlightning.algorithms import FedAvg
from fedlightning.local import SGD, Adam
from fedlightning.tasks.federated.optimizers import Configured, by_prefix, steps_of
from tests.support.lit import Lit, made
from tests.support.small import regression_data, trainer

NAMES = ["body.0.weight", "body.0.bias", "head.weight", "head.bias"]


def read(optimizer, module):
    return steps_of(optimizer, optimizer.param_groups, module)


def returning(returned):
    module = made()
    module.configure_optimizers = lambda: returned(module)
    return module


@pytest.mark.parametrize(
    ("form", "schedulers"),
    [
        (lambda o, s: o, 0),
        (lambda o, s: [o], 0),
        (lambda o, s: ([o], [s]), 1),
        (lambda o, s: ([o], []), 0),
        (lambda o, s: {"optimizer": o}, 0),
        (lambda o, s: {"optimizer": o, "lr_scheduler": s}, 1),
        (lambda o, s: ({"optimizer": o, "lr_scheduler": {"scheduler": s}},), 1),
    ],
)
def test_every_form_that_lightning_takes_is_read(form, schedulers):
    optimizer = TorchSGD(made().parameters(), lr=0.1)
    configured = Configured.by(returning(lambda module: form(optimizer, StepLR(optimizer, 1))))
    assert configured.optimizer is optimizer
    assert len(configured.schedulers) == schedulers


def test_no_optimizer_is_none():
    assert Configured.by(returning(lambda module: None)) == Configured(None)


def test_several_optimizers_are_refused():
    def two(module):
        return [TorchSGD(module.body.parameters(), lr=0.1), TorchSGD(module.head.parameters(), lr=0.1)]

    with pytest.raises(ValueError, match=r"Lit\.configure_optimizers returns 2 optimizers.*parameter groups"):
        Configured.by(returning(two))


def test_something_else_is_refused():
    with pytest.raises(
        TypeError, match=r"Lit\.configure_optimizers returns a str that holds no torch optimizer: 'SGD'"
    ):
        Configured.by(returning(lambda module: "SGD"))


def test_numbers_are_given_in_the_shortest_form():
    assert by_prefix(dict.fromkeys(NAMES, 0.1)) == 0.1
    assert by_prefix({name: 0.1 if "body" in name else 0.2 for name in NAMES}) == {"body": 0.1, "head": 0.2}
    assert by_prefix({**dict.fromkeys(NAMES, 0.1), "head.bias": 0.3}) == {
        "body": 0.1,
        "head.weight": 0.1,
        "head.bias": 0.3,
    }


def test_plain_steps_need_no_optimizer():
    module = made()
    assert read(TorchSGD(module.parameters(), lr=0.1), module).optimizer is None


def test_options_and_groups_are_taken():
    module = made()
    groups = [
        {"params": module.body.parameters(), "momentum": 0.5, "lr": 0.2},
        {"params": module.head.parameters(), "weight_decay": 0.1},
    ]
    steps = read(TorchSGD(groups, lr=0.1, momentum=0.9, dampening=0.2), module)
    assert steps.lr == {"body": 0.2, "head": 0.1}
    assert isinstance(steps.optimizer, SGD)
    assert steps.optimizer.momentum == {"body": 0.5, "head": 0.9}
    assert steps.optimizer.dampening == 0.2
    assert steps.optimizer.weight_decay == {"body": 0.0, "head": 0.1}
    adam = read(torch.optim.AdamW(module.parameters(), lr=0.1, betas=(0.8, 0.9), eps=1e-4), module).optimizer
    assert isinstance(adam, Adam)
    assert (adam.beta1, adam.beta2, adam.eps, adam.weight_decay, adam.decoupled) == (0.8, 0.9, 1e-4, 0.01, True)
    assert not read(TorchAdam(module.parameters()), module).optimizer.decoupled


@pytest.mark.parametrize("algorithm", [FedAvg, FedAvg(0.1)], ids=["step size of the module", "its own"])
def test_a_module_of_frozen_parameters_is_refused(algorithm):
    module = made()
    module.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to federate"):
        trainer().fit(federate(module, algorithm), regression_data())


def test_frozen_parameters_need_no_group():
    module = made()
    module.head.requires_grad_(False)
    assert read(TorchSGD(module.body.parameters(), lr=0.1), module).lr == 0.1


class Maximises(Lit):
    def configure_optimizers(self):
        return TorchSGD(self.parameters(), lr=0.1, maximize=True)


class Differs(Lit):
    def configure_optimizers(self):
        groups = [{"params": self.body.parameters(), "nesterov": True}, {"params": self.head.parameters()}]
        return TorchSGD(groups, lr=0.1, momentum=0.9)


class Foreign(Lit):
    def configure_optimizers(self):
        return TorchSGD([*self.parameters(), torch.nn.Parameter(torch.zeros(7))], lr=0.1)


class Own(torch.optim.Optimizer):
    """Steps along a matrix's gradient less the mean of each row, perhaps along signs."""

    def __init__(self, params, lr=0.1, mean=True):
        super().__init__(params, {"lr": lr, "mean": mean})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                step = p.grad - p.grad.mean(-1, keepdim=True) if group["mean"] and p.ndim == 2 else p.grad
                p.add_(step.sign() if group.get("sign") else step, alpha=-group["lr"])


class Centralises(Lit):
    def configure_optimizers(self):
        return Own(self.parameters())


class Signs(Lit):
    def configure_optimizers(self):
        return Own([{"params": self.body.parameters(), "sign": True}, {"params": self.head.parameters()}], mean=False)


class WithoutRate(Own):
    def __init__(self, params):
        super().__init__(params)


class HasNoRate(Lit):
    def configure_optimizers(self):
        return WithoutRate(self.parameters())


def test_an_elementwise_optimizer_of_ones_own_is_taken():
    module = made(optimizer=partial(Own, mean=False))
    assert read(module.configure_optimizers(), module).name == "Own"


class Hooked(Lit):
    def configure_optimizers(self):
        optimizer = TorchSGD(self.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: None)
        return optimizer


class StepsItsOwnScheduler(Lit):
    def configure_optimizers(self):
        optimizer = TorchSGD(self.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
        return optimizer

    def on_train_epoch_end(self):
        self.scheduler.step()


class WarmsUpByHand(Lit):
    def configure_optimizers(self):
        self.optimizer = TorchSGD(self.parameters(), lr=0.1)
        return self.optimizer

    def training_step(self, batch, batch_idx):
        self.optimizer.param_groups[0]["lr"] = 0.01
        return super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("cls", [StepsItsOwnScheduler, WarmsUpByHand])
def test_options_that_change_during_a_fit_are_refused(cls):
    with pytest.raises(RuntimeError, match=rf"{cls.__name__} has changed its optimizer's options during the fit"):
        trainer(max_steps=-1, max_epochs=2).fit(federate(made(cls), FedAvg), regression_data(rounds_per_epoch=2))


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Centralises, r"Own is not elementwise: a parameter of shape \[3\] is stepped otherwise"),
        (Signs, "Own: a parameter group has the option 'sign', which its other groups need not have"),
        (HasNoRate, "WithoutRate takes no argument lr"),
        (Hooked, "an optimizer with step hooks, which no round would call"),
        (Maximises, r"SGD\(maximize=True\).*name what is maximised in max_parameters"),
        (Differs, "SGD: parameter groups differ in nesterov"),
        (Foreign, r"a parameter of shape \[7\] that is no parameter of the module"),
    ],
)
def test_optimizers_that_clients_cannot_have_are_refused(cls, message):
    with pytest.raises(ValueError, match=message):
        trainer(max_steps=1).fit(federate(made(cls), FedAvg), regression_data())


def test_personal_parameters_need_an_optimizer_for_all_blocks():
    module = made(optimizer=partial(torch.optim.RMSprop, lr=0.01))
    task = federate(module, FedAvg, personal_parameters=["head"])
    with pytest.raises(ValueError, match="RMSprop would step shared parameters alone"):
        trainer(max_steps=1).fit(task, regression_data())
