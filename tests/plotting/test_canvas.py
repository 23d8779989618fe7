"""Empty figures."""

from __future__ import annotations

from fedlightning.plotting.canvas import empty_figure


def test_a_figure_has_its_size_and_nothing_in_it():
    figure = empty_figure(3.0, 2.0)
    assert figure.get_size_inches().tolist() == [3.0, 2.0]
    assert figure.axes == []
