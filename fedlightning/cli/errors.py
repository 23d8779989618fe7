"""The choice of errors that are meant for the user, and how they are shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from linecache import getline
from traceback import walk_tb
from types import FrameType
from typing import Any

from fedlightning.core.errors import FedlightningError

TRACEBACKS = "FEDLIGHTNING_DEBUG"
"""Environment variable: set to anything, all errors keep their tracebacks."""


_HINT = f"{TRACEBACKS}=1 shows the whole traceback."

_STEPS = ("objective", "validation_step", "test_step", "predict_step", "predictions", "evaluate")
_SHAPES_MATTER_IN = ("torch", "torchmetrics", "torchvision")


@contextmanager
def plain_refusals() -> Iterator[None]:
    """End the process with one sentence for errors that the user can fix; keep the traceback of all others.

    Raises:
        SystemExit: For errors of this package, for Lightning's about its arguments, and where a network and a batch
            do not fit each other.
    """
    try:
        yield
    except Exception as error:
        sentence = None if os.environ.get(TRACEBACKS) else _sentence(error)
        if sentence is None:
            raise
        sys.exit(f"fedlightning: {sentence}")


def is_refusal(error: BaseException) -> bool:
    """Return True for errors meant for the user: this package's own, and Lightning's about its arguments."""
    lightning = sys.modules.get("lightning.fabric.utilities.exceptions")
    if lightning is not None and isinstance(error, lightning.MisconfigurationException):
        return True
    return isinstance(error, FedlightningError)


def comes_from(error: BaseException, package: str) -> bool:
    """Return True if the code that an error stopped, the innermost in its traceback, is the package's."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and _package_of(frames[-1]) == package


def _sentence(error: BaseException) -> str | None:
    """Return the message that replaces the traceback; None if the traceback is needed."""
    if not is_refusal(error):
        misfit = _misfit(error)
        if misfit is None:
            return None
        return f"{misfit.step}: {str(error).splitlines()[0].rstrip('.')}{misfit.facts}"
    cause = error.__cause__
    if cause is None or isinstance(cause, SystemExit):  # a parser's, whose complaint is the message
        return str(error)
    if is_refusal(cause):  # met inside an objective
        return str(error)
    misfit = _misfit(cause)
    if misfit is not None:
        return f"{str(error).splitlines()[0].rstrip('.')}{misfit.facts}"
    where = _own_line(cause)
    return str(error) if where is None else f"{error}\n{where}"


def _own_line(error: BaseException) -> str | None:
    """Return the last line of code outside this package and outside libraries."""
    frames = [(frame, line) for frame, line in walk_tb(error.__traceback__) if is_users(frame)]
    if not frames:
        return None
    frame, line = frames[-1]
    code = frame.f_code
    return f"In {code.co_name} ({code.co_filename}, line {line}): {getline(code.co_filename, line).strip()}\n{_HINT}"


def is_users(frame: FrameType) -> bool:
    """Return whether a frame runs code of the user's: none of this package, of a library, or of Python's own."""
    if _package_of(frame) in ("fedlightning", *sys.stdlib_module_names):
        return False
    return not {"site-packages", "dist-packages"} & set(frame.f_code.co_filename.split(os.sep))


@dataclass(frozen=True)
class _Misfit:
    """Describes where a batch does not fit a network.

    Attributes:
        step: Task and method.
        facts: Layer, shapes and remedy.
    """

    step: str
    facts: str


def _misfit(error: BaseException) -> _Misfit | None:
    """Return the task's step in which torch reports wrong shapes or values; None for any other error."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    others = [frame for frame in frames if _package_of(frame) != "fedlightning"]  # ours see every call of torch's
    if not others or not isinstance(error, RuntimeError | IndexError | ValueError):
        return None
    step = next((frame for frame in frames if frame.f_code.co_name in _STEPS and _task_of(frame) is not None), None)
    if step is None or _package_of(others[-1]) not in _SHAPES_MATTER_IN or "memory" in str(error):
        return None
    task = _task_of(step)
    batch = step.f_locals.get(step.f_code.co_varnames[1])
    layer = next((found for frame in reversed(frames) if (found := _layer(task, frame))), "")
    return _Misfit(
        f"{type(task).__name__}.{step.f_code.co_name}",
        f"{layer}. The batch has shapes {', '.join(_shapes(batch)) or 'unknown'}. Choose a network that fits the data, "
        f"inputs and outputs alike, or other data. {_HINT}",
    )


def _task_of(frame: FrameType) -> Any:
    """Return the task whose method a frame runs; None for any other function."""
    owner = frame.f_locals.get("self")
    lightning = sys.modules.get("lightning.pytorch")
    return owner if lightning is not None and isinstance(owner, lightning.LightningModule) else None


def _layer(task: Any, frame: FrameType) -> str:
    """Return the name and form of the task's layer whose ``forward`` a frame runs."""
    layer: Any = frame.f_locals.get("self")
    name = next((name for name, module in task.named_modules() if name and module is layer), None)
    return "" if name is None or any(True for _ in layer.children()) else f" in {name} = {layer}"


def _shapes(batch: Any) -> list[str]:
    if hasattr(batch, "shape"):
        return [str(list(batch.shape))]
    inner = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return [shape for part in inner for shape in _shapes(part)]


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
