"""Gradients, and several local steps at once, compiled by ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

from fedlightning.oracle.base import Blocks, Evaluation, Move, PrefersFixedSize
from fedlightning.oracle.errors import writes_into
from fedlightning.oracle.objective import Objective
from fedlightning.oracle.randomness import Randomness, generator_state

STEPS_TOGETHER = 5
"""Steps in one compiled function. More take as much longer to compile, and little less time to run."""

Gradient = Callable[[Objective, Tensor, Tensor, Tensor, Any, Blocks], Evaluation]
"""``(objective, w, v, b, data, blocks)``: computes the operators of S clients by tensor operations alone."""


class CompiledEvaluate(PrefersFixedSize):
    """Computes the operators of S clients by a compiled function, alone or within several local steps.

    Functions are compiled once an objective: they outlive chunks and rounds.
    """

    steps_to_pay_off = 32
    leaves_out_done = False

    def __init__(self, objective: Objective, gradient: Gradient, explain: Callable[[Exception], Exception]) -> None:
        """Prepare to compile at the first call.

        Args:
            objective: The task's objective, which keeps what is compiled.
            gradient: Computes operators; it is compiled.
            explain: Turns a failure into the error that is raised.
        """
        self._objective = objective
        self._gradient = gradient
        self._explain = explain

    def __call__(
        self,
        w: Tensor,
        v: Tensor,
        b: Tensor,
        data: Any,
        blocks: Blocks = "both",
        randomness: Randomness | None = None,
    ) -> Evaluation:
        """Compute operators; see :class:`~fedlightning.oracle.base.Evaluate`."""
        result: Evaluation = self._run(self._gradient, (w, v, b, data, blocks), randomness)
        return result

    def steps(
        self,
        w: Tensor,
        v: Tensor,
        b: Tensor,
        gathers: Sequence[Callable[[], Any]],
        blocks: Blocks,
        move: Move,
        randomness: Randomness | None,
    ) -> Sequence[Evaluation]:
        """Gather samples, compute operators and take a step from them, several times in one compiled function.

        Args:
            w: Points, ``[S, d]``.
            v: Personal blocks, ``[S, p]``.
            b: Buffers, ``[S, b]``.
            gathers: Each gathers one minibatch of every client, leaves ``[S, ...]``.
            blocks: The gradients to compute.
            move: Takes a step from the points along the operators. Its numbers are constants of the compiled function:
                those that change from round to round should be tensors.
            randomness: Seeds of each client's random numbers; None to draw from the default generators as they are.

        Returns:
            The evaluations, each with the new points in place of the operators.

        Raises:
            ObjectiveError: If the first steps of a kind end elsewhere than the same steps uncompiled.
        """
        arguments = (w, v, b, gathers, blocks, move, self._gradient)
        results: Sequence[Evaluation] = self._run(_steps, arguments, randomness)
        kind = (len(w), *_codes(move))
        if kind not in self._objective.agreed:
            if not _agree(results[-1].g, _steps(self._objective, *arguments)[-1].g, start=w):
                raise self._explain(RuntimeError("compiled local steps end elsewhere than the same steps uncompiled"))
            self._objective.agreed.add(kind)
        return results

    def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...], randomness: Randomness | None) -> Any:
        """Call a compiled function, and check that it has drawn nothing and left points and personal blocks alone."""
        compiled = self._objective.compiled
        if function not in compiled:
            compiled[function] = torch.compile(function, dynamic=False)
        w, v, *_ = arguments
        before = None if randomness is None else generator_state(w.device)
        version = w._version, v._version
        try:
            result = compiled[function](self._objective, *arguments)
            if before is not None and not torch.equal(before, generator_state(w.device)):
                raise RuntimeError(
                    "a compiled gradient cannot draw every client's random numbers from its own generator"
                )
        except Exception as error:
            raise self._explain(error) from error
        if (w._version, v._version) != version:
            raise writes_into(self._objective.name, None)
        return result


def _steps(
    objective: Objective,
    w: Tensor,
    v: Tensor,
    b: Tensor,
    gathers: Sequence[Callable[[], Any]],
    blocks: Blocks,
    move: Move,
    gradient: Gradient,
) -> list[Evaluation]:
    """Take a step on each minibatch; the last evaluation holds the last points and buffers."""
    results = []
    for gather in gathers:
        result = gradient(objective, w, v, b, gather(), blocks)
        w, b = move(w, result.g), result.buffers
        results.append(replace(result, g=w))
    return results


def _codes(function: Any) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions that it closes over, which tell kinds of steps apart."""
    yield function.__code__
    for cell in function.__closure__ or ():
        if isinstance(cell.cell_contents, FunctionType):
            yield from _codes(cell.cell_contents)


def _agree(found: Tensor, expected: Tensor, start: Tensor) -> bool:
    """Return whether clients ended at the same points ``[S, d]`` up to rounding, wherever these are finite."""
    eps = torch.finfo(found.dtype).eps
    allowed = eps**0.5 * (expected - start).norm(dim=1) + 100 * eps * expected.norm(dim=1)
    close = (found - expected).norm(dim=1) <= allowed
    return bool((close | ~expected.isfinite().all(dim=1)).all())
