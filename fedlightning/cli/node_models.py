"""The commands ``fedlightning node export`` and ``fedlightning node predict``: their arguments, and what they call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


def arguments_of_export(parser: ArgumentParser) -> None:
    """Add the arguments of ``export``."""
    _add_common(parser)
    parser.add_argument(
        "--part", type=str, default=None, help="module of the task to write, such as network; all of it"
    )


def arguments_of_predict(parser: ArgumentParser) -> None:
    """Add the arguments of ``predict``."""
    _add_common(parser)
    parser.add_argument("--on", type=str, default="test", help="which of the node's data: test, val, train or predict")


def export(values: Mapping[str, Any]) -> None:
    """Write a client's own model."""
    from fedlightning.flower.node_models import export as carry_out

    print(carry_out(values["config"], values["client"], values["out"], values["part"]))


def predict(values: Mapping[str, Any]) -> None:
    """Write what a client's own model predicts."""
    from fedlightning.flower.node_models import predict as carry_out

    print(carry_out(values["config"], values["client"], values["out"], values["on"]))


def _add_common(parser: ArgumentParser) -> None:
    parser.add_argument("--config", "-c", type=str, required=True, help="the node's config, node.yaml")
    parser.add_argument("--client", type=int, required=True, help="number of the client in the federation")
    parser.add_argument("--out", type=str, required=True, help="file to write")
