"""All clients of a chunk at once, by ``torch.func.vmap``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.tree import map_tensors
from fedlightning.core.validation import require
from fedlightning.oracle.base import (
    Blocks,
    ClientBatching,
    Cost,
    Evaluate,
    Evaluation,
    PrefersFixedSize,
    StepInPlace,
    StepsInPlace,
)
from fedlightning.oracle.compiled import CompiledEvaluate
from fedlightning.oracle.differentiation import collected, differentiate
from fedlightning.oracle.each import Each
from fedlightning.oracle.errors import is_out_of_memory, writes_into
from fedlightning.oracle.explained import explained
from fedlightning.oracle.layers.cohort_layers import CohortLayers
from fedlightning.oracle.lone import of_one
from fedlightning.oracle.objective import Named, Objective
from fedlightning.oracle.randomness import ClientNoise, PerClient, Randomness, generator_state
from fedlightning.oracle.recording.glance import glance, no_glance
from fedlightning.oracle.recording.recorded import Recorded
from fedlightning.oracle.refused import HIDDEN_READS, NOTHING

CACHE_BYTES = 32 * 2**20
"""On a CPU a chunk's parameters, gradients and activations should stay near the caches."""

GROWN_BYTES = 5 * CACHE_BYTES // 2
"""Larger chunks than fit the caches are tried up to this size: where operations are small, their number decides."""

POINTS_BYTES = 4 * CACHE_BYTES
"""Points and updates of a chunk whose clients are computed one by one, or one on each thread."""

TURNS = 8
"""Clients of a chunk for each thread that takes one client at a time, if more than fit the caches: more gain little."""

MIN_CALLS_TO_RECORD = 3
"""Recording costs less than two replays save."""

STEPS_TO_PAY_OFF_A_RECORDING = 32
"""Steps after which a recording that serves one round has paid, where a client more takes little time."""

LARGE_POINT_BYTES = 200 * 2**10
"""A client's point from which on clients are left out as soon as their minibatches are used up, or a solver is done.
Below it a glance at one client tells whether a round does what an earlier one did."""

BATCHABLE_ATTENTION = partial(sdpa_kernel, SDPBackend.MATH)
"""The fused attention kernels have no batching rule: vmap would run them client by client."""

Backward = Literal["autograd", "vmap", "each"]


