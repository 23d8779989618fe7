"""Links between files of the repository become links of the site."""

from __future__ import annotations

import pytest

from website.sources import COPIED, FIGURES, PAGES, relinked

HOST = "https://example.org/repository"


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("tasks.md", "SPEED.md#many-clients", "SPEED.md#many-clients"),
        ("algorithms.md", "../configs/auc/cdma_ada.yaml", "configs/auc.md#cdma-ada"),
        ("tutorials/minimax.md", "../../fedlightning/algorithms/fed_mm.py", "../algorithms/fedmm.md"),
        ("api/index.md", "../../fedlightning/tasks/__init__.py", "tasks.md"),
        ("api/index.md", "../../fedlightning/__init__.py", "fedlightning.md"),
        ("command-line.md", "../experiments/README.md", "results/index.md"),
        ("results/fed_mm.md", "figures/figure2.png", "fed_mm/figure2.png"),
        ("results/fed_mm.md", "../README.md", "index.md"),
        ("results/fed_mm.md", "figure2.yaml", f"{HOST}/blob/main/experiments/fed_mm/figure2.yaml"),
        ("contributing.md", "docs/metrics.md", "metrics.md"),
        ("tasks.md", "https://pytorch.org", "https://pytorch.org"),
        ("tasks.md", "#data", "#data"),
        ("tasks.md", "nowhere.md", "nowhere.md"),
    ],
)
def test_links(page, link, expected):
    assert relinked(f"see [this]({link}).", page, HOST) == f"see [this]({expected})."


def test_every_paper_has_a_page_and_its_figures():
    assert {page for page in COPIED.values() if page.startswith("results/")} > {"results/index.md"}
    assert len(FIGURES) > 15
    assert len(set(PAGES.values())) == len(PAGES)
