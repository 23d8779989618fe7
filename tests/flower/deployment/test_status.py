"""The status names every node with its clients, and the last round."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import json
import re

from fedlightning.flower.deployment.status import progress_line, status_lines
from tests.support.deployment import Flower, federation_in, run_of

PROGRESS = {"round": 3, "rounds": 20, "time": 100.0, "metrics": {"train_loss": 0.51234, "a": 1.0}}


def test_nodes_are_named_though_flower_numbers_them(tmp_path):
    nodes = [{"node-id": "9", "status": "offline"}, {"node-id": "5", "status": "online"}]
    flower = Flower(federation_in(tmp_path / "f"), [{"nodes": nodes}, {"runs": []}])
    (flower.server.link / "nodes.json").write_text('{"b": "5"}')
    link, *others = status_lines(flower)
    assert re.fullmatch(r"link: 127.0.0.1:8443, for nodes 127.0.0.1:8443, certificate until \d{4}-\d\d-\d\d", link)
    assert others == [
        "node a: not registered, clients 0, 1",
        "node b: online, client 2",
        "run: none yet",
    ]


def test_the_latest_run_comes_with_its_last_round(tmp_path):
    nodes = [{"node-id": "4", "status": "registered"}, {"node-id": "5", "status": "unregistered"}]
    answers = [{"nodes": nodes}, {"runs": [run_of("8"), run_of("7", "finished:failed")]}]
    flower = Flower(federation_in(tmp_path / "f"), answers)
    (flower.server.link / "nodes.json").write_text('{"a": "4", "b": "5"}')
    (flower.server.runs / "progress.json").write_text(json.dumps(PROGRESS))
    lines = status_lines(flower)
    assert lines[1:4] == [
        "node a: registered, never seen, clients 0, 1",
        "node b: not registered, client 2",
        "run 8: running, 3 s",
    ]
    assert lines[4].startswith("round 3 of 20, ")


def test_a_round_is_told_in_a_line():
    assert progress_line(PROGRESS, now=112.4) == "round 3 of 20, 12 s ago: a=1, train_loss=0.5123"
    assert progress_line({**PROGRESS, "rounds": None, "metrics": {}}, now=100.0) == "round 3, 0 s ago"
