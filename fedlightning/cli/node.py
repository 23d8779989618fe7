"""``fedlightning node``: what runs at a node of a federation; see ``docs/federation.md``.

Help and mistakes are answered before Flower is imported, and torch is imported by the node's worker alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedlightning.cli import node_forget
from fedlightning.cli.groups import Command, chosen
from fedlightning.cli.node_models import arguments_of_export, arguments_of_predict, export, predict

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


def main(args: Sequence[str]) -> None:
    """Parse a command of the group and carry it out.

    Args:
        args: The arguments after ``fedlightning node``.
    """
    command, parser, rest = chosen("node", args, COMMANDS, _HELP)
    command.carry_out(vars(parser.parse_args(rest)))


def _arguments_of_start(parser: ArgumentParser) -> None:
    parser.add_argument("--config", "-c", type=str, required=True, help="the node's config, node.yaml")


def _start(values: Mapping[str, Any]) -> None:
    from fedlightning.flower.node_start import start

    start(values["config"])


COMMANDS = {
    "start": Command("Run a node until it is stopped: its worker, and Flower's process.", _arguments_of_start, _start),
    "export": Command("Write a client's own model to a file.", arguments_of_export, export),
    "predict": Command("Write what a client's own model predicts on data of the node.", arguments_of_predict, predict),
    "forget": Command(
        "Remove what the node keeps of federations that are over.", node_forget.add_arguments, node_forget.forget
    ),
}
"""The commands of the group, by name."""

_HELP = f"""usage: fedlightning node {{{",".join(COMMANDS)}}} --config node.yaml ...

Take part in a federation with the data of this machine, which never leave it.

commands:
{chr(10).join(f"  {name:9} {command.about}" for name, command in COMMANDS.items())}

  fedlightning node start --config node.yaml
  fedlightning node export --config node.yaml --client 0 --out model.pt --part network
  fedlightning node predict --config node.yaml --client 0 --out predictions.pt
  fedlightning node forget --config node.yaml
"""
