"""Recordings of phones: windows, stretches set aside, folders in their makers' layouts."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from fedlightning.data import HAPT, KUHAR, UCIHAR
from tests.support.image_files import parts
from tests.support.personal_data import STRETCHES, recordings


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
