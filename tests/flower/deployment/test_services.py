"""systemd takes the services as they are, also with odd paths."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

from fedlightning.core.errors import InvalidValueError
from fedlightning.flower.deployment.services import link_service, node_service

PYTHON = Path(sys.executable)


def parsed(text):
    parser = configparser.RawConfigParser()
    parser.optionxform = str
    parser.read_string(text)
    return parser["Service"]


def test_services_start_again_whenever_they_end():
    for file, text in (
        link_service("digits", Path("/srv/digits/server"), "flo", Path("/opt/bin/fedlightning")),
        node_service("digits", "a", Path("/opt/digits-a"), "flo", Path("/opt/bin/fedlightning")),
    ):
        service = parsed(text)
        assert (service["Restart"], service["RestartSec"], service["User"]) == ("always", "10", "flo")
        assert "StartLimitIntervalSec=0" in text
        assert f"cp {file} /etc/systemd/system/" in text


def test_they_start_link_and_node():
    link = link_service("digits", Path("/srv/d/server"), "flo", Path("/opt/bin/fedlightning"))
    node = node_service("digits", "a", Path("/opt/digits-a"), "flo", Path("/opt/bin/fedlightning"))
    assert link[0] == "fedlightning-digits-link.service"
    assert parsed(link[1])["ExecStart"] == "/opt/bin/fedlightning federation link /srv/d/server"
    assert node[0] == "fedlightning-digits-node-a.service"
    assert parsed(node[1])["ExecStart"] == "/opt/bin/fedlightning node start --config /opt/digits-a/node.yaml"
    assert parsed(node[1])["WorkingDirectory"] == "/opt/digits-a"


def test_odd_paths_are_quoted():
    text = link_service("digits", Path("/srv/my 100% $x/server"), "flo", Path("/opt/bin/fedlightning"))[1]
    assert parsed(text)["ExecStart"] == '/opt/bin/fedlightning federation link "/srv/my 100%% $$x/server"'


@pytest.mark.parametrize("path", ["/srv/a\nUser=root", "/srv/a\x1b", "/srv/a\\"])
def test_a_path_that_would_end_its_line_is_refused(path):
    program = Path("/opt/bin/fedlightning")
    with pytest.raises(InvalidValueError, match="systemd cannot read a path with such a sign"):
        link_service("digits", Path(path), "flo", program)
    with pytest.raises(InvalidValueError, match="systemd cannot read a path with such a sign"):
        node_service("digits", "a", Path("/opt/digits-a"), "flo", Path(path))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_nothing_wrong(tmp_path):
    folder = tmp_path / "my 100%"
    folder.mkdir()
    for file, text in (
        link_service("digits", folder, "root", PYTHON),
        node_service("digits", "a", folder, "root", PYTHON),
    ):
        (tmp_path / file).write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", str(tmp_path / file)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
