"""All clients of a chunk at once, by ``torch.func.vmap``."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedlightning.nested import flatten, unflatten
from fedlightning.oracle.base import Blocks, Cost, Evaluate, Evaluation, Oracle, collected, differentiate
from fedlightning.oracle.layers import CohortLayers
from fedlightning.oracle.objective import Named, Objective, ObjectiveError
from fedlightning.oracle.recording import Recording
from fedlightning.ranges import require

CACHE_BYTES = 32 * 2**20
"""On a CPU a chunk's parameters, gradients and activations should stay near the caches."""

MIN_CALLS_TO_RECORD = 20
"""Recording costs about as much as a dozen replays save."""

BATCHABLE_ATTENTION = partial(sdpa_kernel, SDPBackend.MATH)
"""The fused attention kernels have no batching rule: vmap would run them client by client."""


@dataclass(frozen=True)
class Vectorized(Oracle):
    """Compute a chunk of clients as one batched operation.

    The objective runs under ``torch.func.vmap``: it must not read tensor values in Python (``.item()``, ``if`` on a
    tensor, boolean masks), and random layers draw independently for every client.

    Args:
        chunk_size: Clients computed together; by default as many as memory (on a CPU: the caches) suggests.
        replay: Run the steps of a round from a recording of the first one (see :mod:`fedlightning.oracle.recording`):
            the same bits, faster for small models. Python code of the objective then runs once a round, so turn it
            off if the objective draws numbers from ``random`` or NumPy. Null: on CPUs only.
        compile: Compile the gradient with ``torch.compile`` (seconds to minutes once; needs a C++ compiler). Worth it
            for small models without convolutions.
    """

    chunk_size: int | None = None
    replay: bool | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        require(self, "chunk_size", at_least=1, optional=True)

    def chunk(self, cost: Cost) -> int:
        """Clients that fit: point, operator, a few temporaries and the activations of each."""
        if self.chunk_size is not None:
            return self.chunk_size
        client = 8 * cost.dim * cost.itemsize + 2 * cost.activation_bytes
        if cost.free_bytes is not None:
            return max(1, cost.free_bytes // (2 * client))
        return max(8, CACHE_BYTES // client)

    def evaluator(self, objective: Objective, calls: int) -> Evaluate:
        """Batched forward and backward pass; recorded or compiled if so chosen."""
        on_cpu = objective.autocast.on_cpu
        if self.compile:
            evaluate = _compiled(objective)
        elif calls >= MIN_CALLS_TO_RECORD and (on_cpu if self.replay is None else self.replay):
            evaluate = _recorded(objective)
        else:
            evaluate = _batched(objective)

        def explained(w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both") -> Evaluation:
            try:
                if objective.forward_only is None and not self.compile:
                    objective.forward_only = _forward_alone_can_be_batched(objective, w, v, b, data)
                return evaluate(w, v, b, data, blocks)
            except ObjectiveError:
                raise
            except RuntimeError as error:
                raise _explain(error, objective.name) from error

        return explained


def _batched(objective: Objective) -> Evaluate:
    """``vmap`` over the forward pass only where that is possible, else over the gradient."""

    def evaluate(w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both") -> Evaluation:
        return (_forward_batched if objective.forward_only else _gradient_batched)(objective, w, v, b, data, blocks)

    return evaluate


def _forward_batched(
    objective: Objective, w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both"
) -> Evaluation:
    """The backward pass is ordinary autograd on batched tensors: less bookkeeping, and layers laid out by our rules."""
    forward = vmap(objective, in_dims=0, randomness="different")
    with BATCHABLE_ATTENTION(), CohortLayers() if objective.autocast.on_cpu else nullcontext():
        return differentiate(objective, forward, w, v, b, data, blocks)


def _gradient_batched(
    objective: Objective, w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both"
) -> Evaluation:
    """``vmap(grad)`` takes composite operations apart (recurrent layers, attention, group norm) and compiles whole."""
    space, scale = objective.space, objective.autocast.scale
    wanted = {"both": (0, 1), "shared": (0,), "personal": (1,)}[blocks]

    def scaled(shared: Named, personal: Named, buffers: Named, data: Any) -> Any:
        with objective.autocast():
            loss, scalars, new_buffers = objective(shared, personal, buffers, data)
        return loss * scale, (loss, scalars, new_buffers)

    gradient = vmap(grad(scaled, argnums=wanted, has_aux=True), in_dims=0, randomness="different")
    views = (space.shared.views(w), space.personal.views(v), space.buffers.views(b))
    with BATCHABLE_ATTENTION():
        gradients, (loss, scalars, buffers) = gradient(*views, data)
    moved = dict(zip(wanted, gradients, strict=True))
    g, g_personal = (list(moved.get(block, {}).values()) for block in (0, 1))
    return Evaluation(
        *collected(objective, g, g_personal, w, len(w)),
        space.buffers.flatten([t.to(w.dtype) for t in buffers], len(w)) if buffers else b,
        loss,
        scalars,
    )


def _forward_alone_can_be_batched(objective: Objective, w: Tensor, v: Tensor, b: Tensor, data: Any) -> bool:
    """Try it once, leaving the random state alone; a slow fallback inside vmap counts as failure."""
    devices = [] if objective.autocast.on_cpu else [w.device]
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _forward_batched(objective, w, v, b, data)
        except ObjectiveError:
            raise
        except RuntimeError:
            return False
    return not any("batching rule" in str(warning.message) for warning in caught)


def _recorded(objective: Objective) -> Evaluate:
    batched = _batched(objective)
    recordings: dict[Any, Recording] = {}
    names: list[str] = []

    def record(structure: Any, blocks: Blocks) -> Recording:
        def function(w: Tensor, v: Tensor, b: Tensor, *leaves: Tensor) -> list[Tensor]:
            result = batched(w, v, b, unflatten(list(leaves), structure), blocks)
            names[:] = result.scalars
            return [result.g, result.g_personal, result.buffers, result.loss, *result.scalars.values()]

        return Recording(function)

    def evaluate(w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both") -> Evaluation:
        leaves, structure = flatten(data)
        key = structure, blocks
        if key not in recordings:
            recordings[key] = record(structure, blocks)
        g, g_personal, buffers, loss, *scalars = recordings[key](w, v, b, *leaves)
        return Evaluation(g, g_personal, buffers, loss, dict(zip(names, scalars, strict=True)))

    return evaluate


def _compiled(objective: Objective) -> Evaluate:
    """Once an objective: a compiled function outlives chunks and rounds."""
    if objective.compiled is None:
        compiled = torch.compile(_gradient_batched, dynamic=False)
        objective.compiled = partial(compiled, objective)
    return objective.compiled  # type: ignore[no-any-return]


def _explain(error: RuntimeError, name: str) -> RuntimeError:
    text = str(error)
    if not any(sign in text for sign in ("vmap", "functorch", "data-dependent", "BatchedTensor", "Batching rule")):
        return error
    return ObjectiveError(
        f"{name}.objective cannot run for all clients at once (torch.func.vmap): {text.splitlines()[0]}\n"
        "Typical causes: .item() or float(tensor), `if` on a tensor, indexing by a boolean mask, writing into a tensor "
        "made outside. Replace them by masks (torch.where), or set oracle to fedlightning.oracle.Sequential, "
        "which evaluates one client after the other without this limit."
    )
