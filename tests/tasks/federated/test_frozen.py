"""What the optimizer does not have stays as it is, and can be trained again after the fit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from fedlightning import FederatedDataModule, federate
from fedlightning.algorithms import Ditto, FedAvg, StatefulFedAvg
from fedlightning.federation.files.checkpoint_io import CheckpointError
from fedlightning.oracle import Sequential
from tests.support.lit import Lit, distance, made
from tests.support.paths import ROOT
from tests.support.small import clients, regression_data, trainer


def per_client_data():
    sets = {"val": clients(seed=7), "test": clients(seed=8)}
    return FederatedDataModule.from_datasets(clients(), **sets, batch_size=4, local_steps=3, rounds_per_epoch=5)


class HeadAlone(Lit):
    def configure_optimizers(self):
        return torch.optim.SGD(self.head.parameters(), lr=0.05)


def test_only_what_the_optimizer_has_is_trained_and_travels(monkeypatch):
    said = []
    monkeypatch.setattr("fedlightning.tasks.federated.frozen.rank_zero_info", said.append)
    module = made(HeadAlone)
    task = federate(module, FedAvg)
    trainer(max_steps=5).fit(task, regression_data())
    assert said == [
        "HeadAlone: 'body.0.weight' and 1 others are in no parameter group of SGD, so they stay as they are and do not "
        "travel."
    ]
    assert distance(module.body, made().body) == 0 < distance(module.head, made().head)
    assert task.server_state.z.shape == (6,)
    assert all(parameter.requires_grad for parameter in module.parameters())


class OwnHead(Lit):
    """Leaves the bias of its head and its body's weights as they are."""

    def configure_optimizers(self):
        return torch.optim.Adam([self.head.weight, self.body[0].bias], lr=0.05)


_PROGRAM = """
import sys, torch
from fedlightning import Federated
from tests.support.small import trainer
from tests.tasks.federated.test_frozen import OwnHead, per_client_data

for folder in sys.argv[1:]:
    task = Federated.load_from_checkpoint(f"{folder}/end.ckpt", module=OwnHead())
    assert all(parameter.requires_grad for parameter in task.module.parameters())
    models = [task.personalize(client).module for client in range(4)]
    assert all(parameter.requires_grad for model in models for parameter in model.parameters())
    found = trainer().test(task, per_client_data(), verbose=False)[0]["test_loss"]
    torch.save({"models": [model.state_dict() for model in models], "test": found}, f"{folder}/found.pt")
"""


@pytest.mark.slow
def test_personal_models_are_read_back_in_another_program(tmp_path):
    tasks, expected = {}, {}
    for algorithm in (StatefulFedAvg, Ditto):
        folder = tmp_path / algorithm.__name__
        task = federate(made(OwnHead), algorithm, personal_parameters=["head"], per_client_evaluation=True)
        fit = trainer(folder, max_steps=5)
        fit.fit(task, per_client_data())
        fit.save_checkpoint(folder / "end.ckpt")
        expected[folder] = fit.test(task, per_client_data(), verbose=False)[0]["test_loss"]
        tasks[folder] = task
    command = [sys.executable, "-W", "ignore", "-c", _PROGRAM, *tasks]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    for folder, task in tasks.items():
        found = torch.load(folder / "found.pt")
        assert found["test"] == expected[folder]
        own = [task.personalize(client).module.state_dict() for client in range(4)]
        for one, other in zip(own, found["models"], strict=True):
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) for name in one)
        assert not torch.equal(own[0]["head.weight"], own[1]["head.weight"])
        assert torch.equal(own[0]["head.bias"], made().head.bias)


def test_a_resumed_fit_freezes_the_same_and_another_optimizer_other_parameters(tmp_path):
    def task(cls=OwnHead):
        return federate(made(cls), StatefulFedAvg, personal_parameters=["head"], oracle=Sequential())

    whole, first, resumed = task(), task(), task()
    trainer(max_steps=4).fit(whole, per_client_data())
    half = ModelCheckpoint(tmp_path, filename="half", every_n_train_steps=2)
    trainer(tmp_path, max_steps=3, enable_checkpointing=True, callbacks=[half]).fit(first, per_client_data())
    trainer(tmp_path, max_steps=4).fit(resumed, per_client_data(), ckpt_path=tmp_path / "half.ckpt")
    assert distance(whole.module, resumed.module) == 0
    names = ("module.body.0.bias",), ("module.head.weight",)
    assert (resumed.parameter_space().shared.names, resumed.parameter_space().personal.names) == names
    resumed.module.configure_optimizers = lambda: torch.optim.Adam(resumed.module.parameters())
    resumed.personal_parameters = ()
    trainer(max_steps=1).fit(resumed, per_client_data())
    assert len(resumed.parameter_space().shared.names) == 4


class OneOfTwo(Lit):
    """Two layers of one shape, of which the optimizer has one."""

    def __init__(self, which):
        super().__init__()
        self.other = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh())
        self.which = which

    def forward(self, x):
        return self.head(self.body(x) + self.other(x)).squeeze(1)

    def configure_optimizers(self):
        return torch.optim.SGD(getattr(self, self.which).parameters(), lr=0.01)


def test_a_resume_does_not_put_one_layer_into_another(tmp_path):
    fit = trainer(tmp_path, max_steps=1)
    fit.fit(federate(made(OneOfTwo, which="body"), FedAvg), regression_data())
    fit.save_checkpoint(tmp_path / "one.ckpt")
    task = federate(made(OneOfTwo, which="other"), FedAvg)
    with pytest.raises(CheckpointError, match=r"optimizer of the checkpoint had 'body.0.bias'"):
        trainer(tmp_path, max_steps=2).fit(task, regression_data(), ckpt_path=tmp_path / "one.ckpt")


class OwnParts(Lit):
    """Steps its body, and one of the two parameters of its head."""

    def __init__(self, own="weight"):
        super().__init__()
        self.own = own

    def configure_optimizers(self):
        return torch.optim.SGD([*self.body.parameters(), getattr(self.head, self.own)], lr=0.05)


@pytest.mark.parametrize(("before", "now"), [("weight", "bias"), ("bias", "weight")])
def test_a_resume_with_other_personal_parameters_in_the_optimizer_is_refused(before, now, tmp_path):
    """Client states are vectors: one parameter's numbers would become another one's."""
    first = federate(OwnParts(before), Ditto, personal_parameters=["head"])
    fit = trainer(tmp_path, max_steps=5)
    fit.fit(first, per_client_data())
    fit.save_checkpoint(tmp_path / "file.ckpt")
    again = federate(OwnParts(now), Ditto, personal_parameters=["head"])
    with pytest.raises(CheckpointError, match=r"optimizer of the checkpoint (lacked|had) 'head\.\w+'.*OwnParts"):
        trainer(max_steps=10).fit(again, per_client_data(), ckpt_path=tmp_path / "file.ckpt", weights_only=False)
