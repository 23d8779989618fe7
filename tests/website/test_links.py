"""Dead links of a built site are found."""

from __future__ import annotations

import pytest

from website.links import dead, main


@pytest.fixture
def site(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "index.html").write_text('<h2 id="part">Part</h2><a href="../">up</a>')
    (tmp_path / "picture.png").touch()
    return tmp_path


@pytest.mark.parametrize(
    "link", ["there/", "there/#part", "#own", "picture.png", "https://example.org/x", "mailto:a@example.org"]
)
def test_good_links_are_not_named(site, link):
    (site / "index.html").write_text(f'<h1 id="own"></h1><a href="{link}">x</a>')
    assert list(dead(site)) == []
    assert main(site) == 0


@pytest.mark.parametrize("link", ["nowhere/", "there/#other", "#other", "other.png"])
def test_dead_links_are_named(site, link, capsys):
    (site / "index.html").write_text(f'<a href="{link}">x</a>')
    assert main(site) == 1
    assert capsys.readouterr().out == f"index.html: {link}\n"
