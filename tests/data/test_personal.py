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


STRETCHES = [  # recording, person, activity, first and last reading
    (1, 7, 1, 11, 906),
    (1, 7, 8, 907, 976),
    (1, 7, 1, 1001, 1400),
    (2, 9, 6, 1, 256),
    (2, 9, 7, 257, 500),
    (2, 9, 6, 501, 1300),
]


def recordings(path):
    """Two persons; every reading is its own number."""
    n = 2800
    steps = np.arange(n, dtype=np.int16)
    np.savez(
        path,
        acc=np.stack([steps, steps, steps], 1),
        gyro=np.stack([-steps, -steps, -steps], 1),
        offsets=np.array([0, 1400, n]),
        exp_user=np.array([[1, 7], [2, 9]]),
        labels=np.array(STRETCHES),
        acc_step_g=0.5,
        gyro_step_rad_s=0.25,
    )
    return str(path)


def starts_of(stretches, begins):
    """First reading of every window."""
    return [begins[e] + a - 1 + i for e, _, _, a, b in stretches for i in range(0, b - a - 126, 64)]


def test_hapt_windows(tmp_path):
    data = HAPT(recordings(tmp_path / "hapt.npz"), transitions=True)
    windows, activity = data.samples()[0].tensors
    person = data.samples()[1]
    starts = starts_of(STRETCHES, {1: 0, 2: 1400})
    assert starts[13:15] == [1000, 1064]  # the stretch of 70 readings has no window
    assert windows.shape == (len(starts), 6, 128)
    for window, start in zip(windows, starts, strict=True):
        readings = torch.arange(start, start + 128.0)
        torch.testing.assert_close(window[0], 0.5 * readings)
        torch.testing.assert_close(window[5], -0.25 * readings)
    assert activity.tolist() == [0] * 18 + [5] * 3 + [6] * 2 + [5] * 11
    assert person.tolist() == [7] * 18 + [9] * 16
    assert [len(part) for part in parts(data)] == [2, 2, 2]
    assert len(HAPT(data.root).samples()[1]) == 32


def readings_of(data, starts):
    """Numbers of the readings in training, validation and test windows."""
    starts = torch.tensor(starts)
    return [set((starts[part.order][:, None] + torch.arange(128)).flatten().tolist()) for part in parts(data)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shares", [(0.2, 0.1), (0.5, 0.5), (0.1, 0.3)])
def test_windows_set_aside_share_no_readings_with_others(tmp_path, seed, shares):
    test_share, val_share = shares
    data = HAPT(
        recordings(tmp_path / "hapt.npz"), transitions=True, test_share=test_share, val_share=val_share, seed=seed
    )
    train, val, test = readings_of(data, starts_of(STRETCHES, {1: 0, 2: 1400}))
    assert not train & val
    assert not train & test
    assert not val & test
    assert [len(part) for part in data.federation.test_partition] == [
        round(test_share * 18),
        round(test_share * 14),  # of the transition there are two windows, which stay
    ]
    again = HAPT(data.root, transitions=True, test_share=test_share, val_share=val_share, seed=seed)
    for part, same in zip(parts(data), parts(again), strict=True):
        assert torch.equal(part.order, same.order)


def test_seeds_choose_the_stretches(tmp_path):
    root = recordings(tmp_path / "hapt.npz")
    chosen = {tuple(parts(HAPT(root, seed=seed))[2].order.tolist()) for seed in range(8)}
    assert len(chosen) > 4


def test_too_few_windows_to_set_some_aside(tmp_path):
    with pytest.raises(ValueError, match=r"Client 0 has 18 samples, too few of each label to set 0\.02 of them aside"):
        HAPT(recordings(tmp_path / "hapt.npz"), test_share=0.02).setup("fit")


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
    assert data.overlaps(tensors, person).tolist() == [True, True, False, True, False, True, False, True]


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
    assert data.classes == 3
    assert KUHAR(str(root), ["Run", "Stand"]).classes == 2
    with pytest.raises(ValueError, match="min_windows=11: the person with most windows has 10"):
        KUHAR(str(root), min_windows=11).setup("fit")
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


def test_counts_are_of_all_classes_whatever_the_labels_reach(tmp_path):
    pictures = np.random.default_rng(0).integers(256, size=(8, 32, 32, 3), dtype=np.uint8)
    root = str(archive(tmp_path / "cifar.npz", pictures))  # labels 0 to 7
    data = PersonalCIFAR10(root, IID(2), val_share=0.4, class_counts=True)
    _, labels, counts = data.federation.train.tensors
    assert counts.shape == (8, 10)
    for train, test in zip(data.federation.partition, data.federation.test_partition, strict=True):
        assert counts[test[0]].tolist() == torch.bincount(labels[train], minlength=10).tolist()
    folder = tmp_path / "features"
    folder.mkdir()
    np.savez(folder / "a.npz", sound=np.zeros((9, 2)), label=np.arange(9) % 2)
    np.savez(folder / "b.npz", sound=np.zeros((9, 2)), label=np.arange(9) % 3)
    for classes, width in ((None, 3), (5, 5)):
        features = SubjectFeatures(str(folder), ["sound"], classes=classes, class_counts=True)
        assert features.federation.train.tensors[2].shape == (18, width)
    recorded = HAPT(recordings(tmp_path / "hapt.npz"), class_counts=True)
    assert recorded.federation.train.tensors[2].shape == (32, 6)
    assert HAPT(recorded.root, transitions=True).classes == 12


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


@pytest.mark.shared_data
@pytest.mark.parametrize("transitions", [False, True])
def test_real_hapt(shared_data, transitions):
    data = HAPT(os.path.join(shared_data, "hapt", "hapt_raw.npz"), transitions=transitions)
    windows, person = data.samples()
    assert len(person) == (10929 if transitions else 10411)
    assert data.num_clients == 30
    with np.load(data.root) as z:
        stretches = [row for row in z["labels"].tolist() if transitions or row[2] <= 6]
        begins = dict(zip(z["exp_user"][:, 0].tolist(), z["offsets"][:-1].tolist(), strict=True))
    train, val, test = readings_of(data, starts_of(stretches, begins))
    assert not train & val
    assert not train & test
    assert not val & test
    shares = [len(part.order) / len(person) for part in parts(data)]
    assert shares == pytest.approx([0.69, 0.08, 0.20], abs=0.01)
    basic = windows.tensors[1] < 6
    for part in parts(data):
        for own in part:
            assert len(windows.tensors[1][own[basic[own]]].unique()) == 6


@pytest.mark.shared_data
def test_real_mnist(shared_data):
    assert len(PersonalMNIST(str(Path(shared_data) / "mnist")).samples()[1]) == 70000
