"""The random generators that Python and NumPy keep for everybody."""

from __future__ import annotations

import ctypes
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_BYTES = 4 * 624 + 4
"""Memory of a Mersenne Twister in NumPy: its words, and the place of the next one."""


@dataclass(frozen=True)
class PythonState:
    """Holds the states of ``random`` and of NumPy's global generator; states are equal if the same numbers follow.

    Attributes:
        of_random: State of ``random``.
        of_numpy: What tells NumPy's state from others.
        whole: NumPy's state as NumPy gives it.
    """

    of_random: Any
    of_numpy: Any
    whole: dict[str, Any] = field(compare=False)


class _NumPyState:
    """Reads the state of NumPy's global generator, as a whole, which takes 24 µs, only where its memory has changed.

    A second normal number that waits lies outside that memory. One that a ``set_state`` alone has put there since the
    last reading is not seen.
    """

    def __init__(self) -> None:
        self._memory = b""
        self._whole: dict[str, Any] = {}

    def forget(self) -> None:
        self._memory = b""

    def read(self) -> tuple[Any, dict[str, Any]]:
        generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
        if type(generator) is not np.random.MT19937:  # somebody has set another one
            whole = np.random.get_state(legacy=False)
            return pickle.dumps(whole), whole
        memory = ctypes.string_at(generator.ctypes.state_address, _BYTES)
        if memory != self._memory or self._whole["has_gauss"]:  # the one that waited may be used up
            self._memory, self._whole = memory, np.random.get_state(legacy=False)
        return (memory, self._whole["has_gauss"], self._whole["gauss"]), self._whole


_numpy_state = _NumPyState()


def seed_python(seed: int) -> None:
    """Seed ``random`` and NumPy, for objectives that draw from them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def python_state() -> PythonState:
    """Return the present states; all that happens to them below :func:`python_generators_restored` is seen."""
    return PythonState(random.getstate(), *_numpy_state.read())


def restore_python_state(state: PythonState) -> None:
    """Put the generators back to what :func:`python_state` returned."""
    random.setstate(state.of_random)
    if _numpy_state.read()[0] != state.of_numpy:
        np.random.set_state(state.whole)
        _numpy_state.forget()


@contextmanager
def python_generators_restored() -> Iterator[None]:
    """Restore the generators' states when the context ends."""
    _numpy_state.forget()  # others may have put a second normal number back
    state = python_state()
    try:
        yield
    finally:
        restore_python_state(state)
