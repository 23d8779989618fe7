"""What is understood of jsonargparse's messages, each provoked with the installed version."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

import jsonargparse
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from fedlightning.cli.wording import Subject, allows_none, deepest_complaints, remedy

HERE = __name__


class Part:
    def __init__(self, size: float = 1.0, widths: Sequence[int] = (1,), either: int | list[int] = 1): ...


class Whole:
    def __init__(self, count: int, part: Part | None = None, mode: Literal["first", "last"] = "first"): ...


@dataclass
class Size:
    width: int = 1


class Sized:
    def __init__(self, size: Size = Size()): ...  # noqa: B008


class Factory:
    def __init__(self, make: Callable[[int], Part] | None = None): ...


class Abstract(Part, ABC):
    @abstractmethod
    def shape(self): ...


class Parser(jsonargparse.ArgumentParser):
    """Keeps its message instead of ending the process."""

    message = ""

    def error(self, message, ex=None):
        if not self.exit_on_error:  # parsers of classes within leave it to the outermost
            super().error(message, ex)
        self.message = message
        raise SystemExit(2)


def said(*arguments, of=Whole):
    """The message of a parser for a whole and its part."""
    parser = Parser()
    parser.add_subclass_arguments(of, "model", required=True)
    with pytest.raises(SystemExit):
        parser.parse_args(arguments)
    return parser.message


def in_whole(*arguments):
    return said(f"--model={HERE}.Whole", *(f"--model.init_args.{argument}" for argument in arguments))


def in_part(*arguments):
    return in_whole("count=1", f"part={HERE}.Part", *(f"part.init_args.{argument}" for argument in arguments))


def of_a_subcommand():
    within, parser = Parser(), Parser()
    within.add_argument("--steps", type=int)
    parser.add_subcommands().add_subcommand("fit", within)
    with pytest.raises(SystemExit):
        parser.parse_object({"subcommand": "fit", "fit": {"stesp": 1}})
    return parser.message


WHOLE, PART = "model.init_args", "model.init_args.part.init_args"
MESSAGES = {
    "unknown argument": (
        lambda: in_whole("count=1", "cuont=2"),
        (Subject.UNKNOWN_ARGUMENT, ("cuont",), WHOLE, f"{HERE}.Whole", "2"),
    ),
    "unknown argument of a part": (
        lambda: in_part("szie=2"),
        (Subject.UNKNOWN_ARGUMENT, ("szie",), PART, f"{HERE}.Part", "2"),
    ),
    "unknown argument of a subcommand": (of_a_subcommand, (Subject.UNKNOWN_ARGUMENT, ("stesp",), "", None, None)),
    "unknown option": (lambda: said("--modle=1"), (Subject.UNKNOWN_OPTION, ("--modle=1",), "", None, None)),
    "missing class": (
        lambda: said(f"--model={HERE}.Whloe"),
        (Subject.MISSING_CLASS, (HERE, "Whloe"), WHOLE, f"{HERE}.Whloe", f"{HERE}.Whloe"),
    ),
    "class without a module": (
        lambda: said("--model=Whloe"),
        (Subject.UNDOTTED_CLASS, ("Whloe",), "model", None, "Whloe"),
    ),
    "unknown field": (
        lambda: said(f"--model={HERE}.Sized", "--model.init_args.size={widht: 3}", of=Sized),
        (Subject.UNKNOWN_FIELD, ("size", "widht"), "model.init_args", f"{HERE}.Sized", None),
    ),
    "missing module": (
        lambda: said("--model=nowhere_at_all.Whole"),
        (Subject.MISSING_MODULE, ("nowhere_at_all",), WHOLE, "nowhere_at_all.Whole", "nowhere_at_all.Whole"),
    ),
    "class of another kind": (
        lambda: in_whole("count=1", f"part={HERE}.Parser"),
        (Subject.WRONG_KIND, ("Part",), f"{WHOLE}.part", f"{HERE}.Whole", f"{HERE}.Parser"),
    ),
    "class of another kind at the top": (
        lambda: said(f"--model={HERE}.Part"),
        (Subject.WRONG_KIND, ("Whole",), "model", None, f"{HERE}.Part"),
    ),
    "class that makes something of another kind": (
        lambda: said(f"--model={HERE}.Factory", f"--model.init_args.make={HERE}.Parser", of=Factory),
        (Subject.WRONG_KIND, ("Part",), f"{WHOLE}.make", f"{HERE}.Factory", f"{HERE}.Parser"),
    ),
    "abstract class": (
        lambda: in_whole("count=1", f"part={HERE}.Abstract"),
        (Subject.ABSTRACT_CLASS, ("",), f"{WHOLE}.part", f"{HERE}.Whole", f"{HERE}.Abstract"),
    ),
    "required argument": (
        lambda: said(f"--model={HERE}.Whole"),
        (Subject.REQUIRED, ("count",), WHOLE, f"{HERE}.Whole", None),
    ),
    "required option": (lambda: said(), (Subject.REQUIRED, ("model",), "", None, None)),
    "choice": (
        lambda: in_whole("count=1", "mode=frist"),
        (Subject.CHOICE, ("'first', 'last'",), f"{WHOLE}.mode", f"{HERE}.Whole", "frist"),
    ),
    "type": (
        lambda: in_part("size=large"),
        (Subject.TYPE, ("float",), f"{PART}.size", f"{HERE}.Part", "large"),
    ),
    "sequence": (
        lambda: in_part("widths=3"),
        (Subject.TYPE, ("Sequence",), f"{PART}.widths", f"{HERE}.Part", "3"),
    ),
    "one type of several": (
        lambda: in_part("either=many"),
        (Subject.TYPE, ("int",), f"{PART}.either", f"{HERE}.Part", "many"),
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_a_message_is_understood(case):
    provoke, expected = MESSAGES[case]
    message = provoke()
    first, *_ = deepest_complaints(message)
    understood = (first.subject, first.details, first.key, first.owner, first.given)
    assert understood == expected, (
        f"jsonargparse {version('jsonargparse')} words '{case}' in another way. Mend fedlightning/cli/wording.py.\n"
        f"It says:\n{message}"
    )


def test_all_subjects_are_provoked():
    assert {subject for _, (subject, *_) in MESSAGES.values()} == set(Subject) - {Subject.OTHER}


def test_members_of_a_union_are_complaints_of_their_own():
    found = deepest_complaints(in_part("either=many"))
    assert [each.details for each in found] == [("int",), ("list",)]


def test_null_is_known_to_be_allowed():
    for message, allowed in ((in_whole("count=1", "part=3"), True), (in_whole("count=many"), False)):
        first, *_ = deepest_complaints(message)
        assert allows_none(message, first) is allowed


@pytest.mark.parametrize("message", ["Something new", 'Parser key "a":\n  Something new'])
def test_what_is_not_understood_is_left_as_it_is(message):
    (only,) = deepest_complaints(message)
    assert (only.subject, only.details, only.text) == (Subject.OTHER, (), "Something new")


def test_an_empty_message_complains_of_nothing():
    assert deepest_complaints("") == []


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"accelerator": "cpu", "devices": -1}, "--trainer.devices=auto or 1"),
        ({"accelerator": "gpu"}, "--trainer.accelerator=auto or cpu"),
        ({"accelerator": "cuda"}, "--trainer.accelerator=auto or cpu"),
        ({"accelerator": "tpu"}, "--trainer.accelerator=auto or cpu"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="the accelerators must be missing")
def test_what_lightning_says_of_devices_has_a_remedy(options, advice):
    with pytest.raises(Exception) as caught:  # noqa: PT011  # of several classes
        Trainer(**options, logger=False)
    assert advice in remedy(str(caught.value))
    assert remedy("no Trainer") == ""


def test_the_message_about_a_missing_tensorboard_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr("lightning.fabric.loggers.tensorboard._TENSORBOARD_AVAILABLE", False)
    monkeypatch.setattr("lightning.fabric.loggers.tensorboard._TENSORBOARDX_AVAILABLE", False)
    with pytest.raises(ModuleNotFoundError) as caught:
        TensorBoardLogger(tmp_path)
    assert "fedlightning[tensorboard]" in remedy(str(caught.value))
