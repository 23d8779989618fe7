"""A page of help imports little, and what stood in for the rest leaves no trace."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from fedlightning.cli.lean import NOT_SHOWN, stand_ins, without_collection
from tests.support.paths import ROOT

SCRIPT = """
import sys
from fedlightning.cli import main
sys.argv = ["fedlightning", *{arguments!r}]
try:
    main()
finally:
    print("imported:", *(name for name in ("lightning", *{names!r}) if name in sys.modules))
"""


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [(["fit", "--help"], ["lightning"]), (["fit", "--model.help", "Bilinear"], ["lightning", *NOT_SHOWN])],
)
def test_the_help_of_a_subcommand_imports_nothing_it_does_not_show(arguments, imported):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(arguments=arguments, names=NOT_SHOWN)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "--" in done.stdout
    assert done.stdout.splitlines()[-1].split() == ["imported:", *imported]


@pytest.fixture
def _large(tmp_path, monkeypatch):
    package = tmp_path / "large_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("size = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("large_package")]:
        del sys.modules[name]


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("name", ["large_package", "large_package.part"])
def test_what_stood_in_is_gone_afterwards(name):
    with stand_ins([name]):
        from large_package.part import Anything, size

        assert isinstance(size, type)
        assert isinstance(Anything(1, two=2), Anything)
        with pytest.raises(AttributeError, match="__wrapped__"):
            __import__("large_package.part").part.__wrapped__  # noqa: B018
    import large_package.part

    assert large_package.part.size == 3


@pytest.mark.usefixtures("_large")
def test_what_is_imported_already_stays():
    import large_package.part

    with stand_ins(["large_package"]):
        import large_package.part as again
    assert again is large_package.part is sys.modules["large_package.part"]


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_looked_for_again_if_it_was_before(enabled):
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with without_collection():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
