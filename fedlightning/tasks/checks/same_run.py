"""A check that all processes of a fit were given the same algorithm, the same options and the same data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedlightning.core.errors import UsageError
from fedlightning.data.identity import same_samples
from fedlightning.data.module import FederatedDataModule
from fedlightning.federation.processes import Processes

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule

_SAMPLES = "first samples of the clients"
_NAMES = {"clients": "number of clients", "partition": "partition of the samples", "samples": _SAMPLES}
_OF_DATA = ("participation", "batch_size", "local_steps", "local_epochs", "rounds_per_epoch")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def require_same_run(task: FederatedLightningModule, data: Any, processes: Processes) -> None:
    """Make sure that processes that share clients have the same clients, algorithm and options.

    Each runs the user's script by itself, and a split that is drawn without a seed is another one in each.

    Args:
        task: The task as this process has it.
        data: Its data module.
        processes: All processes; every one must call this.

    Raises:
        UsageError: In all processes, if one differs.
    """
    if processes.count == 1:
        return
    found = processes.collect(described(task, data))
    for rank, theirs in enumerate(found):
        for name, value in found[0].items():
            if not _are_alike(name, value, theirs.get(name)):
                raise UsageError(
                    f"{name}: process 0 has {_short(value)}, process {rank} {_short(theirs.get(name))}. Every process "
                    "runs the script by itself: make task and data the same in all, and seed what is drawn "
                    "(lightning.seed_everything, or a generator with a seed)."
                )


def described(task: FederatedLightningModule, data: Any) -> dict[str, Any]:
    """Describe what decides a run, by name; oracles are compared when one is chosen."""
    options = task.federation_options
    known: dict[str, Any] = {"algorithm": task.algorithm}
    known |= {each.name: getattr(options, each.name) for each in fields(options) if each.name != "oracle"}
    found: dict[str, Any] = {}
    if isinstance(data, FederatedDataModule):
        found = {_NAMES.get(name, name): value for name, value in data.identity.items()}
        known |= {name: getattr(data, name) for name in _OF_DATA}
    return {**found, **{name: text for key, value in known.items() for name, text in _texts(key, value)}}


def _texts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield a text for each field of a value, by its dotted name, the same in every process."""
    if is_dataclass(value) and not isinstance(value, type):
        yield name, type(value).__name__
        for each in fields(value):
            yield from _texts(f"{name}.{each.name}", getattr(value, each.name))
    elif isinstance(value, Mapping):
        yield name, str([*value])
        for key, each in value.items():
            yield from _texts(f"{name}[{key!r}]", each)
    elif isinstance(value, set | frozenset):  # in another order in every process
        yield name, str(sorted(map(repr, value)))
    elif isinstance(value, Tensor):
        yield name, repr(value.detach().cpu())
    else:
        yield name, _ADDRESS.sub("", repr(value))


def _are_alike(name: str, one: Any, other: Any) -> bool:
    """Return whether two processes have the same, samples up to the rounding of different machines."""
    return same_samples(one, other) if name == _SAMPLES else bool(one == other)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
