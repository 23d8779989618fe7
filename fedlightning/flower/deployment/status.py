"""What is said of a federation: who is there, and how far its run is."""

from __future__ import annotations

import time
from typing import Any

from fedlightning.flower.deployment.flower_commands import FlowerCommands
from fedlightning.flower.deployment.registration import Registration
from fedlightning.flower.deployment.renewal import validity
from fedlightning.flower.deployment.runs import Runs


def status_lines(flower: FlowerCommands) -> list[str]:
    """Return the lines of ``fedlightning federation status``: one for each node, one or two for the latest run.

    Args:
        flower: Flower's commands for the federation.
    """
    federation, ids, runs = flower.server.federation, Registration(flower).ids, Runs(flower)
    flower.require_link()
    states = {str(node["node-id"]): str(node["status"]) for node in flower.ask("supernode", "list")["nodes"]}
    lines = [f"link: {federation.listen}, for nodes {federation.address}, {validity(flower.server)}"]
    for name, clients in federation.nodes.items():
        state = states.get(ids.get(name, ""), "not registered")
        lines.append(f"node {name}: {_STATES.get(state, state)}, {_clients(clients)}")
    every = runs.all()
    if not every:
        return [*lines, "run: none yet"]
    progress = runs.progress()
    return [*lines, str(every[0]), *([] if progress is None else [progress_line(progress)])]


_STATES = {"registered": "registered, never seen", "unregistered": "not registered"}


def progress_line(progress: dict[str, Any], now: float | None = None) -> str:
    """Return the line about the last round.

    Args:
        progress: What :class:`~fedlightning.callbacks.RoundReport` keeps.
        now: The time, in seconds since 1970; None for the machine's.
    """
    ago = (time.time() if now is None else now) - progress["time"]
    of = "" if progress["rounds"] is None else f" of {progress['rounds']}"
    metrics = ", ".join(f"{name}={value:.4g}" for name, value in sorted(progress["metrics"].items()))
    return f"round {progress['round']}{of}, {ago:.0f} s ago{': ' if metrics else ''}{metrics}"


def _clients(clients: tuple[int, ...]) -> str:
    word = "client" if len(clients) == 1 else "clients"
    return f"{word} {', '.join(map(str, clients))}"
