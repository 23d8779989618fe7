"""The lines of a program: what each operation reads and makes, and the Python statements that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

from torch import Tensor

Name = str
"""The name of a tensor in the program's source."""

SMALL = 2**12
"""Numbers of a constant that is kept from one run to the next, at most."""

Span = tuple[int, int] | None
"""Address and size of what lies in memory in the usual order; None for other tensors."""


class Product(NamedTuple):
    """Describes a matrix product, or one for each client.

    Attributes:
        factors: Names of the two factors.
        shape: The result's shape.
        place: Where the result lay when it was recorded.
        add: Adds the product to a tensor, in place.
    """

    factors: tuple[Name, ...]
    shape: tuple[int, ...]
    place: Span
    add: Callable[..., Tensor]


class Line(NamedTuple):
    """Describes one operation.

    Attributes:
        makes: Names of its results, in order; None where a result is no tensor.
        of_one: Whether the operation returns one tensor and no sequence.
        call: The Python expression.
        reads: Names of the tensors in the expression.
        acts: Whether the operation must run even if nobody reads its results: it writes, draws or checks.
        is_view: Whether its results are places in what it reads, whatever numbers lie there.
        size: How many numbers its results have.
        may_write: Whether it may write into what it reads although it does not act.
        product: What it is if it is a matrix product.
        is_new: Whether its results lie in memory that nothing else refers to.
        in_place: The expression that computes the same in the place of what it reads first; empty if there is none.
        may_keep: Whether what it reads may be read afterwards by what no line names, as a user's own operation may.
    """

    makes: tuple[Name | None, ...]
    of_one: bool
    call: str
    reads: tuple[Name, ...]
    acts: bool
    is_view: bool = False
    size: int = 0
    may_write: bool = False
    product: Product | None = None
    is_new: bool = False
    in_place: str = ""
    may_keep: bool = False


class Join(NamedTuple):
    """Describes tensors that are joined into one.

    Attributes:
        whole: Name of the result.
        parts: Names of what is joined.
        call: The expression that joins them.
        room: The expression that makes room for the result; empty if the parts are better joined at once.
        cut: The expression that cuts a tensor of the result's shape, called ``{}``, into the parts' places.
        shape: The result's shape.
        dim: The dimension along which they are joined.
        places: Where the parts lay when they were recorded.
    """

    whole: Name
    parts: tuple[Name, ...]
    call: str
    room: str
    cut: str
    shape: tuple[int, ...]
    dim: int
    places: tuple[Span, ...]


def place_of(tensor: Tensor) -> Span:
    """Return where a tensor lies, if its numbers follow each other in the usual order."""
    usual = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    return (tensor.data_ptr(), tensor.numel()) if usual else None


def reads_of(line: Line | Join) -> tuple[Name, ...]:
    """Return the names of the tensors that a line reads."""
    return line.reads if isinstance(line, Line) else line.parts


def made_by(lines: Iterable[Line]) -> list[Name]:
    """Return the names of the tensors that lines make."""
    return [name for line in lines for name in line.makes if name is not None]


def without_views_of(point: Name, lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """Return the lines that make views of a tensor, and views of these, and all other lines."""
    views, others, fixed = [], [], {point}
    for line in lines:
        if line.is_view and fixed.issuperset(line.reads):
            views.append(line)
            fixed.update(made_by([line]))
        else:
            others.append(line)
    return views, others


def without_constants(lines: Sequence[Line], outputs: Iterable[Name]) -> tuple[list[Line], list[Line]]:
    """Return the lines whose results are small and the same in every run, as they read nothing else, and all others.

    What is returned, or may be written into, is made anew in every run.

    Args:
        lines: The lines.
        outputs: Names of the tensors that are returned.
    """
    fixed: set[Name] = set()
    for line in lines:
        if not line.acts and line.size <= SMALL and fixed.issuperset(line.reads):
            fixed.update(made_by([line]))
    changing = {*outputs, *(name for line in lines if line.acts or line.may_write for name in line.reads)}
    for line in reversed(lines):  # also what may share its memory
        shares = line.is_view or len(line.reads) == 1 or not fixed.isdisjoint(line.makes)
        if shares and changing.intersection(line.makes):
            changing.update(line.reads)
    for line in lines:
        if changing.intersection((*line.makes, *line.reads)):
            changing.update(made_by([line]))
    constants: list[Line] = []
    others: list[Line] = []
    for line in lines:
        is_constant = not fixed.isdisjoint(line.makes) and changing.isdisjoint(line.makes)
        (constants if is_constant else others).append(line)
    return constants, others


def body_of(lines: Sequence[Line], outputs: Iterable[Name], kept: Iterable[Name] = ()) -> list[str]:
    """Return the statements of lines, without those whose results nobody reads.

    Args:
        lines: The lines.
        outputs: Names of tensors that are read afterwards.
        kept: Names of tensors that stay bound, whether they are read or not.
    """
    needed, body = {*outputs, *kept}, []
    for line in reversed(lines):
        if not (line.acts or needed.intersection(line.makes)):
            continue
        last = set(line.reads) - needed
        unread = {name for name in line.makes if name is not None} - needed
        needed.update(line.reads)
        body.append(_statement(line, sorted(last | unread)))
    return body[::-1]


def _statement(line: Line, done_with: Sequence[Name]) -> str:
    """Return the source of one operation, and of the release of tensors that no later operation reads.

    Names of values that the program keeps stay bound.
    """
    names = [name or "_" for name in line.makes]
    target = "" if not names else f"{names[0]} = " if line.of_one else f"({', '.join(names)},) = "
    freed = [name for name in done_with if not name.startswith("c")]
    return f"    {target}{line.call}" + (f"; {' = '.join(freed)} = None" if freed else "")


@lru_cache(maxsize=256)
def compiled(source: str) -> CodeType:
    """Return the code of a program's source; that of equal sources is the same object."""
    return compile(source, "<recorded operations>", "exec")
