"""Validation and test over nodes, beside those of a simulation."""

from __future__ import annotations

import csv
import shutil
import warnings

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from fedlightning import federate
from fedlightning.algorithms import FedAPM, FedAvg
from fedlightning.callbacks import ClientValuesFile
from fedlightning.data import IID, PersonalDigits
from fedlightning.federation.remote.packet import Packet
from fedlightning.federation.remote.silence import NodeError
from fedlightning.oracle import Sequential
from fedlightning.participation import Uniform
from fedlightning.tasks import Classification, PersonalizedClassification
from tests.support.evaluated import held_out_data
from tests.support.lightning_nodes import lightning_node, lightning_nodes, seeded, server
from tests.support.measured import TASKS, MeasuredLine, one_by_one, quietly
from tests.support.small import clients, trainer

POOLED = {name for name in TASKS if name.startswith("one model")}


def measured(metrics):
    """What was measured at clients, of all that was logged."""
    return {name: value for name, value in metrics.items() if name.startswith(("val_", "test_", "local_", "global_"))}


def assert_alike(here, there, exactly=True):
    assert there.keys() - here.keys() <= {"val_clients", "test_clients"}
    assert here.keys() <= there.keys()
    for name, value in here.items():
        found, wanted = torch.as_tensor(there[name]), torch.as_tensor(value)
        if exactly:
            assert torch.equal(found, wanted), name
        else:
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", TASKS)
def test_nodes_measure_what_the_simulation_measures(name, tmp_path):
    make, options = TASKS[name]

    def data():
        return held_out_data(**options)

    here, local = seeded(make), trainer(max_steps=6)
    quietly(local.fit, here, held_out_data(participation=Uniform(3), **options))
    there, remote_data = server(make, lightning_nodes(make, data, tmp_path), Uniform(3))
    remote = trainer(max_steps=6)
    quietly(remote.fit, there, remote_data)
    found = measured(remote.callback_metrics)
    assert len(measured(local.callback_metrics)) >= 2
    exactly = name not in POOLED and "architectures" not in name  # a simulation adds up one architecture after another
    assert_alike(measured(local.callback_metrics), found, exactly)
    assert found["val_clients"] == 4
    tested = quietly(remote.test, there, remote_data, verbose=False)[0]
    assert_alike(quietly(local.test, here, data(), verbose=False)[0], tested, exactly)
    assert tested["test_clients"] == 4
    if name not in POOLED:
        for metric, values in here.client_metrics.items():
            assert torch.allclose(values, there.client_metrics[metric], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:No positive samples")
@pytest.mark.parametrize("name", ["own models, side by side", "one model for all"])
def test_ready_made_tasks_are_measured_alike(name, tmp_path):
    def data():
        return PersonalDigits(IID(4), batch_size=10, local_steps=4, eval_batch_size=30, rounds_per_epoch=2, seed=1)

    def make():
        if name == "one model for all":
            return Classification(FedAvg(0.1), network=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
        return PersonalizedClassification(FedAPM(0.1), personal=("head",))

    here, local = seeded(make), trainer(max_steps=4)
    quietly(local.fit, here, data())
    there, remote_data = server(make, lightning_nodes(make, data, tmp_path))
    remote = trainer(max_steps=4)
    quietly(remote.fit, there, remote_data)
    wanted, found = measured(local.callback_metrics), measured(remote.callback_metrics)
    assert {"val_accuracy", "val_f1", "val_loss"} <= wanted.keys()
    assert ("val_accuracy_worst" in wanted) == name.startswith("own")
    for metric, value in wanted.items():
        torch.testing.assert_close(found[metric], value, rtol=1e-5, atol=1e-5)


def test_nodes_measure_in_the_precision_of_the_server(tmp_path):
    make, _ = TASKS["averaged buffers, every client"]
    found = {}
    for precision in ("32-true", "bf16-mixed"):
        here, local = seeded(make), trainer(max_steps=2, precision=precision)
        quietly(local.fit, here, held_out_data())
        there, data = server(make, lightning_nodes(make, held_out_data, tmp_path / precision))
        remote = trainer(max_steps=2, precision=precision)
        quietly(remote.fit, there, data)
        found[precision] = measured(remote.callback_metrics)
        assert_alike(measured(local.callback_metrics), found[precision])
    assert found["32-true"]["val_loss"] != found["bf16-mixed"]["val_loss"]


def test_models_are_measured_before_the_first_round_and_after_a_restart_of_server_and_nodes(tmp_path):
    make, _ = TASKS["averaged buffers, every client"]
    here, local = seeded(make), trainer(max_steps=4)
    start = quietly(local.validate, here, held_out_data(), verbose=False)[0]
    quietly(local.fit, here, held_out_data(participation=Uniform(2)))
    there, data = server(make, lightning_nodes(make, held_out_data, tmp_path), Uniform(2))
    remote = trainer(tmp_path, max_steps=4)
    assert_alike(start, quietly(remote.validate, there, data, verbose=False)[0])
    quietly(remote.fit, there, data)
    remote.save_checkpoint(tmp_path / "last.ckpt")

    again, data = server(make, restarted(make, tmp_path), Uniform(2))
    found = quietly(trainer().validate, again, data, ckpt_path=tmp_path / "last.ckpt", verbose=False)[0]
    assert_alike(quietly(local.validate, here, held_out_data(), verbose=False)[0], found)


def restarted(make, folder, data=held_out_data):
    """Nodes with new tasks, and the folders of those before."""
    return lightning_nodes(make, data, free(folder))


def free(folder):
    """A copy of the nodes' folders, which their former processes no longer hold."""
    return shutil.copytree(folder, folder / "after")


def test_a_client_that_never_took_part_is_measured_with_the_servers_statistics_by_a_new_node(tmp_path):
    make, _ = TASKS["averaged buffers, every client"]
    carrier = lightning_nodes(make, held_out_data, tmp_path, [[3, 1], [0], [2]])
    there, data = server(make, carrier, Uniform(1), rounds_per_epoch=1)
    quietly(trainer(max_steps=1).fit, there, data)
    before = there.client_metrics["val_loss"].clone()
    took_part = {client for client in range(4) if there.run.simulation.loop.transport.ledger.standing(client).base}
    carrier.services |= restarted_nodes(make, tmp_path)
    quietly(trainer().validate, there, data, verbose=False)
    assert len(took_part) == 1
    assert torch.equal(there.client_metrics["val_loss"], before)


def restarted_nodes(make, folder):
    return lightning_nodes(make, held_out_data, free(folder), [[3, 1], [0], [2]]).services


def test_metrics_say_of_how_many_clients_they_are(tmp_path):
    make, _ = TASKS["personal block"]
    carrier = lightning_nodes(make, held_out_data, tmp_path)
    there, data = server(make, carrier)
    quietly(trainer(max_steps=2).fit, there, data)
    whole = there.client_metrics["val_loss"]
    carrier.dead.add(101)
    fit = trainer()
    with pytest.warns(
        RuntimeWarning,
        match="Validation: the metrics are without 2 of 4 clients, of whose nodes there is no answer: 0, 2",
    ):
        found = fit.validate(there, data, verbose=False)[0]
    assert found["val_clients"] == 2
    assert found["val_loss"] == pytest.approx(float(whole[[1, 3]].mean()))
    assert torch.equal(there.client_metrics["val_loss"].isnan(), torch.tensor([True, False, True, False]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert fit.validate(there, data, verbose=False)[0]["val_clients"] == 2  # it was said
        carrier.dead.clear()
        found = fit.validate(there, data, verbose=False)[0]
    assert found["val_clients"] == 4
    assert torch.equal(there.client_metrics["val_loss"], whole)


def test_clients_without_data_are_left_out_and_where_nobody_has_any_it_is_said(tmp_path):
    make, _ = TASKS["personal block"]
    own = clients(seed=7)

    def some():
        return held_out_data(val=[own[0], None, own[2], None])

    there, data = server(make, lightning_nodes(make, some, tmp_path / "some"))
    fit = trainer(max_steps=2)
    quietly(fit.fit, there, data)
    assert fit.callback_metrics["val_clients"] == 2
    assert torch.equal(there.client_metrics["val_loss"].isnan(), torch.tensor([False, True, False, True]))
    there, data = server(make, lightning_nodes(make, lambda: held_out_data(val=None), tmp_path / "none"))
    fit = trainer(max_steps=2)
    with pytest.warns(UserWarning, match=r"Nothing was measured at the nodes, .* RemoteClients\(val=\.\.\.\)"):
        fit.fit(there, data)
    assert measured(fit.callback_metrics) == {"val_clients": torch.tensor(0.0)}


def test_data_of_a_node_with_one_client_are_the_clients(tmp_path):
    make, _ = TASKS["personal block"]
    own, val = clients()[0], clients(seed=7)[0]
    data = held_out_data().from_datasets([own], val=val, batch_size=4, local_steps=3)
    task = seeded(make)
    carrier = lightning_nodes(make, lambda: data, tmp_path, [[0]])
    there, remote_data = server(make, carrier, num_clients=1)
    fit = trainer(max_steps=2)
    quietly(fit.fit, there, remote_data)
    assert fit.callback_metrics["val_clients"] == 1
    shared = held_out_data().from_datasets([own, own], val=val, batch_size=4)
    node = lightning_node(task, shared, [0, 1], tmp_path / "two")
    there, remote_data = server(make, type(carrier)({100: node}), num_clients=2)
    with pytest.raises(NodeError, match="do not say which val samples each client holds"):
        quietly(trainer(max_steps=2).fit, there, remote_data)


class Ranked(MeasuredLine):
    def __init__(self, *args, metric=BinaryAUROC, reduce_fx="mean", **options):
        super().__init__(*args, **options)
        self.score, self.reduction = metric(), reduce_fx

    def measure(self, stage, batch):
        x, y = batch
        self.score.update(self.head(self.body(x)).squeeze(1).sigmoid(), (y > 0).long())
        self.log(f"{stage}_score", self.score)
        self.log(f"{stage}_most", y.mean(), batch_size=len(y), reduce_fx=self.reduction)


class RankedEach(Ranked):
    per_client_evaluation = True


@pytest.mark.parametrize(
    ("metric", "make"),
    [(lambda: BinaryAUROC(thresholds=20), Ranked), (BinaryAccuracy, Ranked), (BinaryAUROC, RankedEach)],
)
def test_metrics_that_add_up_are_those_of_all_samples(metric, make, tmp_path):
    made = one_by_one(make, FedAvg(0.05), metric=metric)
    local, remote = trainer(max_steps=2), trainer(max_steps=2)
    quietly(local.fit, seeded(made), held_out_data())
    there, data = server(made, lightning_nodes(made, held_out_data, tmp_path))
    quietly(remote.fit, there, data)
    assert_alike(measured(local.callback_metrics), measured(remote.callback_metrics), make is RankedEach)
    assert 0 < remote.callback_metrics["val_score"] < 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "'val_score' is a BinaryAUROC, whose value over the samples of all clients needs the samples' scores"),
        ({"metric": BinaryAccuracy, "reduce_fx": "max"}, "'val_most' is logged with reduce_fx='max'"),
    ],
)
def test_what_needs_the_samples_of_all_clients_is_refused(options, why, tmp_path):
    make = one_by_one(Ranked, FedAvg(0.05), **options)
    there, data = server(make, lightning_nodes(make, held_out_data, tmp_path))
    with pytest.raises(NodeError, match=why):
        quietly(trainer(max_steps=2).fit, there, data)


def test_neither_scores_nor_states_are_in_what_nodes_send(tmp_path):
    make, _ = TASKS["personal models beside the global one"]
    carrier = lightning_nodes(make, held_out_data, tmp_path)
    there, data = server(make, carrier)
    quietly(trainer(max_steps=2, limit_val_batches=0).fit, there, data)
    carrier.sent.clear()
    quietly(trainer().validate, there, data, verbose=False)
    assert len(carrier.sent) == 2
    assert all(len(sent) < 2500 for sent in carrier.sent)  # four metrics of two models and two clients
    packets = [Packet.from_bytes(sent) for sent in carrier.sent]
    assert all(array.shape == (2,) for packet in packets for array in packet.arrays.values())


def test_the_file_of_clients_values_has_what_nodes_measured(tmp_path):
    make, _ = TASKS["personal block"]
    there, data = server(make, lightning_nodes(make, held_out_data, tmp_path))
    file = ClientValuesFile(tmp_path / "clients.csv")
    quietly(trainer(tmp_path, max_steps=2, callbacks=[file]).fit, there, data)
    rows = [row for row in csv.DictReader((tmp_path / "clients.csv").read_text().splitlines()) if row["stage"] == "val"]
    assert [int(row["client"]) for row in rows] == [0, 1, 2, 3]
    assert torch.allclose(torch.tensor([float(row["val_loss"]) for row in rows]), there.client_metrics["val_loss"])


def test_a_node_trains_on_after_it_has_measured(tmp_path):
    """To measure changes neither modes, nor models, nor what is trained."""
    make, _ = TASKS["averaged buffers, every client"]
    ends = []
    for interval in (1, 4):
        carrier = lightning_nodes(make, held_out_data, tmp_path / str(interval))
        there, data = server(make, carrier, rounds_per_epoch=interval)
        quietly(trainer(max_steps=4).fit, there, data)
        ends.append(torch.cat([p.detach().flatten() for p in there.parameters()]))
    assert torch.equal(*ends)


class Module(LightningModule):
    """An unchanged module, whose batches are scaled on their way to the device."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 1)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0] / 2, batch[1]

    def loss(self, batch):
        return (self.net(batch[0]).squeeze(1) - batch[1]).square().mean()

    def training_step(self, batch):
        return self.loss(batch)

    def validation_step(self, batch):
        self.log("val_loss", self.loss(batch), batch_size=len(batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


@pytest.mark.parametrize("options", [{"personal_parameters": ["net.bias"]}, {"per_client_evaluation": True}, {}])
def test_unchanged_modules_are_measured_alike(options, tmp_path):
    def make():
        return federate(Module(), FedAvg(0.05), oracle=Sequential(), self_check="off", **options)

    local, remote = trainer(max_steps=2), trainer(max_steps=2)
    quietly(local.fit, seeded(make), held_out_data())
    there, data = server(make, lightning_nodes(make, held_out_data, tmp_path))
    quietly(remote.fit, there, data)
    assert_alike(measured(local.callback_metrics), measured(remote.callback_metrics), bool(options))


def test_a_metric_that_the_server_has_not_is_named(tmp_path):
    make, _ = TASKS["one model for all"]
    there, data = server(make, lightning_nodes(make, held_out_data, tmp_path))
    del there.spread
    with pytest.raises(
        RuntimeError, match="'val_spread' is the metric 'spread' at the nodes, which MeasuredLine has not"
    ):
        quietly(trainer(max_steps=2).fit, there, data)
