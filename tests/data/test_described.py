"""What a federated data module prints of itself."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset

from fedlightning import FederatedDataModule
from fedlightning.data import Federation, Partition, Synthetic, TensorData
from tests.support.small import clients


class Unread(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        raise AssertionError("a sample was read")


def test_clients_samples_and_settings_are_in_one_line():
    data = FederatedDataModule.from_datasets(
        [Unread(), *clients(2)], val=Unread(), test=[Unread(), None, Unread()], batch_size=4, local_steps=3
    )
    expected = (
        "FederatedDataModule.from_datasets(batch_size=4, local_steps=3, participation=Full(), rounds_per_epoch=10, "
        "seed=0): 3 clients; train 26 samples (5 to 12 a client), val 5 samples, test 10 samples (0 to 5 a client)"
    )
    assert str(data) == repr(data) == expected
    assert str(FederatedDataModule.from_datasets([Unread()])).endswith("1 client; train 5 samples (5 a client)")


def test_data_that_are_not_built_stay_so():
    data = Synthetic(num_clients=3, batch_size=None)
    assert str(data).startswith("Synthetic(batch_size=None, local_epochs=1, ")
    assert str(data).endswith("seed=0), its data not built yet")
    assert data.num_clients == 3
    assert ": 3 clients; train " in str(data)


def test_what_has_no_length_has_no_numbers():
    data = FederatedDataModule.from_datasets([iter(clients(1))])
    assert str(data).endswith("its data not built yet")


def test_data_sets_and_partitions_show_shapes_and_no_numbers():
    samples = TensorData({"x": torch.zeros(1200, 3), "more": (torch.zeros(1200, dtype=torch.uint8),)}, torch.square)
    parts = Partition(torch.arange(1200), torch.tensor([0, 1000, 1200]))
    shown = "TensorData({'x': float32[1200, 3], 'more': (uint8[1200],)}, <built-in method square"
    assert repr(samples).startswith(shown)
    assert repr(parts) == "Partition(2 clients of 200 to 1,000 samples)"
    assert repr(Partition.of([[0, 1], [2, 3]])) == "Partition(2 clients of 2 samples)"
    assert repr(Partition(torch.arange(0), torch.zeros(1))) == "Partition(0 clients of 0 samples)"
    shown = repr(Federation(TensorData(torch.zeros(4, 2)), Partition.of([[0, 1], [2, 3]])))
    assert shown.startswith("Federation(train=TensorData(float32[4, 2]), partition=Partition(2 clients of 2 samples), ")
