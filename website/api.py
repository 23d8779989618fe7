"""The API reference: a page for every public package, with all that its ``__all__`` names."""

from __future__ import annotations

from functools import cache

import griffe

from website import algorithms, results

PACKAGES = {
    "fedlightning": "What a user subclasses",
    "fedlightning.algorithms": "What algorithms are made of",
    "fedlightning.tasks": "Ready-made tasks",
    "fedlightning.channel": "What happens to updates on their way",
    "fedlightning.channel.privacy": "Privacy of clients",
    "fedlightning.data": "Data modules, data sets, partitioners",
    "fedlightning.participation": "Who takes part in a round",
    "fedlightning.oracle": "How gradients are computed",
    "fedlightning.schedules": "Schedules over rounds",
    "fedlightning.local": "Local solvers and stopping rules",
    "fedlightning.proximal": "Regularisers and constraints",
    "fedlightning.models": "Networks",
    "fedlightning.callbacks": "Callbacks",
    "fedlightning.metrics": "Metrics",
    "fedlightning.plotting": "Figures",
    "fedlightning.compare": "Comparisons",
}
"""Public packages and what they hold."""


def place(package: str) -> str:
    """Return the page of a package."""
    return f"api/{package.rsplit('.', 1)[-1]}.md"


@cache
def definitions() -> dict[str, dict[str, str]]:
    """Return the full path of every public class and function, by package and name.

    Packages load their modules when a name is first asked for, so names are looked up where they are defined.
    """
    root = algorithms.package().package
    everywhere: dict[str, list[str]] = {}
    for module in modules(root):
        for name, member in module.members.items():
            if not member.is_alias and not member.is_module:
                everywhere.setdefault(name, []).append(member.path)
    found: dict[str, dict[str, str]] = {}
    for package in PACKAGES:
        scope = root if package == "fedlightning" else root[package.removeprefix("fedlightning.")]
        names = [str(name) for name in scope.exports or scope.members if not str(name).startswith("_")]
        found[package] = {}
        for name in names:
            paths = everywhere.get(name, [])
            own = [path for path in paths if path.startswith(f"{package}.")] or paths
            documented = any(own[0] in names.values() for names in found.values()) if own else True
            if not documented and (scope.exports or own[0] == f"{package}.{name}"):
                found[package][name] = own[0]
    return found


def modules(module: griffe.Module) -> list[griffe.Module]:
    """Return a module with all modules below it."""
    own = [member for member in module.modules.values() if not member.is_alias]
    return [module, *(below for each in own for below in modules(each))]


def page(package: str) -> str:
    """Return the page of a package; algorithms have pages of their own."""
    lines = [f"# `{package}`", "", f"{PACKAGES[package]}.", ""]
    for name, path in sorted(definitions()[package].items(), key=lambda each: each[0].lower()):
        if package == "fedlightning.algorithms" and (name in algorithms.table() or name in results.aliases()):
            continue
        lines += [f"::: {path}", ""]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Return the text of every page by its place on the site."""
    return {place(package): page(package) for package in PACKAGES}
