"""Elementwise operations whose result takes the place of an operand that nobody reads any more.

A convolution's result is read by a ReLU alone, and the gradient that reaches a ReLU by the ReLU's own gradient. The
result lies in the caches then, and takes no memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedlightning.oracle.recording.direct import runs_python
from fedlightning.oracle.recording.lines import Line, Name, made_by

aten = torch.ops.aten

IN_PLACE = {
    aten.hardtanh.default: aten.hardtanh_.default,
    aten.hardtanh_backward.default: aten.hardtanh_backward.grad_input,
    aten.leaky_relu.default: aten.leaky_relu_.default,
    aten.leaky_relu_backward.default: aten.leaky_relu_backward.grad_input,
    aten.relu.default: aten.relu_.default,
    aten.sigmoid.default: aten.sigmoid_.default,
    aten.sigmoid_backward.default: aten.sigmoid_backward.grad_input,
    aten.tanh.default: aten.tanh_.default,
    aten.tanh_backward.default: aten.tanh_backward.grad_input,
    aten.threshold_backward.default: aten.threshold_backward.grad_input,
}
"""For each operation the one that writes the same result over its first argument.

Those called ``grad_input`` are given that argument once more, under this name.
"""

NEW = {
    *IN_PLACE,
    aten.add.Tensor,
    aten.addmm.default,
    aten.avg_pool2d_backward.default,
    aten.baddbmm.default,
    aten.bmm.default,
    aten.convolution.default,
    aten.convolution_backward.default,
    aten.max_pool2d_with_indices.default,
    aten.max_pool2d_with_indices_backward.default,
    aten.mm.default,
    aten.mul.Tensor,
    aten.native_group_norm.default,
    aten.native_group_norm_backward.default,
}
"""Operations whose results lie in memory that nothing else refers to. One that is missing here costs memory alone."""

Call = tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]
"""An operation, its arguments, and its named arguments."""

_ELSEWHERE = ""
"""Stands for memory that no line names."""


def call_in_place(function: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Call | None:
    """Return the call that computes a result into its first argument; None if there is none.

    Args:
        function: The operation that has run.
        args: Its arguments.
        kwargs: Its named arguments.
        result: What it returned.
    """
    variant = IN_PLACE.get(function)
    if variant is None or not _could_lie_in(args[0], result) or runs_python(variant):
        return None
    return variant, args, {**kwargs, **({"grad_input": args[0]} if variant._overloadname == "grad_input" else {})}


def overwriting(lines: Sequence[Line], outputs: Iterable[Name]) -> list[Line]:
    """Return lines that overwrite an operand where nothing reads its memory afterwards.

    Args:
        lines: All operations of a run, in their order.
        outputs: Names of tensors that are read after the last one.
    """
    if not any(line.in_place for line in lines):
        return list(lines)
    memory = _memory_of(lines)

    def lies_in(names: Iterable[Name]) -> set[Name]:
        return {place for name in names for place in memory.get(name, (name,))}

    live = lies_in([*outputs, *(name for line in lines if line.may_keep for name in line.reads)])
    found: list[Line] = []
    for line in reversed(lines):
        if not line.acts and live.isdisjoint(line.makes):
            found.append(line)  # which nobody reads
            continue
        operand, others = lies_in(line.reads[:1]), lies_in(line.reads[1:])
        is_of_lines = operand <= memory.keys()  # neither an input, nor a constant, nor from elsewhere
        is_free = operand.isdisjoint(others | live.difference(line.makes))  # the line's own result is new
        found.append(line._replace(call=line.in_place) if line.in_place and is_of_lines and is_free else line)
        live |= operand | others
    return found[::-1]


def _memory_of(lines: Iterable[Line]) -> dict[Name, set[Name]]:
    """Return in whose memory every result may lie: in its own, or in that of what was read, or elsewhere."""
    memory: dict[Name, set[Name]] = {}
    for line in lines:
        if line.is_new:
            memory.update((name, {name}) for name in made_by([line]))
            continue
        read = {place for name in line.reads for place in memory.get(name, (name,))}
        elsewhere = {_ELSEWHERE} if line.acts or not line.reads else set()
        memory.update((name, {name, *read, *elsewhere}) for name in made_by([line]))
    return memory


def _could_lie_in(operand: Any, result: Any) -> bool:
    """Return whether a result could be written over an operand: it has the same shape, strides and dtype.

    No two of the operand's numbers may share a place, and its memory must be no larger than the result's own, because
    the result would keep all of it.
    """
    tensors = operand, result
    if any(type(each) is not Tensor or each.is_nested or each.layout != torch.strided for each in tensors):
        return False
    if any(each.is_conj() or each.is_neg() for each in tensors):
        return False
    layout, other = ((each.shape, each.stride(), each.dtype, each.untyped_storage().nbytes()) for each in tensors)
    return layout == other and torch._debug_has_internal_overlap(operand) == 0
