"""A server runs the config of a simulation, with its clients at nodes."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress

import pytest
import torch
import yaml

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore")]

from fedlightning.cli.app import FederatedCLI
from fedlightning.cli.server import ServerCLI, run_server
from fedlightning.core.errors import UsageError
from fedlightning.federation.remote.checks import AnswerChecks
from fedlightning.federation.remote.enrolment import EnrolmentError
from fedlightning.federation.remote.run_config import LocalWork, RunConfig
from fedlightning.federation.remote.silence import Silence
from tests.support.deployed import HOSPITAL, hosts_in, run_config, server_folder
from tests.support.nodes import Wires


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Runs go into the server's folder, and look for modules there."""
    monkeypatch.chdir(os.getcwd())
    monkeypatch.setattr(sys, "path", [*sys.path])


def simulated(tmp_path, rounds=4, **changes):
    """The weights at which the simulation of a run ends."""
    config = run_config(**changes)
    work, trainer = config.pop("work"), config["trainer"]
    config["data"] = {"class_path": f"{HOSPITAL}.Records", "init_args": work}
    config["trainer"] = {**trainer, "max_steps": rounds, "enable_checkpointing": False}
    (tmp_path / "simulation.yaml").write_text(yaml.safe_dump(config))
    return FederatedCLI(["fit", f"--config={tmp_path}/simulation.yaml"]).model.state_dict()


def served(tmp_path, carrier, *changes, checkpoint="", folder="server"):
    """The weights at which a server ends."""
    server = tmp_path / folder
    run_server(carrier, server / "run.yaml", 4, server / "runs", checkpoint, changes)
    return weights(server)


def last(server):
    return max((server / "runs").rglob("last.ckpt"), key=lambda path: path.stat().st_mtime)


def weights(server):
    return torch.load(last(server), weights_only=False)["state_dict"]


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_run_ends_at_the_weights_of_the_simulation_and_can_be_resumed(tmp_path):
    server, carrier = server_folder(tmp_path / "server"), Wires(hosts_in(tmp_path))
    served(tmp_path, carrier, "--trainer.max_steps=2")
    before = last(server)
    resumed = served(tmp_path, carrier, checkpoint=str(before))
    assert_equal(resumed, simulated(tmp_path))
    assert [kind for _, kind in carrier.received].count("ask") == 2 * 4


@pytest.mark.parametrize(("task", "algorithm"), [("Tumour", "CDMA_ADA"), ("Offset", "FedAPM")])
def test_two_phases_and_personal_parameters_go_with_it(task, algorithm, tmp_path):
    server_folder(tmp_path / "server", task=task, algorithm=algorithm)
    there = served(tmp_path, Wires(hosts_in(tmp_path)))
    for name, value in simulated(tmp_path, task=task, algorithm=algorithm).items():
        torch.testing.assert_close(there[name], value)  # a simulation adds up clients of other sizes in another order


def test_nodes_are_told_of_the_task_as_it_is_resolved(tmp_path):
    server = server_folder(tmp_path / "server")
    carrier = Wires(hosts_in(tmp_path))
    served(tmp_path, carrier, "--model.algorithm.lr=0.1", "--trainer.max_steps=1", "--trainer.precision=bf16-mixed")
    run = RunConfig.of_text((tmp_path / "node-0" / "states" / "run.yaml").read_text())
    assert run.model["class_path"] == f"{HOSPITAL}.Tumour"
    assert run.model["init_args"]["algorithm"]["init_args"]["lr"] == 0.1
    assert (run.seed, run.precision, run.work) == (3, "bf16-mixed", LocalWork(local_steps=2))
    assert (server / "runs").is_dir()


def test_early_stopping_and_tensorboard_work_as_in_a_simulation(tmp_path):
    stop = {"class_path": "EarlyStopping", "init_args": {"monitor": "train_loss", "stopping_threshold": 1e9}}
    logger = {"class_path": "TensorBoardLogger", "init_args": {"save_dir": str(tmp_path / "logs")}}
    trainer = {**run_config()["trainer"], "callbacks": [stop], "logger": logger}
    server = server_folder(tmp_path / "server", trainer=trainer, data={"rounds_per_epoch": 1})
    run_server(Wires(hosts_in(tmp_path)), server / "run.yaml", 4, server / "runs")
    (events,) = (tmp_path / "logs").rglob("events.out.*")
    assert events.stat().st_size > 0
    (checkpoint,) = (tmp_path / "logs").rglob("last.ckpt")
    assert torch.load(checkpoint, weights_only=False)["global_step"] == 1


def test_deadlines_checks_and_silence_are_the_runs_to_say(tmp_path):
    server = server_folder(tmp_path / "server", deadlines={"phase": 7.0}, silence={"tolerance": 2})
    made = []

    class Seen(ServerCLI):
        def before_fit(self):
            super().before_fit()
            made.append(self.config_init["fit"])
            raise UsageError("that is enough")

    with pytest.raises(UsageError, match="enough"):
        Seen(Wires({}), ["fit", "--data.num_clients=4", f"--config={server}/run.yaml", "--checks.largest=10"])
    (config,) = made
    assert config.deadlines.phase == 7.0
    assert (type(config.checks), type(config.silence)) == (AnswerChecks, Silence)


def test_a_node_that_does_not_fit_stops_the_run_before_its_first_round(tmp_path):
    server_folder(tmp_path / "server")
    carrier = Wires(hosts_in(tmp_path, classes=["fedlightning"]))
    with pytest.raises(EnrolmentError, match=rf"cannot enrol: .* names {HOSPITAL}\.Tumour: it is not on"):
        served(tmp_path, carrier)
    assert {kind for _, kind in carrier.received} == {"enrol"}


def test_a_mistake_in_the_config_is_an_error_and_not_the_end_of_flowers_process(tmp_path, capsys):
    server_folder(tmp_path / "server")
    given = sys.argv
    with pytest.raises(UsageError, match=r"run\.yaml was not carried out: see above"):
        served(tmp_path, Wires({}), "--data.participants=1")
    assert "data.participants" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"run\.yaml was not carried out: see above"):
        served(tmp_path, Wires({}), "--data.seed=1")
    assert "one seed makes a run" in capsys.readouterr().err
    assert sys.argv is given


def test_arguments_of_flowers_process_are_not_shown(tmp_path, monkeypatch):
    server_folder(tmp_path / "server")
    monkeypatch.setattr(sys, "argv", ["flwr-serverapp", "--token", "secret"])
    with warnings.catch_warnings(record=True) as said, suppress(UsageError):
        warnings.simplefilter("always")
        served(tmp_path, Wires({}), "--no.such=1")
    assert not any("secret" in str(each.message) for each in said)
