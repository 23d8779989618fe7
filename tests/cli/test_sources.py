"""Arguments and names are read from source files, or left open."""

from __future__ import annotations

import pytest

from fedlightning.cli import sources

MODULE = """
from dataclasses import dataclass
from fedlightning.tasks import Classification as Base
Second = Base

class Plain(Base):
    def __init__(self, depth: int = 3, **kwargs):
        super().__init__(**kwargs)

class Pops(Base):
    def __init__(self, **kwargs):
        kwargs.pop("secret", None)
        super().__init__(**kwargs)

class Nothing(Base):
    pass

class Anything:
    def __init__(self, *args):
        pass

@dataclass
class Pair:
    left: int
    right: int = 0

@some.decorator
class Decorated:
    def __init__(self, left): ...

if True:
    class Within: ...
"""


def test_arguments_are_read_or_left_open(tmp_path, monkeypatch):
    (tmp_path / "read_from_source.py").write_text(MODULE)
    (tmp_path / "open_ended.py").write_text("def __getattr__(name): ...\n")
    monkeypatch.syspath_prepend(tmp_path)

    def read(name):
        return sources.arguments(sources.find(f"read_from_source.{name}"))

    assert read("Plain")[:2] == ["depth", "algorithm"]
    assert {"network", "server_clip", "drift_parameters"} <= set(read("Plain"))
    assert read("Nothing") == read("Second") == read("Plain")[1:]
    assert read("Pair") == ["left", "right"]
    assert read("Pops") is read("Anything") is read("Decorated") is None
    assert sources.find("read_from_source.Within") is not None
    assert sources.find("open_ended.Whatever") is None
    assert sources.find("read_from_source.Plain.Inner") is None  # a class within a class: who knows
    for missing in ("read_from_source.Plane", "nowhere_at_all.Plain", "fedlightning.algoritms.FedAvg"):
        with pytest.raises(sources.NoSuchNameError):
            sources.find(missing)
