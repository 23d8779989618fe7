"""A straight line of tensor operations, written down once and run as Python.

A :class:`Program` is what a recorder knows of a function: which operation ran on which earlier results. It becomes
Python source, one line an operation, in which results that nobody reads are left out and every tensor is let go after
its last use. Equal programs have equal sources, and a source is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from types import CodeType
from typing import Any

from torch import Tensor

Name = str
"""The name of a tensor in the program's source."""


@dataclass(frozen=True)
class _Line:
    """One operation.

    Attributes:
        makes: Names of its results, in order; None where a result is no tensor.
        of_one: Whether it returns one tensor and no sequence.
        call: The Python expression.
        reads: Names in it.
        acts: Whether it must run even if nobody reads its results, because it writes or draws.
    """

    makes: tuple[Name | None, ...]
    of_one: bool
    call: str
    reads: tuple[Name, ...]
    acts: bool


class Program:
    """Operations on tensors, in the order they ran."""

    def __init__(self, inputs: int) -> None:
        """Begin without operations.

        Args:
            inputs: How many tensors the program takes; they are named by :meth:`input`.
        """
        self._inputs = tuple(f"i{place}" for place in range(inputs))
        self._lines: list[_Line] = []
        self._scope: dict[str, Any] = {}
        self._held: dict[int, str] = {}  # names in the scope, by identity
        self._count = 0

    def input(self, place: int) -> Name:
        """Return the name of an input."""
        return self._inputs[place]

    def hold(self, value: Any) -> Name:
        """Return the name of something the program keeps: a tensor, an operation, or any argument without a literal."""
        name = self._held.get(id(value))
        if name is None:
            name = self._held[id(value)] = f"c{len(self._scope)}"
            self._scope[name] = value  # which also keeps its id its own
        return name

    def add(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        name_of: Callable[[Tensor], Name],
        output: Any,
        acts: bool,
    ) -> tuple[Name | None, ...]:
        """Write down an operation that has run.

        Args:
            function: The operation.
            args: Its arguments.
            kwargs: Its named arguments.
            name_of: Gives the names of tensors among them.
            output: What it returned: a tensor, a sequence of which some are, or None.
            acts: Whether it writes into an argument or draws random numbers.

        Returns:
            Names of the results; None where one is no tensor.
        """
        reads: list[Name] = []
        arguments = [self._written(value, name_of, reads) for value in args]
        arguments += [f"{name}={self._written(value, name_of, reads)}" for name, value in kwargs.items()]
        call = f"{self.hold(_without_wrapper(function))}({', '.join(arguments)})"
        of_one = isinstance(output, Tensor)
        results = (output,) if of_one else output or ()
        makes = tuple(self._new() if isinstance(result, Tensor) else None for result in results)
        self._lines.append(_Line(makes, of_one, call, tuple(reads), acts))
        return makes

    def function(self, outputs: Sequence[Name]) -> Callable[..., list[Tensor]]:
        """Return a function of the inputs that runs the operations.

        Args:
            outputs: Names of what it returns.
        """
        needed, body = set(outputs), [f"    return [{', '.join(outputs)}]"]
        for line in reversed(self._lines):
            if not (line.acts or needed.intersection(line.makes)):
                continue
            last = set(line.reads) - needed
            unread = {name for name in line.makes if name is not None} - needed
            needed.update(line.reads)
            body.append(_statement(line, sorted(last | unread)))
        source = "\n".join([f"def replay({', '.join(self._inputs)}):", *reversed(body)])
        scope = dict(self._scope)
        exec(_compiled(source), scope)
        return scope.pop("replay")  # type: ignore[no-any-return]  # a function in its own globals would outlive its use

    def _written(self, value: Any, name_of: Callable[[Tensor], Name], reads: list[Name]) -> str:
        """The source of an argument; names of tensors are added to ``reads``."""
        if isinstance(value, Tensor):
            reads.append(name_of(value))
            return reads[-1]
        if isinstance(value, list | tuple):
            return f"[{', '.join([self._written(item, name_of, reads) for item in value])}]"
        if value is None or type(value) in (bool, int) or (type(value) is float and isfinite(value)):
            return repr(value)
        return self.hold(value)

    def _new(self) -> Name:
        self._count += 1
        return f"t{self._count}"


def _statement(line: _Line, done_with: Sequence[Name]) -> str:
    """The source of one operation, and of letting go what nobody reads any more (names of what is kept stay bound)."""
    names = [name or "_" for name in line.makes]
    target = "" if not names else f"{names[0]} = " if line.of_one else f"({', '.join(names)},) = "
    freed = [name for name in done_with if not name.startswith("c")]
    return f"    {target}{line.call}" + (f"; {' = '.join(freed)} = None" if freed else "")


@lru_cache(maxsize=256)
def _compiled(source: str) -> CodeType:
    return compile(source, "<recorded operations>", "exec")


def _without_wrapper(function: Any) -> Any:
    """What a ``torch._ops.OpOverload`` calls: a function written in C++, a third of a microsecond nearer."""
    return getattr(function, "_op", function)
