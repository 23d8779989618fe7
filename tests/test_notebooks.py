"""The notebooks run as they are."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.language import needs_hf
from tests.support.paths import ROOT

NEEDS = {"03_language_models": needs_hf}
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=NEEDS.get(path.stem, ())) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert sum(cell.cell_type == "code" for cell in notebook.cells) > 4


def test_there_are_notebooks():
    assert [path.stem for path in NOTEBOOKS][:2] == ["01_quickstart", "02_your_own_task"]
