"""Where Flower is not installed, one sentence says what to do."""

from __future__ import annotations

import sys

import pytest

from tests.support.without import without

IMPORT = """
try:
    import fedlightning.flower
except ImportError as error:
    print(type(error).__name__, error)
"""
AS_IF_3_10 = "import sys\nsys.version_info = type('Version', (tuple,), {'major': 3, 'minor': 10})((3, 10, 0))\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an older Python is named first")
def test_the_extra_and_the_version_of_python_are_named(tmp_path):
    done = without(["flwr"], IMPORT, folder=tmp_path)
    assert done.stdout.strip() == (
        "MissingPackageError fedlightning.flower needs Flower, and Python 3.11 or newer. Install it by pip install "
        "'fedlightning[flower]'."
    ), done.stderr


def test_an_older_python_is_named(tmp_path):
    done = without([], AS_IF_3_10 + IMPORT, folder=tmp_path)
    assert "needs Python 3.11 or newer, because Flower does; this is Python 3.10." in done.stdout, done.stderr
