"""Quickstart, tutorials and how-tos run as they are written, and print what they say."""

from __future__ import annotations

import pytest

from tests.support.accounts import needs_dp_accounting
from tests.support.pages import assert_alike, blocks, run
from tests.support.paths import CONFIGS, ROOT

DOCS = ROOT / "docs"
PAGES = [DOCS / "quickstart.md", *sorted((DOCS / "tutorials").glob("*-*.md")), DOCS / "tutorials" / "minimax.md"]
OTHERS = sorted(page for folder in ("how-to", "coming-from") for page in (DOCS / folder).glob("*.md"))
NEEDS = {"privacy": needs_dp_accounting}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=NEEDS.get(page.stem, ()))
        for page in (*PAGES, *OTHERS)
        if page.stem != "index"
    ],
)
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(CONFIGS)
    assert run(page, monkeypatch) >= 1


def test_there_are_five_tutorials():
    assert [page.stem for page in PAGES] == [
        "quickstart",
        "own-algorithm",
        "own-data",
        "own-task",
        "personal-models",
        "minimax",
    ]


def test_blocks_are_read_with_what_they_print():
    page = '```python\nprint(1)\n```\n\n```text\n1\n```\n\n```yaml title="a.yaml"\nb: 1\n```\n\n```\nnot run\n```\n'
    assert [(each.language, each.file, each.prints) for each in blocks(page)] == [
        ("python", "", "1\n"),
        ("yaml", "a.yaml", None),
        ("", "", None),
    ]


@pytest.mark.parametrize("shown", ["accuracy 0.5", "accuracy 0.9 more", "loss 0.9", "accuracy 0.9 0.9"])
def test_another_output_is_noticed(shown):
    assert_alike("accuracy 0.92", "accuracy 0.90\n")
    with pytest.raises(AssertionError):
        assert_alike(shown, "accuracy 0.9")
