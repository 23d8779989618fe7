"""Checks every link of a built site: ``python -m website.links build/site`` names those that lead nowhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Collects the links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag names and where it leads."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


@cache
def read(path: Path) -> Page:
    """Return the page in a file."""
    return Page(path.read_text())


def dead(site: Path) -> Iterator[str]:
    """Yield ``page: link`` for every link of the site that leads nowhere on it; other hosts are not asked."""
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":  # its links begin at the root, wherever it is shown
            continue
        for link in sorted(read(path).links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or parts.path.startswith("/"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not target.exists() or (anchor and target.suffix == ".html" and anchor not in read(target).anchors):
                yield f"{path.relative_to(site)}: {link}"


def main(site: Path) -> int:
    """Print the dead links of a site, and return their number."""
    found = list(dead(site))
    print("\n".join(found) or f"All links within {site} lead somewhere.")
    return len(found)


if __name__ == "__main__":
    raise SystemExit(min(1, main(Path(sys.argv[1]))))
