"""A server's folder is found from the federation's folder as well."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.core.errors import MissingFileError
from fedlightning.flower.deployment.server_folder import ServerFolder
from tests.support.deployment import federation_in


def test_both_folders_lead_to_the_server(tmp_path, monkeypatch):
    made = federation_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    for given in (tmp_path, tmp_path / "server", "server", "."):
        assert ServerFolder.find(given) == made
    assert made.federation.nodes == {"a": (0, 1), "b": (2,)}
    files = (made.federation_file, made.run_file, made.authority, made.authority_key, made.certificate, made.key)
    folders = (made.link, made.app, made.runs, made.services)
    assert all(each.is_file() for each in (*files, *map(made.public_key, "ab")))
    assert all(each.is_dir() for each in folders)


def test_a_folder_without_a_federation_is_refused(tmp_path):
    with pytest.raises(MissingFileError, match=r"no federation is there.*Make one by fedlightning federation new"):
        ServerFolder.find(tmp_path)
