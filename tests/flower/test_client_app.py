"""The app that Flower starts for every message: it passes bytes on, without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.federation.remote.packet import Packet
from tests.support.paths import ROOT

ANSWER = """
import sys
from fedlightning.federation.remote.packet import Packet
from fedlightning.flower.client_app import make_client_app
from fedlightning.flower.records import to_packet, to_record
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
app = make_client_app(lambda data, seconds: Packet("answer", {"bytes": len(data)}).to_bytes())
for kind in ("train", "evaluate", "query"):
    message = Message(to_record(Packet("ask")), 7, kind)
    reply = app(message, Context(1, 7, {}, RecordDict(), {}))
    print(to_packet(reply.content).values["bytes"])
print(sorted({"torch", "lightning", "numpy.testing"} & set(sys.modules)))
"""


def test_bytes_pass_without_torch():
    run = subprocess.run([sys.executable, "-c", ANSWER], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.split() == [*3 * [str(len(Packet("ask").to_bytes()))], "[]"], run.stderr
