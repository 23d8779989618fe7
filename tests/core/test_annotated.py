"""Plain values become what annotations ask for, as the command line makes it of them."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import pytest
from jsonargparse import ArgumentParser

from fedlightning.core.annotated import as_annotated


class Act(Enum):
    relu = 1
    tanh = 2


class Place(NamedTuple):
    folder: Path
    depth: int = 0


@dataclass
class Head:
    width: int = 16
    act: Act = Act.relu


@dataclass
class Net:
    head: Head = field(default_factory=Head)
    heads: dict[str, Head] = field(default_factory=dict)


def takes(hint):
    def function(x):
        return x

    function.__annotations__ = {"x": hint}
    return function


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (Act, "tanh", Act.tanh),
        (Act | None, None, None),
        (Act | str, "tanh", Act.tanh),
        (Act | str, "other", "other"),
        (str | Act, "tanh", "tanh"),
        (Path, "/data", Path("/data")),
        (str | Path, "/data", "/data"),
        (Literal["auto"] | Path, "auto", "auto"),
        (Literal["auto"] | Path, "/data", Path("/data")),
        (tuple[int, int], [1, 2], (1, 2)),
        (tuple[Act, ...], ["tanh", "relu"], (Act.tanh, Act.relu)),
        (list[tuple[int, Act]], [[1, "relu"]], [(1, Act.relu)]),
        (Sequence[Path], ["a"], [Path("a")]),
        (list[int] | tuple[int, ...], [1], [1]),
        (set[int], [1, 1], {1}),
        (dict[str, Act], {"a": "tanh"}, {"a": Act.tanh}),
        (Head, {"width": 3, "act": "tanh"}, Head(3, Act.tanh)),
        (Head | None, {"width": 3}, Head(3)),
        (Net, {"head": {"act": "tanh"}, "heads": {"a": {"width": 2}}}, Net(Head(act=Act.tanh), {"a": Head(2)})),
        (list[Head], [{"width": 1}], [Head(1)]),
        (int | dict[str, float], {"width": 0.5}, {"width": 0.5}),
        (float, 1, 1),
    ],
)
def test_plain_values_become_what_the_command_line_makes_of_them(hint, value, expected):
    made = as_annotated(takes(hint), {"x": value})["x"]
    assert made == expected
    assert type(made) is type(expected)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_function_arguments(takes(hint), None)
    by_the_command_line = parser.instantiate_classes(parser.parse_object({"x": value}))["x"]
    assert by_the_command_line == expected


def test_named_tuples_and_objects():
    assert as_annotated(takes(Place), {"x": ["/data", 2]}) == {"x": Place(Path("/data"), 2)}
    given = Head(3)
    assert as_annotated(takes(Head), {"x": given})["x"] is given
    for hint in (Any, "no such name"):
        assert as_annotated(takes(hint), {"x": ["tanh"]}) == {"x": ["tanh"]}


def test_arguments_that_go_to_a_base_class_are_known():
    class Base:
        def __init__(self, act: Act = Act.relu, **others: Any) -> None:
            self.act = act

    class Derived(Base):
        def __init__(self, width: int, **others: Any) -> None:
            super().__init__(**others)

    assert as_annotated(Derived, {"width": 1, "act": "tanh"}) == {"width": 1, "act": Act.tanh}


class Wordy(str, Enum):
    wide = "w"


class Fields(TypedDict):
    width: int


class Named(Protocol):
    name: str


@dataclass
class Started:
    width: int = 1
    seed: InitVar[int] = 0


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (Any | None, "a", "a"),
        (Named | str | None, "a", "a"),
        (Fields | None, {"width": 1}, {"width": 1}),
        (Wordy, "w", Wordy.wide),  # as old checkpoints have it
        (Wordy | None, "w", Wordy.wide),
        (Started | None, {"width": 3, "seed": 2}, Started(3, 2)),
        (AbstractSet[int], [1, 1], {1}),
    ],
)
def test_unusual_annotations(hint, value, expected):
    assert as_annotated(takes(hint), {"x": value})["x"] == expected


def test_an_annotation_that_cannot_be_resolved_costs_no_other():
    def function(act: Act, other: NoSuchName | None = None):  # noqa: F821
        return act, other

    assert as_annotated(function, {"act": "tanh", "other": "a"}) == {"act": Act.tanh, "other": "a"}


def test_an_argument_that_a_class_names_itself_is_its_own():
    class Base:
        def __init__(self, act: Act, sizes: tuple[int, ...] = ()):
            self.act, self.sizes = act, sizes

    class Derived(Base):
        def __init__(self, act, sizes=()):
            super().__init__(Act[act[2:]], tuple(sizes))

    given = {"act": "x_tanh", "sizes": [1]}
    assert as_annotated(Derived, given) == given


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (Act | None, "sine", "x: Act has no 'sine'"),
        (Head | None, {"widht": 3}, "x: no Head can be made from"),
        (Place, ["/data", 2, 5], "x: Place has 2 entries, not 3"),
        (tuple[Act, int], ["tanh"], "x: expected 2 entries, not 1"),
        (Act, "sine", "x: Act has no 'sine', only relu, tanh"),
        (Head, {"widht": 3}, "x: no Head can be made from {'widht': 3}: .*widht"),
        (Place, [], r"x: no Place can be made from \[\]: .*folder"),
    ],
)
def test_values_that_do_not_fit_are_named(hint, value, message):
    with pytest.raises(ValueError, match=message):
        as_annotated(takes(hint), {"x": value})
