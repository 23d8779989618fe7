"""Lines of a program and their statements."""

from __future__ import annotations

import torch

from fedlightning.oracle.recording.lines import Line, body_of, made_by, place_of, without_views_of


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


def test_only_tensors_in_the_usual_order_have_a_place():
    x = torch.arange(6.0).view(2, 3)
    assert place_of(x[1]) == (x.data_ptr() + 12, 3)
    assert place_of(x.mT) is None
