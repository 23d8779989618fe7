"""Identities of federations: what a checkpoint stores of its data, and how other data differ from that.

Client i of one federation is not client i of another. What client i of a checkpoint keeps may have been trained on what
are test samples of a different client now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from fedlightning.core.tree import flatten
from fedlightning.data.federation import Federation
from fedlightning.data.partition import Partition
from fedlightning.data.tensors import MixedTensorData, TensorData, in_memory

_CLIENTS_LOOKED_AT = 64
_RELATIVE_ERROR = 1e-3  # features computed on another machine differ in the last digits


def identity_of(federation: Federation, seed: int) -> dict[str, Any]:
    """Describe a federation in plain types: number of clients, digest of the partition, seed, some samples.

    The samples are the first ones of up to 64 clients, each summed up in a number; None if they are not tensors in
    memory. They tell data apart whose partitions are equal.
    """
    partition = federation.partition
    samples = _first_samples(federation.train, partition)
    return {"clients": len(partition), "partition": partition.digest, "seed": seed, "samples": samples}


def difference(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> str | None:
    """Describe how the current data differ from the data on which the client states were trained.

    Args:
        theirs: What is known of the data trained on, see :func:`identity_of`; older checkpoints lack some entries.
        mine: The current data.

    Returns:
        Both federations and what to do; None if they are the same, as far as known.
    """
    same_partition = all(theirs.get(name, mine[name]) == mine[name] for name in ("clients", "partition"))
    if same_partition and same_samples(theirs.get("samples"), mine["samples"]):
        return None
    seed = theirs.get("seed")
    same_seed = "" if seed == mine.get("seed") else f" and seed={seed} (command line: --seed_everything {seed})"
    other = " of other samples" if same_partition else ""
    return (
        f"What the clients keep was trained on {_described(theirs)}, the data are {_described(mine)}{other}. Give the "
        f"same data with the same options{same_seed}."
    )


def _described(identity: Mapping[str, Any]) -> str:
    clients, partition, seed = (identity.get(name) for name in ("clients", "partition", "seed"))
    return f"a federation of {clients} clients (partition {partition}, seed {seed})"


def _first_samples(dataset: Dataset[Any], partition: Partition) -> list[float] | None:
    """Return a number for the first sample of some evenly spread clients; None if samples are not in memory."""
    data = in_memory(dataset)
    if data is None:
        return None
    clients = range(0, len(partition), -(-len(partition) // _CLIENTS_LOOKED_AT))
    return [_weighted_sum(data, int(partition[client][0])) for client in clients if len(partition[client])]


def _weighted_sum(data: TensorData | MixedTensorData, position: int) -> float:
    """Return a weighted sum of all values of a sample, before any transform."""
    if isinstance(data, MixedTensorData):
        part = data.shape_of(position)
        return _weighted_sum(data.parts[part], position - int(data.offsets[part]))
    values = torch.cat([leaf[position].flatten().double().cpu() for leaf in flatten(data.tensors)[0]])
    return float(values @ torch.arange(1.0, len(values) + 1, dtype=torch.float64).cos())


def same_samples(theirs: Sequence[float] | None, mine: Sequence[float] | None) -> bool:
    """Return whether the samples are the same up to rounding; True if either are unknown."""
    if theirs is None or mine is None:
        return True
    if len(theirs) != len(mine):
        return False
    then, now = (torch.tensor(numbers, dtype=torch.float64) for numbers in (theirs, mine))
    scale = float(now.nan_to_num().abs().max()) if mine else 0.0
    return torch.allclose(then, now, rtol=0.0, atol=_RELATIVE_ERROR * scale, equal_nan=True)
