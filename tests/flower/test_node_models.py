"""A hospital's own models and predictions, from the files of its node, while the node works."""

from __future__ import annotations

import warnings

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from lightning.fabric import seed_everything
from torch import nn

from fedlightning.algorithms import FedAPM
from fedlightning.cli import main
from fedlightning.core.errors import FedlightningError
from fedlightning.data.remote import RemoteClients
from fedlightning.federation.remote.run_config import RunConfig
from fedlightning.federation.transport.remote import Deadlines, Remote
from fedlightning.flower.host import NodeHost
from fedlightning.flower.node_config import NodeConfig, read_node_config, write_node_config
from fedlightning.flower.node_models import export, predict
from fedlightning.oracle import Sequential
from tests.support.archive import Archive, Dose
from tests.support.nodes import Wires
from tests.support.small import clients, trainer

ARCHIVE = "tests.support.archive"
ALGORITHM = {"class_path": "fedlightning.algorithms.FedAPM", "init_args": {"lr": 0.05}}
ORACLE = {"class_path": "fedlightning.oracle.Sequential"}
RUN = RunConfig(
    {"class_path": f"{ARCHIVE}.Dose", "init_args": {"algorithm": ALGORITHM, "oracle": ORACLE, "self_check": "off"}}, 3
)


@pytest.fixture
def stays_here(monkeypatch):
    """The commands of a node begin in its folder; the test's process comes back."""
    monkeypatch.chdir(".")
    monkeypatch.syspath_prepend(".")


def made():
    seed_everything(RUN.seed, verbose=False)
    return Dose(FedAPM(0.05), oracle=Sequential(), self_check="off")


def quietly(run, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(*args, **options)


def node_file(folder, clients_of_node):
    folder.mkdir()
    data = {"class_path": f"{ARCHIVE}.Archive"}
    config = NodeConfig("a", "localhost:1", clients_of_node, data, classes=["fedlightning", ARCHIVE], accelerator="cpu")
    write_node_config(config, folder / "node.yaml")
    return str(folder / "node.yaml")


@pytest.fixture
def federation(tmp_path, stays_here):
    """A simulation, and node files of a federation that has ended as it did; the nodes still work."""
    here = made()
    quietly(trainer(max_steps=4, limit_val_batches=0).fit, here, Archive(seed=RUN.seed))
    files = [
        node_file(tmp_path / f"node-{number}", {each: each for each in own})
        for number, own in enumerate([[3, 1], [0, 2]])
    ]
    nodes = Wires({100 + number: NodeHost(read_node_config(file)) for number, file in enumerate(files)})
    there = made()
    there.run.connect = lambda simulation: Remote(nodes, simulation, 4, Deadlines(enrol=5.0), run=RUN.to_text())
    fit = trainer(max_steps=4)
    quietly(fit.fit, there, RemoteClients(4, rounds_per_epoch=2, seed=RUN.seed))
    assert fit.callback_metrics["val_clients"] == 4
    return here, files, there


def test_validation_over_hosted_nodes_is_that_of_the_simulation(federation):
    here, _, there = federation
    quietly(trainer().validate, here, Archive(seed=RUN.seed), verbose=False)
    for name, values in here.client_metrics.items():
        assert torch.equal(there.client_metrics[name], values)


def test_a_plain_module_loads_what_is_exported(federation, tmp_path, capsys):
    here, files, _ = federation
    main(["node", "export", "--config", files[0], "--client", "3", "--out", str(tmp_path / "m.pt"), "--part", "line"])
    assert capsys.readouterr().out == f"{tmp_path / 'm.pt'}: the model of client 3 after 4 rounds\n"
    plain = nn.Linear(6, 1, bias=False)
    plain.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    assert torch.equal(plain.weight, here.line.weight)
    for client in (3, 1):
        export(files[0], client, str(tmp_path / "all.pt"))
        found = torch.load(tmp_path / "all.pt", weights_only=True)
        wanted = here.personalize(client).state_dict()
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert not torch.equal(here.personalize(1).offset, here.personalize(3).offset)


@pytest.mark.parametrize("on", ["test", "val", "train"])
def test_predictions_are_those_of_the_clients_own_model(on, federation, tmp_path, capsys):
    here, files, _ = federation
    given = {"test": clients(seed=8), "val": clients(seed=7), "train": clients()}[on]
    for client in (0, 2):
        out = str(tmp_path / "p.pt")
        quietly(main, ["node", "predict", "--config", files[1], "--client", str(client), "--out", out, "--on", on])
        found, (x, _) = torch.load(out, weights_only=True), given[client].tensors
        with torch.no_grad():
            torch.testing.assert_close(found, here.personalize(client)(x))
        assert (
            f"predictions for {len(x)} samples with the model of client {client} after 4 rounds"
            in capsys.readouterr().out
        )


def test_what_is_not_there_is_named(federation, tmp_path):
    _, files, _ = federation
    out = str(tmp_path / "out.pt")
    for call, why in (
        (lambda: export(files[0], 0, out), "client=0 is not at this node, which holds 1, 3"),
        (lambda: export(files[0], 3, out, part="net"), "Dose has no module of this name. There are line"),
        (lambda: predict(files[0], 3, out, on="predict"), "on=predict: the node's data have none of these. There are"),
        (lambda: export(files[0], 3, str(tmp_path / "no" / "out.pt")), "Nothing was written"),
    ):
        with pytest.raises(FedlightningError, match=why):
            call()
    assert not (tmp_path / "out.pt").exists()
    with pytest.raises(FedlightningError, match="no server has enrolled this node yet"):
        export(node_file(tmp_path / "new", [0]), 0, out)
