"""Precomputed features of several modalities, a file a subject."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedlightning.core.errors import InvalidValueError, MissingFileError
from fedlightning.data.partitioners import ByGroup, Partitioner
from fedlightning.data.personal import PersonalData
from fedlightning.data.tensors import TensorData


class _Features(PersonalData):
    """Joins the features and labels of all subjects (base class); a sample is ({modality: features}, label)."""

    def __init__(self, root: str, partitioner: Partitioner | None, classes: int | None, **options: Any) -> None:
        super().__init__(ByGroup() if partitioner is None else partitioner, **options)
        self.root = root
        self.classes = classes
        self._by_subject = partitioner is None

    @abstractmethod
    def subjects(self) -> list[tuple[dict[str, Tensor], Tensor]]:
        """Return features by modality, ``[n, ...]`` each, and labels ``[n]`` of every subject."""

    def samples(self) -> tuple[TensorData, Tensor]:
        """Return features and labels, and the column to partition by: subjects or labels."""
        parts = self.subjects()
        features = {name: torch.cat([part[name] for part, _ in parts]) for name in parts[0][0]}
        labels = torch.cat([own for _, own in parts])
        subject = torch.arange(len(parts)).repeat_interleave(torch.tensor([len(own) for _, own in parts]))
        return TensorData((features, labels)), subject if self._by_subject else labels


class SubjectFeatures(_Features):
    """Reads a folder of ``.npz`` files, one per subject; clients are in the order of the file names.

    A file holds ``label [n]``, integers from 0, and one array ``[n, ...]`` a modality, whose samples have one shape in
    all files. Sequences have to be padded to one length; networks take the padding for data, see
    :class:`FedMultimodal`. A sample is ({modality: features}, label).
    """

    def __init__(
        self,
        root: str,
        modalities: Sequence[str],
        partitioner: Partitioner | None = None,
        classes: int | None = None,
        **options: Any,
    ) -> None:
        """Set the folder, the modalities and the partitioner.

        Args:
            root: The folder.
            modalities: Names of the arrays to read.
            partitioner: Splits the samples by label instead; null for one client a file.
            classes: Number C of classes, for ``class_counts``; null for one more than the largest label.
            options: Arguments of :class:`PersonalData` and :class:`FederatedDataModule`.
        """
        super().__init__(root, partitioner, classes, **options)
        self.modalities = tuple(modalities)

    def subjects(self) -> list[tuple[dict[str, Tensor], Tensor]]:
        """Read the features and labels of every subject.

        Raises:
            FileNotFoundError: If the folder holds no ``.npz`` file.
            ValueError: If a file lacks an array, or its arrays differ in length.
        """
        files = sorted(Path(self.root).glob("*.npz"))
        if not files:
            raise MissingFileError(f"root={self.root!r}: no .npz files there. Expected one a subject.")
        return [self._read(file) for file in files]

    def _read(self, file: Path) -> tuple[dict[str, Tensor], Tensor]:
        with np.load(file) as arrays:
            if missing := [name for name in ("label", *self.modalities) if name not in arrays]:
                raise InvalidValueError(f"{file} has no array '{missing[0]}'. It holds: {', '.join(arrays.files)}.")
            features = {name: torch.from_numpy(arrays[name].astype(np.float32)) for name in self.modalities}
            label = torch.from_numpy(arrays["label"].astype(np.int64))
        lengths = {"label": len(label)} | {name: len(array) for name, array in features.items()}
        if len(set(lengths.values())) > 1:
            raise InvalidValueError(f"{file}: arrays of unequal length {lengths}. Expected one entry a sample in each.")
        return features, label


class FedMultimodal(_Features):
    """Reads features written by FedMultimodal (Feng et al., KDD 2023): KU-HAR, Crema-D, CrisisMMD and others.

    For every modality a folder with a pickle ``<client>.pkl`` a client, in it a list with an entry a sample, whose last
    item is the features ``[T, F]`` and whose last but one is the label. The clients are those of all the folders; the
    benchmark's common ``dev.pkl`` and ``test.pkl`` are left alone, as every client here has validation and test samples
    of its own. Pickles can run code when they are read: anything but NumPy's arrays and plain values is refused.

    Sequences are padded with zeros to the longest of all clients, modality by modality; features of one step for every
    sample lose that axis. Lengths are not kept and no mask goes to the network: to convolutions, recurrent layers and
    attention, those of :mod:`fedlightning.models` among them, the zeros are steps like any other. Recurrent layers run
    on over them, attention gives them weight, and how many a sample has depends on the longest sequence anywhere.
    """

    def __init__(
        self,
        root: str,
        modalities: Mapping[str, str],
        partitioner: Partitioner | None = None,
        min_samples: int = 10,
        classes: int | None = None,
        **options: Any,
    ) -> None:
        """Set the folders, the modalities and the partitioner.

        Args:
            root: The benchmark's ``feature`` folder.
            modalities: Folder of every modality below ``root``, e.g. ``{acc: acc/ku-har/fold1, gyro:
                gyro/ku-har/fold1}``, ``{audio: audio/mfcc/crema_d/fold1, video: video/mobilenet_v2/crema_d/fold1}`` or
                ``{image: img/mobilenet_v2/crisis-mmd/alpha50, text: text/mobilebert/crisis-mmd/alpha50}``.
            partitioner: Splits the samples of all files by label instead; null for one client a file.
            min_samples: Files with fewer samples are left out; with a partitioner none are.
            classes: Number C of classes, for ``class_counts``; null for one more than the largest label.
            options: Arguments of :class:`PersonalData` and :class:`FederatedDataModule`.
        """
        super().__init__(root, partitioner, classes, **options)
        self.modalities = dict(modalities)
        self.min_samples = min_samples

    def subjects(self) -> list[tuple[dict[str, Tensor], Tensor]]:
        """Read the features and labels of every client from the pickles.

        Raises:
            FileNotFoundError: If no client has a file in every folder.
            ValueError: If a client's modalities differ in their labels, or a pickle holds more than arrays.
        """
        folders = {name: Path(self.root) / folder for name, folder in self.modalities.items()}
        clients = set.intersection(*({file.stem for file in folder.glob("*.pkl")} for folder in folders.values()))
        clients -= {"dev", "test"}
        read = {name: [_unpickle(folder / f"{c}.pkl") for c in sorted(clients)] for name, folder in folders.items()}
        fewest = self.min_samples if self._by_subject else 1
        kept = [i for i, entries in enumerate(next(iter(read.values()))) if len(entries) >= fewest]
        if not kept:
            wanted = f"{fewest} samples (min_samples)" if self._by_subject else "samples"
            raise MissingFileError(
                f"No client has {wanted} in every one of {', '.join(map(str, folders.values()))}: expected a file "
                "<client>.pkl in each."
            )
        labels = [[int(entry[-2]) for entry in next(iter(read.values()))[i]] for i in kept]
        features = {}
        for name, entries in read.items():
            if [[int(entry[-2]) for entry in entries[i]] for i in kept] != labels:
                raise InvalidValueError(f"{folders[name]}: labels differ from those in {next(iter(folders.values()))}.")
            features[name] = _padded([entry[-1] for i in kept for entry in entries[i]])
        sizes = [len(own) for own in labels]
        split = {name: joined.split(sizes) for name, joined in features.items()}
        return [({name: split[name][i] for name in split}, torch.tensor(own)) for i, own in enumerate(labels)]


def _padded(arrays: list[np.ndarray]) -> Tensor:
    """Return ``[n, T, F]`` with zeros after the end, or ``[n, F]`` if every sample has one step."""
    joined = pad_sequence(
        [torch.from_numpy(np.asarray(a, np.float32).reshape(-1, a.shape[-1])) for a in arrays], batch_first=True
    )
    return joined.squeeze(1)


_HARMLESS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
}


class _ArraysOnly(pickle.Unpickler):
    """Unpickles NumPy arrays and plain values, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _HARMLESS:
            raise InvalidValueError(
                f"it holds {module}.{name}; only NumPy's arrays, numbers, strings and lists are read"
            )
        return super().find_class(module, name)


def _unpickle(file: Path) -> Any:
    with file.open("rb") as stream:
        try:
            return _ArraysOnly(stream).load()
        except ValueError as error:
            raise InvalidValueError(f"{file} was not read: {error}.") from error
