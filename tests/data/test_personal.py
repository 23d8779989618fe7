"""Data with training, validation and test samples of every client's own."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from fedlightning.data import (
    HAPT,
    IID,
    KUHAR,
    UCIHAR,
    Dirichlet,
    FedMultimodal,
    Partition,
    PersonalCIFAR10,
    PersonalDigits,
    PersonalMNIST,
    SubjectFeatures,
)
from fedlightning.data.images import digits_images
from tests.data.test_cifar10 import archive


def test_hold_out_takes_a_share_of_every_client():
    partition = Partition.of([range(10), range(10, 13), range(13, 113)])
    kept, aside = partition.hold_out(0.2, seed=0)
    assert kept.sizes.tolist() == [8, 2, 80]
    assert aside.sizes.tolist() == [2, 1, 20]
    for whole, stays, held in zip(partition, kept, aside, strict=True):
        assert sorted([*stays.tolist(), *held.tolist()]) == sorted(whole.tolist())
    assert torch.equal(partition.hold_out(0.2, seed=0)[1].order, aside.order)
    assert not torch.equal(partition.hold_out(0.2, seed=1)[1].order, aside.order)


def test_hold_out_needs_two_samples_and_a_share():
    with pytest.raises(ValueError, match="Client 1 has one sample"):
        Partition.of([[0, 1], [2]]).hold_out(0.5, seed=0)
    with pytest.raises(ValueError, match=r"share=1\.0"):
        Partition.of([[0, 1]]).hold_out(1.0, seed=0)
    with pytest.raises(ValueError, match="test_share=0"):
        PersonalDigits(test_share=0)


def parts(data):
    federation = data.federation
    return federation.partition, federation.val_partition, federation.test_partition


def test_no_sample_leaks_between_clients_or_parts():
    data = PersonalDigits(Dirichlet(6, 0.5, min_size=20))
    every = torch.cat([part.order for part in parts(data)])
    assert sorted(every.tolist()) == list(range(1797))
    whole = Dirichlet(6, 0.5, min_size=20).split(digits_images(8)[1], data.seed)
    for client, own in enumerate(whole):
        train, val, test = (part[client] for part in parts(data))
        assert set(own.tolist()) == {*train.tolist(), *val.tolist(), *test.tolist()}
        assert len(test) == round(0.2 * len(own))
        assert len(val) == round(0.1 * (len(own) - len(test)))


def test_digits_are_renamed_and_turned_client_by_client():
    data = PersonalDigits(IID(3), rotate=True)
    images, labels = digits_images(8)
    pooled, renamed = data.federation.train.tensors
    names = []
    for client, own in enumerate(IID(3).split(labels, data.seed)):
        assert torch.equal(pooled[own], images[own].unsqueeze(1).rot90(client, (2, 3)))
        pairs = {(int(a), int(b)) for a, b in zip(labels[own], renamed[own], strict=True)}
        assert len(pairs) == 10
        assert sorted(b for _, b in pairs) == list(range(10))
        names.append(pairs)
    assert names[0] != names[1]
    plain = PersonalDigits(IID(3), permute_labels=False).federation.train.tensors
    assert torch.equal(plain[0], images.unsqueeze(1))
    assert torch.equal(plain[1], labels)


def recordings(path):
    """Two persons; every reading is its own number."""
    n = 900
    steps = np.arange(n, dtype=np.int16)
    np.savez(
        path,
        acc=np.stack([steps, steps, steps], 1),
        gyro=np.stack([-steps, -steps, -steps], 1),
        offsets=np.array([0, 400, 900]),
        exp_user=np.array([[1, 7], [2, 9]]),
        labels=np.array([[1, 7, 1, 11, 330], [1, 7, 8, 331, 400], [2, 9, 6, 1, 256], [2, 9, 7, 257, 500]]),
        acc_step_g=0.5,
        gyro_step_rad_s=0.25,
    )
    return path


def test_hapt_windows(tmp_path):
    data = HAPT(str(recordings(tmp_path / "hapt.npz")), transitions=True)
    windows, activity = data.samples()[0].tensors
    person = data.samples()[1]
    starts = [10, 74, 138, 202, 400, 464, 528, 656, 720]  # stretches of 320, 70, 256 and 244 readings
    assert windows.shape == (len(starts), 6, 128)
    for window, start in zip(windows, starts, strict=True):
        readings = torch.arange(start, start + 128.0)
        torch.testing.assert_close(window[0], 0.5 * readings)
        torch.testing.assert_close(window[5], -0.25 * readings)
    assert activity.tolist() == [0] * 4 + [5] * 3 + [6] * 2
    assert person.tolist() == [7] * 4 + [9] * 5
    assert [len(part) for part in parts(data)] == [2, 2, 2]
    assert len(HAPT(str(tmp_path / "hapt.npz")).samples()[1]) == 7


def test_uci_har_folder(tmp_path):
    draw = np.random.default_rng(0)
    signals = {}
    for part, n in (("train", 5), ("test", 4)):
        folder = tmp_path / part / "Inertial Signals"
        folder.mkdir(parents=True)
        for sensor in ("total_acc", "body_gyro", "body_acc"):
            for axis in "xyz":
                values = draw.normal(size=(n, 128)).round(3)
                signals[part, sensor, axis] = values
                np.savetxt(folder / f"{sensor}_{axis}_{part}.txt", values)
        np.savetxt(tmp_path / part / f"y_{part}.txt", np.arange(n) % 6 + 1, fmt="%d")
        np.savetxt(tmp_path / part / f"subject_{part}.txt", np.where(np.arange(n) < n - 2, 3, 5), fmt="%d")
    data = UCIHAR(str(tmp_path))
    tensors, person = data.samples()
    windows, activity = tensors.tensors
    assert windows.shape == (9, 6, 128)
    np.testing.assert_allclose(windows[5, 1], signals["test", "total_acc", "y"][0], rtol=1e-6)
    np.testing.assert_allclose(windows[2, 5], signals["train", "body_gyro", "z"][2], rtol=1e-6)
    assert activity.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert person.tolist() == [3, 3, 3, 5, 5, 3, 3, 5, 5]
    assert data.num_clients == 2


def test_ku_har_folder(tmp_path):
    root = tmp_path / "2.Trimmed_interpolated_data"
    files = [("0.Stand", "1001_A_1", 600), ("0.Stand", "1002_A_1", 254), ("8.Jump", "1001_I_2", 520)]
    for folder, name, n in (*files, ("14.Run", "1002_N_1", 2600)):
        (root / folder).mkdir(parents=True, exist_ok=True)
        step = np.arange(n)
        columns = [10 * step, step, 2 * step, 3 * step, 10 * step + 1, -step, -2 * step, step % 7]
        np.savetxt(root / folder / f"{name}.csv", np.stack(columns, 1), fmt="%g", delimiter=",")
    data = KUHAR(str(root), standardize=False, min_windows=1)
    tensors, person = data.samples()
    windows, activity = tensors.tensors
    assert windows.shape == (2 + 2 + 10, 6, 128)
    assert activity.tolist() == [0] * 2 + [1] * 2 + [2] * 10  # Stand, Jump, Run
    assert person.tolist() == [1001] * 4 + [1002] * 10
    readings = 2 * torch.arange(128, 256)
    for axis, factor in ((0, 1), (2, 3), (4, -2)):
        torch.testing.assert_close(windows[3, axis], factor * readings.float())
    scaled = KUHAR(str(root), ["Run", "Stand"], min_windows=5).samples()
    assert scaled[0].tensors[1].tolist() == [1] * 10
    assert scaled[1].tolist() == [1002] * 10
    torch.testing.assert_close(scaled[0].tensors[0].mean(2), torch.zeros(10, 6), rtol=0, atol=1e-5)
    torch.testing.assert_close(scaled[0].tensors[0].std(2, correction=0), torch.ones(10, 6), rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match=r"there is no 'Fly' .* There are: Stand, Jump, Run"):
        KUHAR(str(root), ["Fly"]).setup()
    (root / "8.Jump" / "1001_I_2.csv").write_text("0,0,0,0,0,0,0,0\n")
    with pytest.raises(ValueError, match="holds 255 readings"):
        KUHAR(str(root), ["Jump"]).setup()


@pytest.mark.parametrize(
    ("make", "message"), [(KUHAR, "such as '0.Stand'"), (HAPT, "no such file"), (UCIHAR, "Inertial Signals")]
)
def test_missing_recordings_are_named(tmp_path, make, message):
    with pytest.raises(FileNotFoundError, match=message):
        make(str(tmp_path / "nowhere")).setup()


def test_cifar10_pools_both_official_parts(tmp_path):
    pictures = np.random.default_rng(0).integers(256, size=(8, 32, 32, 3), dtype=np.uint8)
    data = PersonalCIFAR10(str(archive(tmp_path / "cifar.npz", pictures)), IID(2), val_share=0.4)
    image, label = data.federation.test[torch.tensor([6])]
    assert image.shape == (1, 3, 32, 32)
    assert label == 6
    assert sorted(torch.cat([part.order for part in parts(data)]).tolist()) == list(range(8))


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
    assert FedMultimodal(str(tmp_path), folders, IID(3), min_samples=1).num_clients == 3
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


@pytest.mark.shared_data
def test_real_hapt_and_mnist(shared_data):
    data = HAPT(os.path.join(shared_data, "hapt", "hapt_raw.npz"), transitions=True)
    assert len(data.samples()[1]) == 10929
    assert data.num_clients == 30
    assert len(PersonalMNIST(str(Path(shared_data) / "mnist")).samples()[1]) == 70000
