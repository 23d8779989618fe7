"""The worker answers at its socket, and goes on after kill -9 without being told of the run again."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import contextmanager

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.federation.protocol import Precision
from fedlightning.federation.remote.packet import Packet
from fedlightning.federation.remote.roster_codec import encode_join
from fedlightning.federation.remote.run_config import RunConfig
from fedlightning.flower.local_socket import AwayError, ask
from fedlightning.flower.node_config import NodeConfig, write_node_config
from tests.support.paths import ROOT

HOSPITAL = "tests.support.hospital"
ALGORITHM = {"class_path": "fedlightning.algorithms.SCAFFOLD", "init_args": {"lr": 0.1}}
RUN = RunConfig({"class_path": f"{HOSPITAL}.Tumour", "init_args": {"algorithm": ALGORITHM}}, 3)


@contextmanager
def worker(folder, **changes):
    values = {"data": {"class_path": f"{HOSPITAL}.Records"}, "classes": ["fedlightning", HOSPITAL], **changes}
    write_node_config(NodeConfig("a", "localhost:1", [0, 1, 2, 3], accelerator="cpu", **values), folder / "node.yaml")
    (folder / "run").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "fedlightning.flower.worker", "node.yaml", str(folder / "run" / "worker")]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def asked(folder, packet, seconds=60.0):
    return Packet.from_bytes(ask(folder / "run" / "worker", packet.to_bytes(), seconds))


def test_a_killed_worker_goes_on_with_the_run(tmp_path):
    with worker(tmp_path):
        enrolment = asked(tmp_path, Packet("enrol", {"run": RUN.to_text()}))
        assert enrolment.values["client_ids"] == [0, 1, 2, 3]
        roster = asked(tmp_path, encode_join(Precision()))
        assert roster.kind == "roster"
    with worker(tmp_path):
        assert asked(tmp_path, encode_join(Precision())) == roster
        assert (tmp_path / "states" / "run.yaml").read_text() == RUN.to_text()


def test_a_worker_without_its_data_ends_with_one_line(tmp_path):
    with worker(tmp_path, data={"class_path": "no_such.Data"}) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 3
    assert re.search(r"^\d{4}-.* worker ERROR: data cannot be built: .*no_such", said, re.MULTILINE)
    assert "Traceback" not in said


def test_a_worker_that_hangs_is_ended(tmp_path):
    """An endless objective holds the node until its limit."""
    hangs = RunConfig({**RUN.model, "class_path": f"{HOSPITAL}.Endless"}, 3)
    with worker(tmp_path, longest_answer=10.0) as process:
        assert asked(tmp_path, Packet("enrol", {"run": hangs.to_text()})).kind == "enrolment"
        with pytest.raises(AwayError, match="it ended before it had answered this message"):
            asked(tmp_path, encode_join(Precision()), seconds=1.0)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "Timeout (0:00:10)" in said
        assert "in objective" in said