@dataclass(frozen=True)
class Vectorized(ClientBatching):
    """Compute a chunk of clients as one batched operation.

    The objective runs under ``torch.func.vmap``: it must not read tensor values in Python (``.item()``, ``if`` on a
    tensor, boolean masks). Python code in it runs once for all clients. With ``replay`` that is once a round, for small
    models with one client's samples alone, or up to three times in a round that differs from earlier ones. The first
    round of a fit compares it with evaluation client by client; see ``self_check`` of the task.

    Args:
        chunk_size: Clients computed together; by default as many as memory (on a CPU: the caches) suggests. It is
            halved, with a line, whenever a chunk does not fit into memory.
        replay: Run the steps of a round from a recording of the first one, faster for small models (see
            :mod:`fedlightning.oracle.recording.recording`). The gradients have the same bits; plain steps may lack a
            rounding. On a GPU, every replay of an objective that draws no random numbers is one CUDA graph. Null: on
            CPUs only, while ``Auto`` tries it on GPUs as well.
        compile: Compile the gradient with ``torch.compile`` (seconds to minutes once; needs a C++ compiler) and, for
            algorithms with plain local steps, five steps at a time with their samples; the first five are compared
            with the same steps uncompiled. Worth it for small models without convolutions. Not for objectives that draw
            random numbers (dropout, noise): a compiled gradient cannot draw each client's own, so they fall back to the
            next slower oracle, with a line. A backward pass that begins after the first round to read the task's
            parameters is not seen.
        backward: ``autograd`` batches the forward pass alone and differentiates it as usual, ``vmap`` batches the
            gradient, which takes recurrent layers and attention apart; ``each`` records the gradient of one client
            and replays it for all, with as many clients side by side as there are threads, one on a GPU, which suits
            networks that keep a processor busy with one client. Null tries the first, which is fastest for small
            networks.
        threads: Threads that compute; null for as many as PyTorch takes.
        parts: Threads that divide the replays of a chunk among themselves, one processor and clients of its own each,
            in place of ``threads`` inside every operation. Clients too few to be divided, below four, have all of
            PyTorch's threads inside operations. This suits chunks that can be divided, also on processors that other
            jobs use as well. For CPUs and objectives without random numbers; all others are not divided.
    """

    chunk_size: int | None = None
    replay: bool | None = None
    compile: bool = False
    backward: Backward | None = None
    threads: int | None = None
    parts: int = 1

    def __post_init__(self) -> None:
        require(self, "chunk_size", "threads", at_least=1, optional=True)
        require(self, "parts", at_least=1)
        for name, others, expected in (("replay", (None,), "true, false or null"), ("compile", (), "true or false")):
            value = getattr(self, name)
            if not isinstance(value, bool) and value not in others:
                raise InvalidTypeError(f"Vectorized({name}={value!r}): expected {expected}.")
        if self.compile and self.replay:
            raise InvalidValueError(
                "Vectorized(compile=True, replay=True): what is compiled is not replayed; give one."
            )
        if self.backward not in (*get_args(Backward), None):
            raise InvalidValueError(
                f"Vectorized(backward={self.backward!r}): expected 'autograd', 'vmap', 'each' or null."
            )
        if self.backward == "each" and (self.compile or self.replay is False):
            raise InvalidValueError("Vectorized(backward='each') replays: leave out compile=True and replay=False.")
        if self.parts > 1 and (self.backward == "each" or self.compile or self.replay is False):
            raise InvalidValueError(
                f"Vectorized(parts={self.parts}) divides replays of a chunk: leave out compile=True and replay=False. "
                "backward='each' divides by itself: give threads there."
            )
        if self.parts > 1 and self.threads not in (None, self.parts):
            raise InvalidValueError(
                f"Vectorized(parts={self.parts}, threads={self.threads}): every part is a thread; leave out threads."
            )

    @property
    def at_a_time(self) -> int:
        """Return the number of threads, if each takes a client; see :class:`ClientBatching`."""
        return (self.threads or torch.get_num_threads()) if self.backward == "each" else 1

    def chunk(self, cost: Cost) -> int:
        """Return how many clients fit, each with a point, an operator, a few temporaries and its activations."""
        if self.chunk_size is not None:
            return self.chunk_size
        if self.backward == "each":  # only those that are computed at a time have activations
            if cost.free_bytes is not None:
                return max(1, cost.free_bytes // (2 * _numbers(cost)))
            point_and_update = 2 * cost.dim * cost.itemsize
            fit = max(CACHE_BYTES // _numbers(cost), min(POINTS_BYTES // point_and_update, TURNS * self.at_a_time))
            return max(1, fit // self.at_a_time) * self.at_a_time
        client = _numbers(cost) + 2 * cost.activation_bytes
        if cost.free_bytes is not None:
            return max(1, cost.free_bytes // (2 * client))
        return max(8 if client <= CACHE_BYTES else 4, CACHE_BYTES // client)

    def most(self, cost: Cost) -> int:
        """Return how many clients a chunk may be tried with; :meth:`chunk` may be too careful on a CPU."""
        if self.chunk_size is not None or cost.free_bytes is not None:
            return self.chunk(cost)
        return max(self.chunk(cost), GROWN_BYTES // (_numbers(cost) + 2 * cost.activation_bytes))

    def replays(self, on_cpu: bool) -> bool:
        """Return whether rounds of several steps are replayed."""
        if self.backward == "each":
            return True
        return not self.compile and (on_cpu if self.replay is None else self.replay)

    def threads_inside(self, objective: Objective) -> int | None:
        """Return 1 if threads compute clients of their own, which those that wait inside operations would disturb.

        Steps of models beyond the caches take longer than that wait, and are left to all threads.
        """
        if self.backward == "each" and not objective.autocast.on_cpu:
            return None  # a graph needs none, and the host has samples to prepare
        if self.backward == "each" and objective.point_bytes > CACHE_BYTES:
            return self.threads
        own = (self.backward == "each" and self.threads is not None) or self.divided_among(objective) > 1
        return 1 if own and objective.autocast.on_cpu else self.threads

    def divided_among(self, objective: Objective) -> int:
        """Return the number of threads that divide the replays of a chunk among themselves."""
        return self.parts if self.can_be_divided(objective) else 1

    def can_be_divided(self, objective: Objective) -> bool:
        """Return whether threads may divide the replays of a chunk among themselves."""
        on_cpu = objective.autocast.on_cpu
        return on_cpu and self.backward != "each" and self.replays(on_cpu) and objective.draws is False

    def fallbacks(self, on_cpu: bool) -> Iterator[Vectorized]:
        """Yield this oracle and the slower ones to fall back to, each named in full, the fastest first."""
        if self.compile:
            yield self
        if self.backward == "each":
            yield self
            return
        plain = replace(self, compile=False)
        backwards: tuple[Backward, ...] = ("vmap",) if self.backward == "vmap" else ("autograd", "vmap")
        for backward in backwards:
            if plain.replays(on_cpu):
                yield replace(plain, backward=backward)
            yield replace(plain, backward=backward, replay=False, parts=1)

    def evaluator(self, objective: Objective, calls: int) -> Evaluate:
        """Return a batched forward and backward pass, recorded or compiled if so chosen."""
        if self.compile:
            return CompiledEvaluate(objective, _gradient_batched, partial(explained, name=objective.name))
        on_cpu, noise = objective.autocast.on_cpu, ClientNoise()
        compute: Evaluate
        if self.backward == "each":
            compute = Each(objective, self.at_a_time if on_cpu else 1)
        elif calls >= MIN_CALLS_TO_RECORD and self.replays(on_cpu):
            batched, threads = partial(_batched, objective, self.backward, HIDDEN_READS), self.divided_among(objective)
            may_glance = on_cpu and objective.point_bytes < LARGE_POINT_BYTES and not objective.keeps_values
            seen = partial(glance, objective) if may_glance else no_glance
            compute = Recorded(batched, noise, threads, objective.recorded, self.backward, seen)
        else:
            compute = _eager(objective, self.backward, noise)
        return _VectorizedEvaluate(objective, self.backward, noise, compute)


class _VectorizedEvaluate(StepsInPlace, PrefersFixedSize):
    """Computes operators in one of the ways, and says in the user's words what is wrong if that fails."""

    def __init__(self, objective: Objective, backward: Backward | None, noise: ClientNoise, compute: Evaluate) -> None:
        self._objective, self._backward = objective, backward
        self._noise, self._compute = noise, compute
        is_kept = objective.draws is False  # from round to round
        on_cpu, is_large = objective.autocast.on_cpu, objective.point_bytes >= LARGE_POINT_BYTES
        pays = on_cpu and (is_kept or is_large)
        self.steps_to_pay_off = STEPS_TO_PAY_OFF_A_RECORDING if isinstance(compute, Recorded) and not pays else 1
        self.leaves_out_done = isinstance(compute, Each) or (on_cpu and is_large)
        self.most_waiting = compute.most_waiting if isinstance(compute, StepsInPlace) else 0

    def __call__(
        self, w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both", randomness: Randomness | None = None
    ) -> Evaluation:
        objective = self._objective
        self._noise.begin(randomness)
        version = w._version, v._version
        with self._explained():
            if self._backward is None and objective.forward_only is None:
                objective.forward_only = _forward_alone_can_be_batched(objective, w, v, b, data)
            result = self._compute(w, v, b, data, blocks, randomness)
        if (w._version, v._version) != version:
            raise writes_into(objective.name, None)
        return result

    @contextmanager
    def steps_in_place(self, w: Tensor, v: Tensor, blocks: Blocks, lr: float) -> Iterator[StepInPlace]:
        compute = self._compute
        with ExitStack() as stack:
            steps = compute.steps_in_place(w, v, blocks, lr) if isinstance(compute, StepsInPlace) else nullcontext()
            take = stack.enter_context(steps)

            def step(b: Tensor, data: Any, randomness: Randomness | None) -> Evaluation | None:
                if take is None:
                    return None
                self._noise.begin(randomness)
                with self._explained():
                    return take(b, data, randomness)

            yield step
            with self._explained():  # steps may have waited until now
                stack.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise explained(error, self._objective.name, self._backward) from error


def _numbers(cost: Cost) -> int:
    """Return the bytes of a client's point, its operator and a few temporaries."""
    return 8 * cost.dim * cost.itemsize


def _batched(
    objective: Objective,
    backward: Backward | None,
    refused: frozenset[Any],
    w: Tensor,
    v: Tensor,
    b: Tensor,
    data: Any,
    blocks: Blocks,
) -> Evaluation:
    """``vmap`` over the forward pass only where that is possible, else over the gradient; no ``vmap`` over one client.

    The random numbers of a single client would have other shapes below ``vmap``, and be others. Below it no number can
    be read, so that ``refused`` matters on the way back.
    """
    if len(w) == 1 and objective.draws is False and objective.runs_alone is not False:
        return of_one(objective, w[0], v[0], b[0], map_tensors(itemgetter(0), data), blocks)
    forward_only = objective.forward_only if backward is None else backward == "autograd"
    if forward_only:
        return _forward_batched(objective, w, v, b, data, blocks, refused)
    return _gradient_batched(objective, w, v, b, data, blocks)


def _forward_batched(
    objective: Objective,
    w: Tensor,
    v: Tensor,
    b: Tensor,
    data: Any,
    blocks: Blocks = "both",
    refused: frozenset[Any] = NOTHING,
) -> Evaluation:
    """Batch the forward pass alone: autograd is ordinary then, and layers are laid out by our rules."""
    layers = CohortLayers(fast=objective.autocast.on_cpu, every_dtype=objective.is_for_comparison)

    def forward(*arguments: Any) -> Any:
        with layers:
            return objective(*arguments)

    with BATCHABLE_ATTENTION():
        return differentiate(
            objective, vmap(forward, in_dims=0, randomness=_randomness(objective)), w, v, b, data, blocks, refused
        )


def _gradient_batched(
    objective: Objective, w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both"
) -> Evaluation:
    """Batch the gradient: this takes composite operations apart (recurrent layers, attention) and compiles whole."""
    space, scale = objective.space, objective.autocast.scale
    wanted = {"both": (0, 1), "shared": (0,), "personal": (1,)}[blocks]

    def scaled(shared: Named, personal: Named, buffers: Named, data: Any) -> Any:
        with objective.autocast():
            loss, scalars, new_buffers = objective(shared, personal, buffers, data)
        if going_back is not None:
            going_back.enter_context(objective.going_back())
        return loss * scale, (loss, scalars, new_buffers)

    gradient = vmap(grad(scaled, argnums=wanted, has_aux=True), in_dims=0, randomness=_randomness(objective))
    views = (space.shared.views(w), space.personal.views(v), space.buffers.views(b))
    compiling = torch.compiler.is_compiling()  # contexts of ours would cut the graph into pieces
    with (
        BATCHABLE_ATTENTION(),
        nullcontext() if compiling else CohortLayers(fast=False),
        nullcontext() if compiling else ExitStack() as going_back,
    ):
        gradients, (loss, scalars, buffers) = gradient(*views, data)
    moved = dict(zip(wanted, gradients, strict=True))
    g, g_personal = (list(moved.get(block, {}).values()) for block in (0, 1))
    return Evaluation(
        *collected(objective, g, g_personal, w, len(w)),
        space.buffers.flatten([t.to(b.dtype) for t in buffers], len(w)) if buffers else b,
        loss,
        scalars,
    )


def _randomness(objective: Objective) -> str:
    """Return vmap's mode: who begins to draw in a later round may begin to seed, too, which nobody sees."""
    return "error" if objective.draws is False else "different"


def _forward_alone_can_be_batched(objective: Objective, w: Tensor, v: Tensor, b: Tensor, data: Any) -> bool:
    """Try it once, leaving the random state alone; a slow fallback inside vmap counts as failure."""
    devices = [] if objective.autocast.on_cpu else [w.device]
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _forward_batched(objective, w, v, b, data)
        except RuntimeError as error:
            if is_out_of_memory(error):  # fewer clients may do
                raise
            return False
    return not any(is_slow(warning.message) for warning in caught)


def is_slow(warning: object) -> bool:
    """Return whether vmap has warned that it goes client by client."""
    return "batching rule" in str(warning)


def _eager(objective: Objective, backward: Backward | None, noise: ClientNoise) -> Evaluate:
    """Run operations as they come; once an objective draws random numbers, with a generator for each client."""

    def evaluate(
        w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both", randomness: Randomness | None = None
    ) -> Evaluation:
        if not objective.draws:
            before = None if randomness is None else generator_state(w.device)
            result = _batched(objective, backward, NOTHING, w, v, b, data, blocks)
            if before is None or torch.equal(before, generator_state(w.device)):
                return result
            objective.draws = True
        with PerClient(noise):
            return _batched(objective, backward, NOTHING, w, v, b, data, blocks)

    return evaluate
