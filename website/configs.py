"""A page for every folder of ``configs/``: its files as they are."""

from __future__ import annotations

from website.sources import ROOT, TASKS

TITLES = {
    "auc": "AUC maximisation",
    "gan": "GAN",
}


def title(task: str) -> str:
    """Return a task's name as a heading."""
    return TITLES.get(task, task.replace("_", " ").capitalize())


def page(task: str) -> str:
    """Return the page of a folder."""
    lines = [f"# {title(task)}", "", f"The files of `configs/{task}/`. A run takes the base and one of the others.", ""]
    base = "base.yaml"
    files = sorted(path.name for path in (ROOT / "configs" / task).glob("*.yaml"))
    for name in [base, *(name for name in files if name != base)]:
        anchor = name.removesuffix(".yaml").replace("_", "-")
        text = (ROOT / "configs" / task / name).read_text()
        lines += [f"## `{name}` {{: #{anchor} }}", "", "```yaml", text.rstrip(), "```", ""]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Return the text of every page by its place on the site."""
    return {f"configs/{task}.md": page(task) for task in TASKS}
