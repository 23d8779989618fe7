"""A federation of four small clients, and what its rounds deal them."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset

from fedlightning import FederatedDataModule
from fedlightning.data import TensorData
from fedlightning.federation.sampling.round_loader import RoundLoader

CPU = torch.device("cpu")
SIZES = [12, 5, 9, 20]


class Slow(Dataset):
    """The same samples, one at a time."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        return {"x": self.tensors[0][index], "y": self.tensors[1][index]}


def federation(slow=False, **options):
    sets = [(torch.randn(n, 3, generator=torch.Generator().manual_seed(n)), torch.arange(n) + 100 * n) for n in SIZES]
    made = [Slow(t) if slow else TensorData({"x": t[0], "y": t[1]}) for t in sets]
    return FederatedDataModule.from_datasets(
        made, **{"batch_size": 4, "local_steps": None, "local_epochs": 1, "rounds_per_epoch": 3, "seed": 2, **options}
    )


def everything_dealt(data, chunk, phases=None):
    loader = RoundLoader(data) if phases is None else RoundLoader(data, phases)
    """Round, client and labels of every minibatch that is dealt in chunks of so many clients."""
    seen = []
    for batch in loader:
        for cohort in batch.place(CPU, torch.float64).cohorts:
            for part in cohort.chunks(chunk):
                for minibatch in part.minibatches():
                    active = minibatch.active
                    for place, client in enumerate(part.ids):
                        if active is None or active[place]:
                            seen.append((batch.index, client, minibatch.data["y"][place].tolist()))
    return sorted(seen)


def first_cohort(data, dtype=torch.float32):
    """The cohort of round 0, with samples on the CPU."""
    return next(iter(RoundLoader(data))).place(CPU, dtype).cohorts[0]
