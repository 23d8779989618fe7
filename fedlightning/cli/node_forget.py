"""The command ``fedlightning node forget``: its arguments, and what it calls."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``forget``."""
    parser.add_argument("--config", "-c", type=str, required=True, help="the node's config, node.yaml")
    parser.add_argument(
        "--federation",
        nargs="+",
        type=str,
        default=[],
        help="ids of federations, or how they begin; all but the one used last by default",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def forget(values: Mapping[str, Any]) -> None:
    """Show what a node keeps of federations, and remove what the user agrees to."""
    from fedlightning.flower.node_forget import forget as carry_out

    carry_out(values["config"], values["federation"], (lambda question: True) if values["yes"] else _agrees)


def _agrees(question: str) -> bool:
    """Ask at the terminal; without one the answer is no."""
    if not sys.stdin.isatty():
        print(f"{question} Nobody can answer here: add --yes.")
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
