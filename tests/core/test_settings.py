"""Settings are named as Python and as the command line write them."""

from __future__ import annotations

import doctest

import pytest

from fedlightning.core import settings as module
from fedlightning.core.settings import settings


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"model.server_clip": 1.5}, "server_clip=1.5 (--model.server_clip=1.5)"),
        ({"model.buffers": "local"}, "buffers='local' (--model.buffers=local)"),
        ({"data.class_counts": True}, "class_counts=True (--data.class_counts=true)"),
        ({"ckpt_path": ...}, "ckpt_path (--ckpt_path=...)"),
        ({"model.a": 1, "model.b": None}, "a=1 and b=None (--model.a=1 --model.b=null)"),
    ],
)  # fmt: skip
def test_settings_are_written_in_both_ways(values, text):
    assert settings(values) == text


def test_the_examples_hold():
    assert doctest.testmod(module).failed == 0
