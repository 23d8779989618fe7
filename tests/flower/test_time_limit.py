"""A process that takes too long for one answer ends, whatever it hangs in, and says where it was."""

from __future__ import annotations

import math
import subprocess
import sys
import time

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.flower.time_limit import limit_of, time_limit
from tests.support.paths import ROOT

HANGS = """
import sys
from fedlightning.flower.time_limit import time_limit
def objective():
    {hang}
with time_limit(0.3):
    objective()
"""


@pytest.mark.parametrize("hang", ["import threading; threading.Event().wait()", "10**10**8"], ids=["waits", "compiled"])
def test_what_hangs_is_ended_and_named(hang):
    command = [sys.executable, "-c", HANGS.format(hang=hang)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert "Timeout (0:00:00" in found.stderr
    assert "in objective" in found.stderr


def test_what_ends_in_time_goes_on():
    with time_limit(0.2):
        pass
    with pytest.raises(ZeroDivisionError), time_limit(0.2):
        raise ZeroDivisionError
    time.sleep(0.4)  # this process is still there


@pytest.mark.parametrize(
    ("waits", "longest", "expected"),
    [
        (15.0, None, 600.0),
        (1000.0, None, 3000.0),
        (1000.0, 60.0, 60.0),
        (math.nan, None, 600.0),
        (math.inf, None, 30 * 86400.0),
        (-1.0, None, 600.0),
    ],
)
def test_the_limit_is_well_above_the_time_that_somebody_waits(waits, longest, expected):
    assert limit_of(waits, longest) == expected
