"""Link, nodes and server as processes, over TLS with keys: killed, started again, resumed, and strangers refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import yaml

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = [pytest.mark.flower, pytest.mark.slow]

from fedlightning.flower.deployment.certificates import make_authority
from fedlightning.flower.deployment.node_keys import make_node_key
from fedlightning.flower.node_config import read_node_config
from fedlightning.flower.node_start import Node
from tests.support.deployed import HOSPITAL, run_config
from tests.support.paths import ROOT
from tests.support.real_federation import RealFederation, free_port, wait_for

NODES = {"a": (0, 1), "b": (2, 3)}
ROUNDS = 5
EVERYONE = {"class_path": "fedlightning.participation.WaitForAll", "init_args": {"pause": 1.0}}
"""The round asks again whoever is away; otherwise it would go on without, and end elsewhere than the simulation."""


def config():
    found = run_config(algorithm="CDMA_ADA")
    del found["work"]
    found["trainer"] = {**found["trainer"], "max_steps": ROUNDS}
    found["data"] = {"class_path": f"{HOSPITAL}.Records", "init_args": {"batch_size": 4, "participation": EVERYONE}}
    return found


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    before = dict(os.environ)
    made = RealFederation(tmp_path_factory.mktemp("real"), config(), NODES)
    yield made
    made.close()
    os.environ.clear()
    os.environ.update(before)


def simulated(folder):
    (folder / "here.yaml").write_text(yaml.safe_dump(config()))
    command = [sys.executable, "-m", "fedlightning", "fit", "--config=here.yaml"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return torch.load(next(folder.rglob("last.ckpt")), weights_only=False)["state_dict"]


def test_what_is_killed_goes_on_and_ends_where_the_simulation_does(federation, tmp_path):
    trap, runs = federation.folder / "trap", sorted((ROOT / "runs").glob("*"))
    hostile = federation.server.app
    (hostile / "hostile.py").write_text(f"open({str(trap)!r}, 'w').write('it ran')\napp = None\n")
    toml = hostile / "pyproject.toml"
    toml.write_text(toml.read_text().replace("fedlightning.flower.node_app:app", "hostile:app"))
    for node in NODES:
        federation.start_node(node)
    federation.runs.submit()
    wait_for(lambda: federation.rounds() >= 1, "the first round")
    federation.kill_worker("a")
    wait_for(lambda: federation.rounds() >= 3, "a round after a worker was killed")
    federation.runs.stop()
    federation.kill("b")
    federation.start_node("b")
    number = federation.runs.submit(checkpoint="last")
    assert wait_for(lambda: (run := federation.runs.get(number)).is_over and run, "the end").is_complete
    there = torch.load(federation.last_checkpoint(), weights_only=False)
    assert there["global_step"] == ROUNDS
    for name, value in simulated(tmp_path).items():
        torch.testing.assert_close(there["state_dict"][name], value)
    assert "worker was killed by signal 9" in federation.log("a")
    assert "Went on with the run that was kept" in federation.log("a")
    assert not trap.exists()
    assert sorted((ROOT / "runs").glob("*")) == runs


@pytest.fixture(scope="module")
def strangers(federation):
    """What becomes of nodes that are not as the link knows them: exit status and log of each."""
    folder = federation.folder
    known = read_node_config(federation.home("a") / "node.yaml")
    other_authority, other_key = folder / "other.crt", folder / "other.key"
    other_authority.write_bytes(make_authority("another").certificate)
    other_key.write_bytes(make_node_key("a").private)
    other_key.chmod(0o600)
    key, authority = "--auth-supernode-private-key", "--root-certificates"
    changes = {
        "wrong authority": {authority: str(other_authority)},
        "unknown key": {key: str(other_key)},
        "no key": {key: None},
        "clear text": {key: None, authority: None},
    }
    running = {}
    for name, changed in changes.items():
        home = folder / name
        home.mkdir()
        node = Node(known, federation.home("a") / "node.yaml", home)
        options = dict(zip(node.flower[1::2], node.flower[2::2], strict=True)) | {"--port": str(free_port())} | changed
        words = [word for option, value in options.items() if value is not None for word in (option, value)]
        insecure = ["--insecure", "--max-retries", "1"] if authority in changed and changed[authority] is None else []
        running[name] = federation.start(name, [node.flower[0], *words, *insecure], node.environment)
    return {name: (process.wait(60), federation.log(name)) for name, process in running.items()}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wrong authority", "CERTIFICATE_VERIFY_FAILED"),
        ("unknown key", "[code: 2004]"),
        ("no key", "[code: 2001]"),
        ("clear text", "Exit Code: 305"),
    ],
)
def test_strangers_are_refused(name, said, strangers):
    status, log = strangers[name]
    assert status == 1
    assert said in log
    assert "SuperNode ID" not in log
