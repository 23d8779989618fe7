"""Freed memory is kept while rounds run, and given back after trials and afterwards."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

_SCRIPT = """
import resource, torch
from fedlightning.core.memory import give_back_freed_memory, give_back_what_is_free, keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(12_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

first = faults()
kept = keep_freed_memory()
faults()
second, high = faults(), resident()
give_back_what_is_free()
between = high - resident()
faults()
again, high = faults(), resident()
give_back_freed_memory()
print(first, second, kept, between, again, high - resident(), faults())
"""
ON_GLIBC = platform.libc_ver()[0] == "glibc"


def run(**environment):
    """Run the script.

    Returns:
        Faults before and while memory is kept, whether it is kept, bytes given back in between, faults while it is kept
        still, bytes given back at the end, and faults afterwards.
    """
    options = {"capture_output": True, "text": True, "check": True, "env": {**os.environ, **environment}}
    found = subprocess.run([sys.executable, "-c", _SCRIPT], **options).stdout.split()
    first, second, kept, between, again, given, third = found
    return int(first), int(second), kept == "True", int(between), int(again), int(given), int(third)


@pytest.mark.skipif(not ON_GLIBC, reason="the allocator is not glibc's")
def test_freed_memory_is_kept_and_given_back():
    first, second, kept, between, again, given, third = run()
    assert kept
    assert second < first / 20
    assert between > 40_000_000
    assert again < first / 20  # what is freed later is kept
    assert given > 40_000_000  # what one of the tensors takes
    assert third > 20 * second


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["MALLOC_TRIM_THRESHOLD_=100000", "GLIBC_TUNABLES=glibc.malloc.trim_threshold=9999"])
def test_the_users_own_settings_stay(chosen):
    name, _, value = chosen.partition("=")
    _, second, kept, _, _, _, third = run(**{name: value})
    assert not kept
    assert abs(second - third) < max(second, 1000) / 4
