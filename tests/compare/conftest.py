"""Every comparison is made in a folder of its own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
