"""Importing Lightning in less time, for which nothing of it is changed.

Lightning imports torch's compiler, and torchmetrics, which imports torchvision and scipy.signal. A subcommand's help
shows nothing of these and ends the process, so empty modules stand in for them meanwhile.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NOT_SHOWN = ("torch._dynamo", "torchvision", "scipy.signal")


@contextmanager
def without_collection() -> Iterator[None]:
    """Look for no garbage meanwhile: imports make a million objects, which stay, and leave none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def stand_ins(names: Sequence[str] = NOT_SHOWN) -> Iterator[None]:
    """Let empty modules stand in for others, unless these are imported already.

    Afterwards they are gone, so that whoever imports one of these modules then gets the real one.

    Args:
        names: Of the modules, by default those that a subcommand's help does not show.
    """
    finder = _Finder([name for name in names if name not in sys.modules])
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if isinstance(module, _StandIn):
                del sys.modules[name]
                parent, _, child = name.rpartition(".")
                if parent in sys.modules:
                    vars(sys.modules[parent]).pop(child, None)


class _StandIn(ModuleType):
    """Has an empty class under every name, whose objects are made of any arguments."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return type(name, (), {"__init__": lambda self, *args, **kwargs: None})


class _Finder(MetaPathFinder, Loader):
    """Finds stand-ins for some modules and all modules within them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if any(fullname == name or fullname.startswith(f"{name}.") for name in self._names):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty."""
