"""Models that clients make of the global one when they use it: in evaluation, prediction, and on their own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedlightning import FederatedDataModule
from fedlightning.algorithms import PerFedAvg
from fedlightning.core.errors import UsageError
from fedlightning.models import PersonalMLP
from fedlightning.oracle import Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import PersonalizedClassification
from tests.support.evaluated import OneByOne, digits, held_out_data
from tests.support.lightning_nodes import lightning_nodes, seeded, server
from tests.support.measured import MeasuredLine, one_by_one, quietly
from tests.support.small import Normed, clients, trainer

SIZE = 0.3
WHOLE = {"batch_size": None, "local_steps": 2}


def by_hand(task, samples, steps=1):
    """The mean loss after gradient steps of the task's own parameters on all of a client's samples."""
    own = [p.detach().clone() for p in task.parameters()]
    names = [name for name, _ in task.named_parameters()]
    for _ in range(steps):
        leaves = [p.clone().requires_grad_() for p in own]
        loss = torch.func.functional_call(
            _Loss(task), {f"task.{n}": p for n, p in zip(names, leaves, strict=True)}, samples
        )
        own = [p - SIZE * g for p, g in zip(own, torch.autograd.grad(loss, leaves), strict=True)]
    return dict(zip(names, own, strict=True))


class _Loss(torch.nn.Module):
    def __init__(self, task):
        super().__init__()
        self.task = task

    def forward(self, *samples):
        return self.task.objective(samples)["loss"]


def per_fed_avg(**options):
    return PerFedAvg(0.05, SIZE, **options)


def fitted(data, **options):
    task, fit = seeded(one_by_one(MeasuredLine, per_fed_avg(**options), 0.0)), trainer(max_steps=2)
    quietly(fit.fit, task, data)
    return task, fit


@pytest.mark.parametrize("steps", [1, 3])
def test_a_clients_own_model_is_the_present_global_one_after_its_personal_steps(steps):
    data = held_out_data(participation=Uniform(1), **WHOLE)
    task, _ = fitted(data, personal_steps=steps)
    for client, samples in enumerate(clients()):
        wanted = by_hand(task, samples.tensors, steps)
        for name, own in task.personalize(client).named_parameters():
            torch.testing.assert_close(own, wanted[name])
            assert not torch.equal(own, task.get_parameter(name))


def test_validation_and_test_look_at_both_models():
    data = held_out_data(**WHOLE)
    task, fit = fitted(data)
    logged = quietly(fit.test, task, data, verbose=False)[0]
    for name, model in (("test_loss", task.personalize), ("test_global_loss", lambda _: task)):
        own = [model(client).objective(samples.tensors)["loss"] for client, samples in enumerate(clients(seed=8))]
        assert logged[name] == pytest.approx(torch.stack(own).mean().item(), rel=1e-5)
    assert logged["test_loss"] != pytest.approx(logged["test_global_loss"], rel=1e-3)
    predicted = quietly(fit.predict, task, data)
    assert len(predicted) == 4


def test_a_checkpoint_has_the_models_again_once_there_are_data(tmp_path):
    data = held_out_data(**WHOLE)
    task, fit = fitted(data)
    before = quietly(fit.validate, task, data, verbose=False)[0]
    fit.save_checkpoint(tmp_path / "last.ckpt")
    loaded = MeasuredLine.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=False)
    with pytest.raises(UsageError, match=r"PerFedAvg makes .* data of client 1 are not at hand. Fit, validate or test"):
        loaded.personalize(1)
    assert quietly(trainer().validate, loaded, data, verbose=False)[0] == before
    for own, wanted in zip(loaded.personalize(1).parameters(), task.personalize(1).parameters(), strict=True):
        assert torch.equal(own, wanted)


def test_nodes_measure_the_models_that_the_simulation_measures(tmp_path):
    make = one_by_one(MeasuredLine, per_fed_avg())
    here, local = seeded(make), trainer(max_steps=4)
    quietly(local.fit, here, held_out_data(participation=Uniform(3)))
    there, remote_data = server(make, lightning_nodes(make, held_out_data, tmp_path), Uniform(3))
    remote = trainer(max_steps=4)
    quietly(remote.fit, there, remote_data)
    for name in ("val_loss", "val_global_loss"):
        assert remote.callback_metrics[name] == local.callback_metrics[name]
    with pytest.raises(UsageError, match="are not at hand"):
        there.personalize(0)


@pytest.mark.filterwarnings("ignore:No positive samples")
def test_models_side_by_side_are_those_one_by_one():
    found = []
    for kind in (PersonalizedClassification, type("One", (OneByOne, PersonalizedClassification), {})):
        torch.manual_seed(0)
        task = kind(per_fed_avg(), PersonalMLP(), oracle=Vectorized())
        fit, data = trainer(max_steps=2, limit_val_batches=0), digits()
        fit.fit(task, data)
        found.append(trainer().validate(task, data, verbose=False)[0])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_running_statistics_and_modes_stay_as_they_are():
    class Validated(Normed):
        def validation_step(self, batch, batch_idx):
            assert not self.training
            assert not self.net[1].training
            self.log("val_loss", F.cross_entropy(self.net(batch[0]), (batch[1] > 0).long()))

    torch.manual_seed(0)
    task, fit = Validated(per_fed_avg()), trainer(max_steps=2)
    data = FederatedDataModule.from_datasets(
        clients(), val=clients(seed=7), batch_size=4, local_steps=2, rounds_per_epoch=2, seed=1
    )
    fit.fit(task, data)
    before = task.net[1].running_mean.clone()
    fit.validate(task, data, verbose=False)
    assert torch.equal(task.net[1].running_mean, before)
    assert torch.equal(task.personalize(2).net[1].running_mean, before)


class Watched(Normed):
    """Notes in which modes the objective finds the task, a linear layer and BatchNorm."""

    def __init__(self, algorithm=None, **federation):
        super().__init__(algorithm, **federation)
        self.seen = []

    def objective(self, batch):
        self.seen.append((self.training, self.net[0].training, self.net[1].training))
        return super().objective(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), (batch[1] > 0).long()))


def watched_data():
    return FederatedDataModule.from_datasets(
        clients(), val=clients(seed=7), batch_size=4, local_steps=2, rounds_per_epoch=2, seed=1
    )


@pytest.mark.filterwarnings("ignore:Found .* module")  # Lightning says so
@pytest.mark.parametrize(
    ("frozen", "validates"),
    [([], True), (["net.1"], True), (["net.1"], False), (["", "net", "net.0", "net.1", "net.2", "net.3"], True)],
)
def test_where_clients_adapt_modules_are_in_the_modes_of_the_last_round(frozen, validates, tmp_path):
    task, data = seeded(lambda: Watched(per_fed_avg())), watched_data()
    for name in frozen:
        task.get_submodule(name).training = False  # Lightning keeps it
    fit = trainer(max_steps=2, num_sanity_val_steps=0, **({} if validates else {"limit_val_batches": 0}))
    fit.fit(task, data)
    in_rounds = {*task.seen}
    assert in_rounds == {tuple(name not in frozen for name in ("", "net.0", "net.1"))}
    task.personalize(2)
    found = trainer().validate(task, data, verbose=False)
    fit.save_checkpoint(tmp_path / "last.ckpt")
    task.net.eval()  # to look at the model by hand
    assert trainer().validate(task, data, verbose=False) == found
    task.eval()
    task.personalize(2)
    assert {*task.seen} == in_rounds
    loaded = Watched.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=False)
    assert trainer().validate(loaded, data, verbose=False) == found
    assert {*loaded.seen} == in_rounds
