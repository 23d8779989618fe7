"""The short text that a federated data module prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningDataModule

from fedlightning.core.validation import spoken_name
from fedlightning.data.federation import Federation

Sizes = Sequence[int] | int
"""Numbers of samples, of each client or of data that are nobody's."""


class Described(LightningDataModule):
    """Prints clients, samples and settings in one line, without building data sets that are not built yet."""

    _federation: Federation | None

    def _known_sizes(self) -> Mapping[str, Sizes] | None:
        """Return the numbers of samples of each part that has data, by name; None if they are not known yet."""
        federation = self._federation
        if federation is None:
            return None
        parts: dict[str, tuple[Any, Any]] = {
            "train": (federation.train, federation.partition),
            "val": (federation.val, federation.val_partition),
            "test": (federation.test, federation.test_partition),
            "predict": (federation.predict, None),
        }
        return {
            name: len(dataset) if partition is None else partition.sizes.tolist()
            for name, (dataset, partition) in parts.items()
            if dataset is not None
        }

    def __str__(self) -> str:
        """Return clients, samples and settings in one line."""
        length = "local_epochs" if getattr(self, "local_steps", None) is None else "local_steps"
        names = ("batch_size", length, "participation", "rounds_per_epoch", "seed")
        settings = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{spoken_name(self)}({settings}){_described(self._known_sizes())}"

    __repr__ = __str__


def _described(sizes: Mapping[str, Sizes] | None) -> str:
    if sizes is None:
        return ", its data not built yet"
    train: Any = sizes["train"]
    parts = ", ".join(f"{part} {_spoken(of)}" for part, of in sizes.items())
    return f": {len(train)} client{'s' * (len(train) != 1)}; {parts}"


def _spoken(sizes: Sizes) -> str:
    """Return a number of samples in words, and its range over clients."""
    if isinstance(sizes, int):
        return f"{sizes} samples"
    least, most = min(sizes), max(sizes)
    each = f"{least}" if least == most else f"{least} to {most}"
    return f"{sum(sizes)} samples ({each} a client)"
