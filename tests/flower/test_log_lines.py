"""Lines of the log say when, who and what."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from tests.support.paths import ROOT

SCRIPT = """
import logging, warnings
from fedlightning.flower.log_lines import begin_log
begin_log("node")
logging.getLogger("fedlightning.flower.host").info("a run begins")
logging.getLogger("other").warning("not ours")
warnings.warn("take care")
"""


def test_lines_have_the_time_and_the_process():
    said = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True).stderr.splitlines()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    assert re.fullmatch(f"{time} node INFO: a run begins", said[0])
    assert any(re.match(f"{time} node WARNING: .*take care", line) for line in said)
