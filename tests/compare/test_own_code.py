"""Results belong to the code of the user's that they were made by."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from fedlightning.compare import compare
from fedlightning.compare.own_code import own_code
from tests.support.comparisons import SADDLE, arguments, table

TASK = """
from fedlightning.tasks import QuadraticSaddle
from scales import SCALE

class Scaled(QuadraticSaddle):
    def objective(self, batch):
        return SCALE * super().objective(batch)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Two modules of the user's, of which one imports the other; writes another scale."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(scale, task=TASK):
        (tmp_path / "scales.py").write_text(f"SCALE = {scale}\n")
        (tmp_path / "scaled_task.py").write_text(task)
        for name in ("scales", "scaled_task"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        importlib.import_module("scaled_task")

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    for name in ("scales", "scaled_task"):
        sys.modules.pop(name, None)


VALUES = {"model": {"class_path": "scaled_task.Scaled", "init_args": {"lr": 0.1}}, "rest": ["torch.optim.SGD", "1.5"]}


def test_the_digest_is_that_of_the_users_code_alone(own):
    own(1.0)
    first = own_code(VALUES)
    assert first
    assert own_code({"model": "fedlightning.tasks.QuadraticSaddle", "optimizer": "torch.optim.SGD"}) == ""
    own(1.0, f"# a remark\n{TASK}\n\n")
    assert own_code(VALUES) == first
    own(2.0)  # in the module that is imported
    assert own_code(VALUES) != first
    own(1.0, TASK.replace("SCALE *", "2 * SCALE *"))
    assert own_code(VALUES) != first


def test_results_of_other_code_are_moved_aside(own):
    base = Path("base.yaml")
    base.write_text(
        (SADDLE / "base.yaml").read_text().replace("fedlightning.tasks.QuadraticSaddle", "scaled_task.Scaled")
    )
    options = arguments(base=[str(base)], algorithms=[f"A={SADDLE / 'fed_mm.yaml'}"])
    ends = []
    for scale in (1.0, 1.0, 0.5):
        own(scale)
        compare(**options)
        ends.append(table("out")[-1]["distance"])
    assert ends[0] == ends[1] != ends[2]
    assert Path("out/A/seed-0.before-1/done.json").is_file()
