"""Features of several modalities, a file a subject."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from fedlightning.data import IID, FedMultimodal, SubjectFeatures
from tests.support.image_files import parts


def test_features_by_subject(tmp_path):
    draw = np.random.default_rng(0)
    audio = {name: draw.normal(size=(n, 4, 3)) for name, n in (("b", 5), ("a", 7))}
    for name, features in audio.items():
        n = len(features)
        np.savez(tmp_path / f"{name}.npz", audio=features, video=draw.normal(size=(n, 2)), label=np.arange(n) % 3)
    data = SubjectFeatures(str(tmp_path), ["audio", "video"])
    assert [len(part) for part in parts(data)] == [2, 2, 2]
    whole, subject = data.samples()
    assert subject.tolist() == [0] * 7 + [1] * 5
    features, labels = whole[torch.tensor([8])]
    np.testing.assert_allclose(features["audio"][0], audio["b"][1], rtol=1e-6)
    assert features["video"].shape == (1, 2)
    assert labels.tolist() == [1]
    assert SubjectFeatures(str(tmp_path), ["video"], IID(3)).num_clients == 3
    with pytest.raises(ValueError, match="has no array 'text'"):
        SubjectFeatures(str(tmp_path), ["text"]).setup()
    np.savez(tmp_path / "c.npz", audio=np.zeros((2, 4, 3)), video=np.zeros((3, 2)), label=np.zeros(2))
    with pytest.raises(ValueError, match="unequal length"):
        SubjectFeatures(str(tmp_path), ["audio", "video"]).setup()
    with pytest.raises(FileNotFoundError, match=r"no \.npz files"):
        SubjectFeatures(str(tmp_path / "nowhere"), ["audio"]).setup()


def benchmark(root, modalities, lengths, extra=("dev", "test")):
    """Pickles in FedMultimodal's layout; returns the features by modality and client."""
    draw = np.random.default_rng(0)
    written = {}
    for name, (folder, width, longest) in modalities.items():
        (root / folder).mkdir(parents=True)
        for client, n in {**lengths, **dict.fromkeys(extra, 3)}.items():
            arrays = [draw.normal(size=(1 + (i % longest), width)) for i in range(n)]
            entries = [[f"{client}/{i}", f"/raw/{client}_{i}", np.int64(i % 3), a] for i, a in enumerate(arrays)]
            (root / folder / f"{client}.pkl").write_bytes(pickle.dumps(entries, protocol=pickle.HIGHEST_PROTOCOL))
            written[name, client] = arrays
    return written


def test_fed_multimodal_features(tmp_path):
    modalities = {
        "image": ("img/mobilenet_v2/crisis-mmd/alpha50", 5, 1),
        "text": ("text/bert/crisis-mmd/alpha50", 4, 6),
    }
    written = benchmark(tmp_path, modalities, {"0": 12, "1": 4, "2": 15})
    folders = {name: folder for name, (folder, *_) in modalities.items()}
    data = FedMultimodal(str(tmp_path), folders)
    tensors, subject = data.samples()
    features, labels = tensors.tensors
    assert subject.tolist() == [0] * 12 + [1] * 15
    assert labels.tolist() == [i % 3 for i in range(12)] + [i % 3 for i in range(15)]
    assert features["image"].shape == (27, 5)
    assert features["text"].shape == (27, 6, 4)
    np.testing.assert_allclose(features["image"][13], written["image", "2"][1][0], rtol=1e-6)
    np.testing.assert_allclose(features["text"][14, :3], written["text", "2"][2], rtol=1e-6)
    assert features["text"][14, 3:].abs().max() == 0
    assert [len(part) for part in parts(data)] == [2, 2, 2]
    shared_out = FedMultimodal(str(tmp_path), folders, IID(3))
    assert shared_out.num_clients == 3
    assert len(shared_out.samples()[1]) == 12 + 4 + 15  # no file is too small for a partitioner
    with pytest.raises(FileNotFoundError, match="No client has 16 samples"):
        FedMultimodal(str(tmp_path), folders, min_samples=16).setup()
    with pytest.raises(FileNotFoundError, match=r"<client>\.pkl"):
        FedMultimodal(str(tmp_path), {"acc": "acc/ku-har/fold1"}).setup()


def test_pickles_that_hold_more_than_arrays_are_refused(tmp_path):
    folder = tmp_path / "acc"
    folder.mkdir()
    (folder / "7.pkl").write_bytes(pickle.dumps([["a", "b", 0, Path("x")]]))
    with pytest.raises(ValueError, match=r"7\.pkl was not read: it holds pathlib"):
        FedMultimodal(str(tmp_path), {"acc": "acc"}).setup()


def test_modalities_must_agree_on_labels(tmp_path):
    benchmark(tmp_path, {"acc": ("acc", 3, 4), "gyro": ("gyro", 3, 4)}, {"1001": 10}, extra=())
    (tmp_path / "gyro" / "1001.pkl").write_bytes(pickle.dumps([["", "", 2, np.zeros((4, 3))]] * 10))
    with pytest.raises(ValueError, match="labels differ"):
        FedMultimodal(str(tmp_path), {"acc": "acc", "gyro": "gyro"}).setup()
