"""TF32 is off on a GPU while ways are compared, and as it was afterwards, whichever switches the user has set."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fedlightning.oracle.checks.full_precision import in_full_precision

SWITCHES = """
import torch
from fedlightning.oracle.checks.full_precision import in_full_precision
cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
{given}

def off():
    try:
        return not cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set by the newer switches
        return {{each.fp32_precision for each in (cudnn.conv, cudnn.rnn, products)}} == {{"ieee"}}

def state():
    return {state}

before = state()
with in_full_precision(torch.device("cuda")):
    assert off()
assert state() == before, (before, state())
"""
OLDER = "cudnn.allow_tf32, products.allow_tf32, torch.get_float32_matmul_precision()"
NEWER = "cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, products.fp32_precision"


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ("", OLDER),
        ("torch.set_float32_matmul_precision('medium')", OLDER),
        ("cudnn.allow_tf32 = False", OLDER),
        ("cudnn.conv.fp32_precision = 'ieee'", NEWER),
        ("products.fp32_precision = 'tf32'", NEWER),
    ],
)
def test_switches_are_put_back(given, state):
    """In a process of its own, because the newer switches forbid to read the older ones."""
    if state == NEWER and not hasattr(torch.backends.cudnn, "conv"):
        pytest.skip("this torch has the older switches only")
    subprocess.run([sys.executable, "-c", SWITCHES.format(given=given, state=state)], check=True)


def test_nothing_changes_on_a_cpu():
    before = torch.backends.cudnn.allow_tf32
    with in_full_precision(torch.device("cpu")):
        assert torch.backends.cudnn.allow_tf32 == before
