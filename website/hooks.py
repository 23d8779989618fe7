"""What MkDocs calls while it builds the site."""

from __future__ import annotations

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import algorithms, api, configs
from website.sources import COPIED, FIGURES, ROOT, relinked


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of algorithms, configs and results to the navigation."""
    sections: dict[str, list[Any]] = {name: pages for entry in config.nav or [] for name, pages in entry.items()}
    sections["Algorithms"] += [{name: page} for name, page in algorithms.navigation()]
    sections["Reference"].insert(
        1, {"Configs": [{configs.title(task): f"configs/{task}.md"} for task in configs.TASKS]}
    )
    sections["API"] += [{name: api.place(name)} for name in api.PACKAGES]
    sections["Results"] += [page for page in COPIED.values() if page.startswith("results/") and "index" not in page]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated or lie outside ``docs/``."""
    texts = {**algorithms.pages(), **api.pages(), **configs.pages()}
    for source, page in COPIED.items():
        texts[page] = (ROOT / source).read_text()
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    for source, figure in FIGURES.items():
        files.append(File.generated(config, figure, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links of the site, and let the table of algorithms lead to pages."""
    if page.file.src_uri == "algorithms.md":
        markdown = algorithms.with_links(markdown)
    return relinked(markdown, page.file.src_uri, config.extra["repository"])
