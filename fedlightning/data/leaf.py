"""Data in the JSON layout of LEAF (Caldas et al., 2018), one client a writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from fedlightning.core.errors import InvalidValueError, MissingFileError
from fedlightning.core.validation import require_instance
from fedlightning.data.federation import Federation
from fedlightning.data.module import FederatedDataModule
from fedlightning.data.partitioners import ByGroup, Partitioner
from fedlightning.data.tensors import TensorData

Samples = dict[str, tuple[list[Any], list[int]]]


class FEMNIST(FederatedDataModule):
    """Distributes Federated EMNIST by writer: 28 x 28 images of handwritten characters, 62 classes."""

    def __init__(
        self, root: str, num_clients: int | None = None, partitioner: Partitioner | None = None, **options: Any
    ) -> None:
        """Set the folder, the number of writers, and who holds which writers.

        Args:
            root: Folder as LEAF's preprocessing writes it: ``train/*.json`` and ``test/*.json``, each with ``users``
                and ``user_data: {user: {x: [[784 numbers]], y: [label]}}``. Split by sample (LEAF's ``-t sample``), so
                that writers are in both.
            num_clients: The first so many writers, in the order of their names; null for all.
            partitioner: Splits the samples by writer, such as ``ByGroup(10)`` for ten clients of several writers each;
                null for a client a writer.
            options: Arguments of :class:`FederatedDataModule`.
        """
        super().__init__(**options)
        self.root = root
        self._num_clients = num_clients
        self.partitioner = ByGroup() if partitioner is None else partitioner
        require_instance(f"{type(self).__name__}(partitioner", self.partitioner, Partitioner, "ByGroup(10)")

    def build(self) -> Federation:
        """Read the samples of the writers.

        Raises:
            FileNotFoundError: If a folder holds no JSON file.
            ValueError: If there are fewer writers than clients asked for, or none of them has test samples.
        """
        train, test = (_read(Path(self.root) / part) for part in ("train", "test"))
        writers = sorted(train)
        if self._num_clients is not None:
            if self._num_clients > len(writers):
                raise InvalidValueError(
                    f"FEMNIST(num_clients={self._num_clients}): {self.root}/train has {len(writers)} writers."
                )
            writers = writers[: self._num_clients]
        sizes = torch.tensor([len(train[writer][1]) for writer in writers])
        writer = torch.arange(len(writers)).repeat_interleave(sizes)
        tested = [writer for writer in writers if writer in test]
        if not tested:
            raise InvalidValueError(
                f"FEMNIST: no writer of {self.root}/train is in {self.root}/test, so that nothing could be validated. "
                "Split by sample (LEAF's preprocess.sh -t sample)."
            )
        held = _pool(test, tested)
        return Federation(_pool(train, writers), self.partitioner.split(writer, self.seed), val=held, test=held)


def _read(folder: Path) -> Samples:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise MissingFileError(
            f"No *.json in {folder}. Make them with LEAF's preprocess.sh, or name the folder that has train/ and test/."
        )
    samples: Samples = {}
    for file in files:
        content = json.loads(file.read_text(encoding="utf-8"))
        for user in content["users"]:
            x, y = samples.setdefault(user, ([], []))
            x += content["user_data"][user]["x"]
            y += content["user_data"][user]["y"]
    return samples


def _pool(samples: Samples, writers: list[str]) -> TensorData:
    images = torch.tensor([image for writer in writers for image in samples[writer][0]], dtype=torch.float32)
    labels = torch.tensor([label for writer in writers for label in samples[writer][1]])
    return TensorData((images.view(-1, 1, 28, 28), labels))
