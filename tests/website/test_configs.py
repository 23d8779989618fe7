"""Configs are shown as they are."""

from __future__ import annotations

from tests.support.paths import CONFIGS
from website.configs import page, pages, title


def test_every_config_is_on_the_page_of_its_folder():
    for path in CONFIGS.glob("*/*.yaml"):
        assert path.read_text().rstrip() in pages()[f"configs/{path.parent.name}.md"]


def test_the_base_comes_first_and_headings_have_the_anchors_of_links():
    text = page("auc")
    assert text.startswith("# AUC maximisation\n")
    assert text.index("## `base.yaml` {: #base }") < text.index("## `catalyst_scaffold_s.yaml`")
    assert "{: #cdma-ada }" in text
    assert title("quadratic_saddle") == "Quadratic saddle"
