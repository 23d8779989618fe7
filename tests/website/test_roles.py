"""Docstrings lose the notation of Sphinx on the API pages."""

from __future__ import annotations

import pytest

pytest.importorskip("griffe", reason="needs the extra docs")

from website.roles import unmarked


def test_references_become_names():
    assert unmarked("See :class:`~fedlightning.tasks.GAN` and :meth:`fit`.") == "See `GAN` and `fit`."


def test_two_colons_before_an_example_become_one():
    assert unmarked("A whole task::\n\n    a = 1::2") == "A whole task:\n\n    a = 1::2"
