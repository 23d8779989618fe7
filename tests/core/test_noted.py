"""Fields that tell whether anything reads them are fields as all others are."""

from __future__ import annotations

import pickle
from copy import copy
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from fedlightning.core.noted import noted, notes_reads_of, reads_noted


@notes_reads_of("limit")
@dataclass(frozen=True)
class Steps:
    lr: float = 0.1
    limit: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Inherits(Steps):
    more: int = 3


@dataclass(frozen=True)
class Anew(Steps):
    limit: float | None = 2.0


@dataclass
class Slots:
    limit: float = 1.0


@pytest.mark.parametrize("kind", [Steps, Inherits])
def test_reads_are_noted(kind):
    steps = kind(limit=2.0)
    assert noted(steps) == ["limit"]
    with reads_noted(steps) as read:
        assert steps.lr == 0.1
    assert read == set()
    with reads_noted(steps) as read:
        assert steps.limit == 2.0
    assert read == {"limit"}


def test_those_of_a_copy_count_and_those_of_other_classes_do_not():
    steps, other = Steps(limit=2.0), Inherits(limit=3.0)
    with reads_noted(steps) as read:
        assert other.limit == 3.0
        with reads_noted(other) as inner:
            assert other.limit == 3.0
    assert (read, inner) == (set(), {"limit"})
    with reads_noted(steps) as read:
        assert copy(steps).limit == 2.0
    assert read == {"limit"}


def test_they_are_noted_where_an_error_ends_the_block():
    steps = Steps()
    with pytest.raises(KeyError), reads_noted(steps) as read:
        raise KeyError(steps.limit)
    assert read == {"limit"}


def test_a_subclass_may_declare_the_field_anew():
    assert noted(Anew()) == noted(Slots()) == []
    assert (Anew().limit, Anew(limit=1.0).limit) == (2.0, 1.0)


def test_the_field_is_as_any_other():
    steps = Inherits(limit=2.0)
    assert Inherits().limit is Inherits.limit is None
    assert {each.name: each.default for each in fields(steps)} == {"lr": 0.1, "limit": None, "more": 3}
    assert repr(steps) == "Inherits(lr=0.1, limit=2.0, more=3)"
    assert steps == pickle.loads(pickle.dumps(steps)) == replace(Inherits(), limit=2.0)
    with pytest.raises(FrozenInstanceError):
        steps.limit = 1.0
