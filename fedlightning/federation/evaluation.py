"""How the metrics that clients measured come together on the server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from fedlightning.federation.protocol import ClientValues, EvaluationAnswer


def join_answers(answers: Iterable[EvaluationAnswer]) -> dict[str, ClientValues]:
    """Join the answers of clients by metric, in ascending order of clients.

    The order does not depend on who answered first, so that means over clients have the same bits in every run.
    """
    parts: dict[str, list[ClientValues]] = {}
    for answer in answers:
        for name, values in answer.metrics.items():
            parts.setdefault(name, []).append(values)
    return {name: _joined(values) for name, values in parts.items()}


def _joined(parts: Sequence[ClientValues]) -> ClientValues:
    clients = [client for part in parts for client in part.client_ids]
    order = sorted(range(len(clients)), key=clients.__getitem__)
    return replace(
        parts[0],
        client_ids=[clients[place] for place in order],
        values=torch.cat([part.values for part in parts])[order],
        samples=torch.cat([part.samples for part in parts])[order],
        sums={name: torch.cat([part.sums[name] for part in parts])[order] for name in parts[0].sums},
    )
