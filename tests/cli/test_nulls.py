"""Null is refused where a class takes a number or a text, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from jsonargparse import ArgumentParser

from fedlightning.cli.nulls import refuse_nulls


@dataclass
class Size:
    width: int = 1
    depth: int | None = 1


class Whole:
    def __init__(
        self,
        width: int = 3,
        depth: int | None = 1,
        kind: str = "a",
        on: bool = True,
        size: Size = Size(),  # noqa: B008
        rate: float = None,  # noqa: RUF013  # as users write it
    ):
        self.settings = width, depth, kind, on, size, rate


class Derived(Whole):
    def __init__(self, height: int = 2, **others):
        super().__init__(**others)


def parsed(*given):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Whole, "model")
    return parser.parse_args([f"--model={__name__}.Derived", *given])


@pytest.mark.parametrize(
    ("name", "expected"), [("height", "int"), ("width", "int"), ("kind", "str"), ("on", "true or false")]
)
def test_null_in_place_of_a_plain_value_is_refused(name, expected):
    with pytest.raises(TypeError, match=rf"model\.init_args\.{name}=null: expected {expected}\."):
        refuse_nulls(parsed(f"--model.{name}=null"))


def test_null_in_a_field_of_a_dataclass_is_refused():
    with pytest.raises(TypeError, match=r"model\.init_args\.size\.width=null: expected int\."):
        refuse_nulls(parsed("--model.size={width: null}"))
    refuse_nulls(parsed("--model.size={depth: null}"))


def test_null_where_it_is_a_value_passes():
    refuse_nulls(parsed("--model.depth=null", "--model.rate=null"))
    refuse_nulls(parsed())
