"""The folder of a federation's server whose nodes are hosts in this process."""

from __future__ import annotations

import yaml

from fedlightning.flower.host import NodeHost
from fedlightning.flower.node_config import NodeConfig

HOSPITAL = "tests.support.hospital"
HOLDINGS = {"a": [3, 1], "b": [0, 2]}
FEDERATION = {
    "name": "ward",
    "address": "127.0.0.1:8443",
    "listen": "127.0.0.1:8443",
    "nodes": HOLDINGS,
    "num_clients": 4,
}


def run_config(task="Tumour", algorithm="SCAFFOLD", **changes):
    """The config of a run, as a server has it."""
    return {
        "seed_everything": 3,
        "trainer": {
            "max_steps": 4,
            "accelerator": "cpu",
            "devices": 1,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "logger": False,
        },
        "model": {
            "class_path": f"{HOSPITAL}.{task}",
            "init_args": {
                "algorithm": {"class_path": f"fedlightning.algorithms.{algorithm}", "init_args": {"lr": 0.05}},
                "oracle": {"class_path": "fedlightning.oracle.Sequential"},
                "self_check": "off",
            },
        },
        "data": {"rounds_per_epoch": 4},
        "work": {"local_steps": 2},
        **changes,
    }


def server_folder(folder, **changes):
    """Write what a server needs to run."""
    folder.mkdir()
    (folder / "federation.yaml").write_text(yaml.safe_dump(FEDERATION))
    (folder / "run.yaml").write_text(yaml.safe_dump(run_config(**changes)))
    return folder


def hosts_in(folder, **changes):
    """A host for each node."""
    values = {"data": {"class_path": f"{HOSPITAL}.Records"}, "classes": ["fedlightning", HOSPITAL], **changes}
    found = {}
    for number, client_ids in enumerate(HOLDINGS.values()):
        places = {each: each for each in client_ids}
        config = NodeConfig("a", "localhost:1", places, folder=folder / f"node-{number}", accelerator="cpu", **values)
        found[100 + number] = NodeHost(config)
    return found
