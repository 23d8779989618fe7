"""What of the nodes' files can be found on the server's disk: its link's database and objects, checkpoints and logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch

ANSWERS = "answers"
_WINDOW, _STEP = 16, 64
"""Bytes that are looked for together, four numbers, and between two such places."""


def left_behind(federation: Path) -> dict[str, tuple[int, int]]:
    """Search all that lies at the server for what the nodes keep.

    Args:
        federation: The federation's folder with server and nodes, while the link is running or after it.

    Returns:
        Of each field of the clients' states, which never leave a node, how many places were looked for and how many
        found; and of their answers, which went over the link: some of these are found if the search works at all.

    Raises:
        LookupError: If no answer is found.
    """
    there = [file.read_bytes() for file in (federation / "server").rglob("*") if file.is_file()]
    places: dict[str, set[bytes]] = defaultdict(set)
    for file in federation.glob("nodes/*/states/*/client-*/*.pt"):
        content = torch.load(file, weights_only=True)
        for name, value in {**content["states"], ANSWERS: content["answer"]}.items():
            places[name] |= set(_places(value))
    found = {
        name: (len(wanted), sum(any(each in data for data in there) for each in wanted))
        for name, wanted in places.items()
    }
    if not found.get(ANSWERS, (0, 0))[1]:
        raise LookupError(f"{federation}: not even answers are found at the server, so the search shows nothing.")
    return found


def _places(value: torch.Tensor) -> Iterator[bytes]:
    """Return short pieces of a tensor's bytes; those of few distinct bytes could be anywhere."""
    data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    for start in range(0, len(data) - _WINDOW, _STEP):
        piece = data[start : start + _WINDOW]
        if len(set(piece)) > _WINDOW // 2:
            yield piece
