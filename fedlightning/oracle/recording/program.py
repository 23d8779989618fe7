"""Straight lines of tensor operations, written down once and run as Python.

A :class:`Program` holds what a recorder knows of a function: which operation ran on which earlier results. A program
becomes Python source with one line for each operation. Results that nobody reads are left out, and every tensor is
released after its last use. What is joined into one large tensor, such as the gradients of all parameters, is copied to
its place as soon as it is computed, while it lies in the caches, and released; or it is not joined at all, if the
program is to take steps along it: a large matrix product that is a parameter's whole gradient, and that nothing else
reads, is then subtracted while it is computed.
Equal programs have equal sources, and each source is compiled once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedlightning.oracle.recording.direct import direct
from fedlightning.oracle.recording.lines import (
    Join,
    Line,
    Name,
    Product,
    body_of,
    compiled,
    made_by,
    place_of,
    reads_of,
    without_constants,
    without_views_of,
)
from fedlightning.oracle.recording.overwriting import NEW, Call, call_in_place, overwriting
from fedlightning.oracle.recording.own_memory import in_own_memory

aten = torch.ops.aten

Steps = Generator[list[Tensor], Sequence[Tensor], None]
"""Takes a step for all inputs that it is sent. Once it is closed, the first input holds the point where they led."""

LARGE_BYTES = 2**23
"""Joined tensors of this size are filled part by part; smaller ones lie in the caches anyway."""

FEW_ROWS = 64
"""Inner dimension up to which computing a product takes less time than writing and reading it."""

_ADD_PRODUCT = {aten.mm.default: Tensor.addmm_, aten.bmm.default: Tensor.baddbmm_}


class Program:
    """Lists operations on tensors in the order in which they ran."""

    def __init__(self, inputs: int) -> None:
        """Start without operations.

        Args:
            inputs: Number of tensors that the program takes; :meth:`input` returns their names.
        """
        self._inputs = tuple(f"i{place}" for place in range(inputs))
        self._lines: list[Line | Join] = []
        self._scope: dict[str, Any] = {}
        self._held: dict[int, str] = {}  # names in the scope, by identity
        self._count = 0

    def input(self, place: int) -> Name:
        """Return the name of an input."""
        return self._inputs[place]

    def hold(self, value: Any) -> Name:
        """Return the name of a value that the program keeps: a tensor, operation, or argument without a literal."""
        name = self._held.get(id(value))
        if name is None:
            name = self._held[id(value)] = f"c{len(self._scope)}"
            self._scope[name] = value  # and thereby keeps its id from being used again
        return name

    def add(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        name_of: Callable[[Tensor], Name],
        output: Any,
        acts: bool,
        is_view: bool = False,
        may_write: bool = False,
    ) -> tuple[Name | None, ...]:
        """Write down an operation that has run.

        Args:
            function: The operation.
            args: Its arguments.
            kwargs: Its named arguments.
            name_of: Gives the names of tensors among the arguments.
            output: Result of the operation: a tensor, a sequence that may contain tensors, or None.
            acts: Whether the operation must run even if nobody reads its results.
            is_view: Whether the results are views of arguments, whatever numbers these hold.
            may_write: Whether the operation may write into an argument although it does not act.

        Returns:
            Names of the results; None where a result is no tensor.
        """
        reads: list[Name] = []
        call = self._called((function, args, kwargs), name_of, reads)
        into_operand = call_in_place(function, args, kwargs, output)
        in_place = "" if into_operand is None else self._called(into_operand, name_of, [])
        of_one = isinstance(output, Tensor)
        results = (output,) if of_one else output or ()
        makes = tuple(self._new() if isinstance(result, Tensor) else None for result in results)
        product = None
        if function in _ADD_PRODUCT and args[0].shape[-1] <= FEW_ROWS:
            product = Product(tuple(reads), tuple(output.shape), place_of(output), _ADD_PRODUCT[function])
        size = sum(result.numel() for result in results if isinstance(result, Tensor))
        line = Line(makes, of_one, call, tuple(reads), acts, is_view, size, may_write, product)
        self._lines.append(line._replace(is_new=function in NEW, in_place=in_place, may_keep=acts))
        return makes

    def join(self, parts: Sequence[Tensor], dim: int, name_of: Callable[[Tensor], Name], whole: Tensor) -> Name:
        """Write down that tensors of one dtype were joined along a dimension, and return the name of the result."""
        name, names = self._new(), tuple(map(name_of, parts))
        sizes = [part.shape[dim] for part in parts]
        call = f"{self.hold(torch.cat)}([{', '.join(names)}], {dim})"
        room = ""
        if whole.numel() * whole.element_size() >= LARGE_BYTES:
            room = f"{self.hold(partial(torch.empty, whole.shape, dtype=whole.dtype, device=whole.device))}()"
        cut = f"{self.hold(torch.split_with_sizes)}({{}}, {sizes}, {dim})"
        places = tuple(map(place_of, parts))
        self._lines.append(Join(name, names, call, room, cut, tuple(whole.shape), dim, places))
        return name

    def function(self, outputs: Sequence[Name]) -> Callable[..., list[Tensor]]:
        """Return a function of the inputs that runs the operations, those on small constants once and for all.

        Where its first output is a large joined tensor, the function takes room for it as ``room``.

        Args:
            outputs: Names of the tensors that the function returns.
        """
        constants, lines = without_constants(self._filled(outputs, outputs[0]), outputs)
        before = body_of(constants, {name for line in lines for name in line.reads})
        body = body_of(overwriting(lines, outputs), outputs, kept=made_by(constants))
        head, last = f"def replay({', '.join(self._inputs)}, room=None):", f"    return [{', '.join(outputs)}]"
        return self._made([*map(str.lstrip, before), head, *body, last])

    def steps(self, outputs: Sequence[Name], fused_from: float = math.inf) -> Callable[..., Steps] | None:
        """Return a function of the first input and of ``lr`` that begins steps along the first output.

        For every step, the coroutine that the function returns is sent the other inputs, subtracts lr times the first
        output from the first input, and gives the other outputs. The first output is never put together, and views of
        the first input and small constants are made once for all steps. The bits are those of a subtraction after the
        program, unless products are subtracted while they are computed, which leaves out a rounding. The first input
        may lag behind until the coroutine is closed; see :func:`in_own_memory`.

        Args:
            outputs: Names of tensors, of which the first has as many numbers as the first input. None of them, and none
                of the parts that were joined into the first, may share memory with the first input.
            fused_from: Numbers in a matrix from which on a product is subtracted while it is computed.

        Returns:
            None if the first output was not joined from parts side by side, or if anything reads it or is written into
            afterwards.
        """
        (first, *rest), (point, *others) = outputs, self._inputs
        place = next((k for k, line in enumerate(self._lines) if isinstance(line, Join) and line.whole == first), None)
        if place is None or first in rest:
            return None
        join, later = self._lines[place], self._lines[place + 1 :]
        assert isinstance(join, Join)
        if join.dim != 1 or any(first in reads_of(line) or (isinstance(line, Line) and line.acts) for line in later):
            return None
        views, view_as = [self._new() for _ in join.parts], self.hold(Tensor.view)
        whole = f"{view_as}({point}, {join.shape})"
        lines = [Line(tuple(views), False, join.cut.format(whole), (point,), False, True), *self._filled(rest)]
        products, matrices = self._products(join, point, fused_from), []
        for view, part in zip(views, join.parts, strict=True):
            if part in products:
                factors, shape, _, add = products[part]
                target = self._new()
                matrices.append(target)
                lines.append(Line((target,), True, f"{view_as}({view}, {shape})", (view,), False, True))
                call = f"{self.hold(add)}({target}, {', '.join(factors)}, alpha=-lr)"
            else:
                target, factors, call = view, (part,), f"{self.hold(Tensor.sub_)}({view}, {part}, alpha=lr)"
            lines.append(Line((), False, call, (target, *factors), True))
        once, changing = without_views_of(point, lines)
        constants, every_time = without_constants(changing, rest)
        read = {name for line in every_time for name in line.reads}
        kept = (point, *made_by([*constants, *once]))
        received = f"({''.join(f'{name}, ' for name in others)}) = yield"
        moved = ", ".join([] if point in read else matrices)
        fixed = "".join(f"{name}, " for name in made_by(once) if name in read)
        return self._made(
            [
                f"def replay({point}, lr):",
                *body_of([*constants, *once], read, kept=(point,)),
                f"    ({fixed}), settle = {self.hold(in_own_memory)}({point}, [{moved}], [{fixed}])",
                "    try:",
                f"        {received}",
                "        while True:",
                *(f"        {statement}" for statement in body_of(overwriting(every_time, rest), rest, kept)),
                f"            {received} [{', '.join(rest)}]",
                "    finally:",
                "        settle()",
            ]
        )

    def _products(self, join: Join, point: Name, smallest: float) -> dict[Name, Product]:
        """Return the parts of a join that are a client's large matrix product, which nothing else reads, by name.

        The factors may be no views of the point, in which other parts are subtracted before.
        """
        readers = Counter(name for line in self._lines for name in reads_of(line))
        views, _ = without_views_of(point, [line for line in self._lines if isinstance(line, Line)])
        in_point = {point, *made_by(views)}
        found: dict[Name, Product] = {}
        for line in self._lines:
            if isinstance(line, Line) and line.acts:  # it may change the factors
                found.clear()
            if isinstance(line, Join) or not line.of_one:
                continue
            (name,) = line.makes
            product = line.product
            if line.is_view and line.reads:  # constants have views, too
                product = found.get(line.reads[0])
            if product is not None and name is not None and readers[name] == 1 and in_point.isdisjoint(product.factors):
                found[name] = product
        places = dict(zip(join.parts, join.places, strict=True))
        return {
            name: product
            for name, product in found.items()
            if product.place is not None
            and product.place == places.get(name)
            and join.shape[0] in (1, product.shape[0])  # else one client has several matrices
            and math.prod(product.shape[-2:]) >= smallest
        }

    def _made(self, source: Sequence[str]) -> Callable[..., Any]:
        """Return the function that the lines of source define, with all that the program holds."""
        scope = dict(self._scope)
        exec(compiled("\n".join(source)), scope)
        return scope.pop("replay")  # type: ignore[no-any-return]  # a function in its own globals would outlive its use

    def _filled(self, outputs: Sequence[Name], in_room: Name | None = None) -> list[Line]:
        """Return the lines with large joins as copies, each behind the last operation that may change what is copied.

        Args:
            outputs: Names of the tensors that are returned.
            in_room: The one for which the caller may give room.
        """
        read = {name for line in self._lines for name in reads_of(line)}
        after: list[list[Line]] = [[] for _ in self._lines]
        made: dict[Name, int] = {}
        last_write = 0
        for place, line in enumerate(self._lines):
            if isinstance(line, Line):
                made.update((name, place) for name in line.makes if name is not None)
                last_write = place if line.acts else last_write
                continue
            if line.whole not in read and line.whole not in outputs:
                continue
            made[line.whole] = place
            if not line.room:
                after[place] += [Line((line.whole,), True, line.call, line.parts, False)]
                continue
            at = [max(made.get(part, 0), last_write) for part in line.parts]
            views = [self._new() for _ in line.parts]
            room = f"{line.room} if room is None else room" if line.whole == in_room else line.room
            after[min(at)] += [Line((line.whole,), True, room, (), False)]
            after[min(at)] += [Line(tuple(views), False, line.cut.format(line.whole), (line.whole,), False)]
            for view, part, when in zip(views, line.parts, at, strict=True):
                after[when] += [Line((), False, f"{self.hold(Tensor.copy_)}({view}, {part})", (view, part), True)]
        lines: list[Line] = []
        for line, following in zip(self._lines, after, strict=True):
            lines += [*([line] if isinstance(line, Line) else []), *following]
        return lines

    def _called(self, call: Call, name_of: Callable[[Tensor], Name], reads: list[Name]) -> str:
        """Return the source of a call, and add names of tensors among its arguments to ``reads``."""
        function, args, kwargs = call
        arguments = [self._written(value, name_of, reads) for value in args]
        arguments += [f"{name}={self._written(value, name_of, reads)}" for name, value in kwargs.items()]
        return f"{self.hold(direct(function, args, kwargs))}({', '.join(arguments)})"

    def _written(self, value: Any, name_of: Callable[[Tensor], Name], reads: list[Name]) -> str:
        """Return the source of an argument, and add names of tensors to ``reads``."""
        if isinstance(value, Tensor):
            reads.append(name_of(value))
            return reads[-1]
        if isinstance(value, list | tuple):
            return f"[{', '.join([self._written(item, name_of, reads) for item in value])}]"
        if value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value)):
            return repr(value)
        return self.hold(value)

    def _new(self) -> Name:
        self._count += 1
        return f"t{self._count}"
