"""Precomputed features of several modalities, a file a subject."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlightning.data.partition import ByGroup, Partitioner
from fedlightning.data.personal import PersonalData
from fedlightning.data.tensors import TensorData


class SubjectFeatures(PersonalData):
    """A folder of ``.npz`` files, one a subject (speaker, participant), clients in the order of the file names.

    A file holds ``label [n]``, integers from 0, and one array ``[n, ...]`` a modality, whose samples have one shape in
    all files (pad sequences to one length). So KU-HAR's recordings (``acc``, ``gyro``), Crema-D's (``audio``,
    ``video``) and CrisisMMD's (``image``, ``text``) can be laid out. A sample is ({modality: features}, label).
    """

    def __init__(
        self, root: str, modalities: Sequence[str], partitioner: Partitioner | None = None, **options: Any
    ) -> None:
        """Name the folder.

        Args:
            root: The folder.
            modalities: Names of the arrays to read.
            partitioner: Splits the samples by label instead; null for one client a file.
            options: Arguments of :class:`PersonalData` and :class:`FederatedDataModule`.
        """
        super().__init__(ByGroup() if partitioner is None else partitioner, **options)
        self.root = root
        self.modalities = tuple(modalities)
        self._by_subject = partitioner is None

    def samples(self) -> tuple[TensorData, Tensor]:
        """Features and labels, and subjects or labels.

        Raises:
            FileNotFoundError: If the folder holds no ``.npz`` file.
            ValueError: If a file lacks an array, or its arrays differ in length.
        """
        files = sorted(Path(self.root).glob("*.npz"))
        if not files:
            raise FileNotFoundError(f"root={self.root!r}: no .npz files there. Expected one a subject.")
        parts = [self._read(file) for file in files]
        features = {name: torch.cat([part[name] for part in parts]) for name in self.modalities}
        labels = torch.cat([part["label"] for part in parts])
        subject = torch.arange(len(parts)).repeat_interleave(torch.tensor([len(part["label"]) for part in parts]))
        return TensorData((features, labels)), subject if self._by_subject else labels

    def _read(self, file: Path) -> dict[str, Tensor]:
        with np.load(file) as arrays:
            if missing := [name for name in ("label", *self.modalities) if name not in arrays]:
                raise ValueError(f"{file} has no array '{missing[0]}'. It holds: {', '.join(arrays.files)}.")
            part = {name: torch.from_numpy(arrays[name].astype(np.float32)) for name in self.modalities}
            part["label"] = torch.from_numpy(arrays["label"].astype(np.int64))
        lengths = {name: len(array) for name, array in part.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{file}: arrays of unequal length {lengths}. Expected one entry a sample in each.")
        return part
