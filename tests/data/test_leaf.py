"""A tiny folder in LEAF's layout."""

from __future__ import annotations

import json

import pytest
import torch

from fedlightning.algorithms import FedAvg
from fedlightning.data import FEMNIST, ByGroup
from fedlightning.models import MLP
from fedlightning.tasks import Classification
from tests.support.small import trainer


@pytest.fixture
def folder(tmp_path):
    """Three writers; one of them in two files."""

    def write(path, users):
        path.parent.mkdir(exist_ok=True)
        data = {user: {"x": [[label / 62] * 784 for label in labels], "y": labels} for user, labels in users.items()}
        content = {"users": list(users), "num_samples": [len(labels) for labels in users.values()], "user_data": data}
        path.write_text(json.dumps(content))

    write(tmp_path / "train" / "part_0.json", {"f02": [3, 61, 5], "f00": [1, 2]})
    write(tmp_path / "train" / "part_1.json", {"f01": [10, 11, 12, 13], "f00": [9]})
    write(tmp_path / "test" / "part_0.json", {"f00": [1], "f02": [4, 4]})
    return tmp_path


def test_one_client_a_writer(folder):
    federation = FEMNIST(str(folder)).federation
    x, y = federation.train.tensors
    assert [y[part].tolist() for part in federation.partition] == [[1, 2, 9], [10, 11, 12, 13], [3, 61, 5]]
    assert x.shape == (10, 1, 28, 28)
    torch.testing.assert_close(x[:, 0, 5, 5], y / 62)
    assert federation.test.tensors[1].tolist() == [1, 4, 4]


def test_writers_are_shared_out_to_fewer_clients(folder):
    federation = FEMNIST(str(folder), partitioner=ByGroup(2)).federation
    held = [sorted(federation.train.tensors[1][part].tolist()) for part in federation.partition]
    writers = [[1, 2, 9], [10, 11, 12, 13], [3, 5, 61]]
    pairs = [sorted(writers[i] + writers[j]) for i in range(3) for j in range(i)]
    assert sorted(map(len, held), reverse=True) in ([7, 3], [6, 4])
    assert (held[0] in pairs) != (held[1] in pairs)
    assert (held[0] in writers) != (held[1] in writers)


def test_the_first_writers(folder):
    federation = FEMNIST(str(folder), num_clients=2).federation
    assert len(federation.partition) == 2
    assert federation.val.tensors[1].tolist() == [1]


def test_writers_without_test_samples_are_refused(folder):
    (folder / "test" / "part_0.json").write_text(json.dumps({"users": [], "user_data": {}}))
    with pytest.raises(ValueError, match=r"no writer of .*train is in .*test.*Split by sample"):
        _ = FEMNIST(str(folder)).federation


def test_what_is_missing_is_named(folder):
    with pytest.raises(ValueError, match=r"FEMNIST\(num_clients=4\): .*train has 3 writers"):
        FEMNIST(str(folder), num_clients=4).build()
    with pytest.raises(FileNotFoundError, match=r"No \*\.json in .*nowhere/train.*preprocess\.sh"):
        FEMNIST(str(folder / "nowhere")).build()


def test_it_trains_and_evaluates_on_training_data_too(folder):
    data = FEMNIST(str(folder), batch_size=2, validate_train=True, rounds_per_epoch=2)
    task = Classification(FedAvg(lr=0.5), network=MLP((784, 8, 62)), classes=62)
    fit = trainer(max_steps=4)
    fit.fit(task, data)
    metrics = fit.callback_metrics
    x, y = data.federation.train.tensors
    with torch.no_grad():
        logits = task(x)
    torch.testing.assert_close(metrics["global_train_loss"], torch.nn.functional.cross_entropy(logits, y))
    assert float(metrics["global_train_accuracy"]) == pytest.approx(float((logits.argmax(1) == y).float().mean()))
    assert {"val_loss", "val_accuracy"} <= set(metrics)
