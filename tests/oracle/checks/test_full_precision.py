"""TF32 is off on a GPU while ways are compared, and as it was afterwards, whichever switches the user has set."""

from __future__ import annotations

import subprocess
import sys

import torch

from fedlightning.oracle.checks.full_precision import in_full_precision

SWITCHES = """
import os, sys
import torch
from fedlightning.oracle.checks.full_precision import in_full_precision
cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul

def off():
    try:
        return not cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set by the newer switches
        return {each.fp32_precision for each in (cudnn.conv, cudnn.rnn, products)} == {"ieee"}

def older():
    return cudnn.allow_tf32, products.allow_tf32, torch.get_float32_matmul_precision()

def newer():
    return cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, products.fp32_precision

def is_right(given, state):
    exec(given)
    before = state()
    with in_full_precision(torch.device("cuda")):
        assert off()
    assert state() == before, (before, state())
"""
CASES = """
CASES = [
    ("", older),
    ("torch.set_float32_matmul_precision('medium')", older),
    ("cudnn.allow_tf32 = False", older),
    ("cudnn.conv.fp32_precision = 'ieee'", newer),
    ("products.fp32_precision = 'tf32'", newer),
]
"""
EACH = """
for given, state in CASES:
    if state is newer and not hasattr(cudnn, "conv"):
        continue  # this torch has the older switches only
    child = os.fork()
    if not child:
        is_right(given, state)
        sys.exit()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, given
"""


def test_switches_are_put_back():
    """In processes of their own, because the newer switches forbid to read the older ones."""
    subprocess.run([sys.executable, "-c", SWITCHES + CASES + EACH], check=True)


def test_nothing_changes_on_a_cpu():
    before = torch.backends.cudnn.allow_tf32
    with in_full_precision(torch.device("cpu")):
        assert torch.backends.cudnn.allow_tf32 == before
