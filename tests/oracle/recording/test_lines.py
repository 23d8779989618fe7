"""Lines of a program and their statements."""

from __future__ import annotations

import pytest
import torch

from fedlightning.oracle.recording.lines import (
    SMALL,
    Line,
    body_of,
    made_by,
    place_of,
    without_constants,
    without_views_of,
)


def line(made, call, *reads, acts=False, is_view=False):
    return Line((made,), True, call, reads, acts, is_view)


def test_what_nobody_reads_is_left_out_and_what_is_read_last_is_released():
    lines = [line("t1", "f(i0)", "i0"), line("t2", "g(t1)", "t1"), line("t3", "h(t1)", "t1")]
    assert body_of(lines, ["t2"], kept=["i0"]) == ["    t1 = f(i0)", "    t2 = g(t1); t1 = None"]


def test_what_acts_stays_and_what_the_program_keeps_is_not_released():
    lines = [line("t1", "f(c1)", "c1"), Line((), False, "w(c1, t1)", ("c1", "t1"), True)]
    assert body_of(lines, []) == ["    t1 = f(c1)", "    w(c1, t1); t1 = None"]


def test_views_of_views_are_told_from_all_else():
    views = [line("t1", "v(i0)", "i0", is_view=True), line("t2", "v(t1)", "t1", is_view=True)]
    others = [
        line("t3", "v(i1)", "i1", is_view=True),
        line("t4", "f(t2)", "t2"),
        line("t5", "v(t4)", "t4", is_view=True),
    ]
    found = without_views_of("i0", [views[0], *others[:2], views[1], others[2]])
    assert found == (views, others)
    assert made_by(views) == ["t1", "t2"]


ONES, HALF = line("t1", "ones()"), line("t2", "half(t1)", "t1")
READER = line("t3", "f(t2, i0)", "t2", "i0")
WRITES = {
    "into it": Line((), False, "w(t2)", ("t2",), True),
    "into what it was made of": Line((), False, "w(t1)", ("t1",), True),
    "into a view": [line("t4", "v(t2, i0)", "t2", "i0", is_view=True), Line((), False, "w(t4)", ("t4",), True)],
    "into what may be a view": [line("t4", "v(t2)", "t2"), Line((), False, "w(t4)", ("t4",), True)],
}


def test_what_follows_from_no_input_is_constant():
    drawn = line("t5", "draw()", acts=True)
    many = Line(("t6",), True, "many()", (), False, size=SMALL + 1)
    held = line("t7", "g(c1)", "c1")
    others = [READER, drawn, many, held, line("t8", "h(t6)", "t6")]
    assert without_constants([ONES, HALF, *others], ["t3"]) == ([ONES, HALF], others)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_may_be_written_into_is_made_anew(write):
    lines = [ONES, HALF, READER, *(write if isinstance(write, list) else [write])]
    assert without_constants(lines, ["t3"]) == ([], lines)


def test_what_is_returned_is_made_anew():
    lines = [ONES, HALF, READER]
    assert without_constants(lines, ["t3", "t2"]) == ([], lines)
    assert without_constants(lines, ["t3", "t1"]) == ([], lines)


def test_only_tensors_in_the_usual_order_have_a_place():
    x = torch.arange(6.0).view(2, 3)
    assert place_of(x[1]) == (x.data_ptr() + 12, 3)
    assert place_of(x.mT) is None
