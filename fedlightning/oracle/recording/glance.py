"""A glance at an objective: one client's forward pass, which shows that nothing has changed.

Whether an objective does what it did in an earlier round is seen from its first evaluation in a round
(:mod:`fedlightning.oracle.recording.outline`). For small models that takes as long as ten replays, most of it for
``vmap`` and the backward pass. One client's forward pass tells the same: which operations reach the device, which of
them autograd sees, and which graph it makes of them. Where these are as they were, so is the backward pass, which
follows from them as long as nobody but PyTorch computes it. So a glance is no use at functions with a backward pass of
their own (a reversed gradient, a checkpoint), whose numbers may change unseen, at operations that are not PyTorch's, at
hooks, and where Python reads numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from fedlightning.core.tree import flatten, map_tensors
from fedlightning.oracle.base import Blocks
from fedlightning.oracle.differentiation import leaves_at
from fedlightning.oracle.objective import Autocast, Objective
from fedlightning.oracle.randomness import ClientNoise
from fedlightning.oracle.recording.outline import Draft, Outline
from fedlightning.oracle.recording.recorder import Follower, reads_values
from fedlightning.oracle.refused import HIDDEN_READS, Refused

MIN_CLIENTS = 4
"""Of fewer clients a chunk computes too little for a client's forward pass to be short beside it."""


@dataclass(frozen=True)
class Glance:
    """Holds what was seen. If glances are equal, so are the outlines of all clients' evaluations.

    Attributes:
        outline: The operations of the forward pass, and which tensors it returned.
        graph: What autograd would run behind the loss: every function, and which follow it.
        names: Names of the scalars.
        autocast: Precision, and the factor of the loss.
    """

    outline: Outline
    graph: list[tuple[type, list[Any]]]
    names: list[str]
    autocast: Autocast

    def tells_all(self, outline: Outline) -> bool:
        """Return whether evaluations follow from what was seen.

        Args:
            outline: Of such an evaluation. What it does not hold, as a tensor that its first call has made, may change
                without its knowledge.
        """
        held = set(map(id, outline.held))
        return (
            all(kind.__mro__ == (kind, object) for kind, _ in self.graph)  # written in C++, by PyTorch
            and all(
                func.namespace == "aten" and not reads_values(func) and sight.packs is False
                for func, *_, sight in self.outline.operations
            )
            and all(id(each) in held for each in self.outline.held)
        )


GlanceAt = Callable[[Tensor, Tensor, Tensor, Any, Blocks], Glance | None]
"""``(w [S, d], v [S, p], b [S, b], data, blocks)``: glances at the first of S clients."""


def no_glance(*arguments: Any) -> None:
    """See nothing, where evaluations themselves are to show what they do."""


def glance(objective: Objective, w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks) -> Glance | None:
    """Run the forward pass for the first of S clients.

    Args:
        objective: The objective.
        w: Points, ``[S, d]``.
        v: Personal blocks, ``[S, p]``.
        b: Buffers, ``[S, b]``.
        data: One minibatch of every client, with leaves ``[S, ...]``.
        blocks: The gradients to be computed.

    Returns:
        What was seen; None where that would tell nothing, or there are too few clients.
    """
    if len(w) < MIN_CLIENTS:
        return None
    shared, personal, moved = leaves_at(objective, w[0], v[0], blocks)
    buffers = objective.space.buffers.views(b[0])
    batch = map_tensors(lambda leaf: leaf[0].clone(), data)  # the objective may begin to write into it
    draft = Draft([*shared.values(), *personal.values(), *buffers.values(), *flatten(batch)[0]])
    with suppress(Exception), torch.enable_grad():
        with Refused(_UNSEEN) as refused, Follower(ClientNoise(), draft), objective.autocast():
            loss, scalars, values = objective(shared, personal, buffers, batch)
        if refused.has_refused or not all(leaf.requires_grad for leaves in moved for leaf in leaves):
            return None
        seen = draft.finished([loss, *scalars.values(), *values])
        return Glance(seen, _graph(loss), [*scalars], objective.autocast)
    return None


def _graph(loss: Tensor) -> list[tuple[type, list[Any]]]:
    """Return the functions behind a loss, each with the places of those that follow it."""
    nodes: list[Node] = [] if loss.grad_fn is None else [loss.grad_fn]
    places: dict[Node | None, int | None] = {None: None, **{node: place for place, node in enumerate(nodes)}}
    graph = []
    for node in nodes:  # more are appended on the way
        for each, _ in node.next_functions:
            if each is not None and each not in places:
                places[each] = len(nodes)
                nodes.append(each)
        graph.append((type(node), [(places[each], output) for each, output in node.next_functions]))
    return graph


_UNSEEN = HIDDEN_READS | {
    *(Tensor.register_hook, Tensor.register_post_accumulate_grad_hook),
    Tensor.grad_fn.__get__,  # type: ignore[union-attr]
}
"""What reads numbers, or may change a backward pass, and is no operation."""
