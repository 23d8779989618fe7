"""A digest tells equal data from other data, to whoever has the node's key."""

from __future__ import annotations

import stat

import torch

from fedlightning.federation.remote.data_digest import DataDigest


def test_equal_data_have_equal_digests_also_in_another_process(tmp_path):
    x = torch.arange(6.0)
    first = DataDigest(tmp_path).of([x, x.long()])
    assert DataDigest(tmp_path).of([x.clone(), x.long()]) == first
    digest = DataDigest(tmp_path)
    others = [[x, x], [x.long(), x], [x], [x.reshape(2, 3), x.long()], [x + 1e-6, x.long()], [x.flip(0), x.long()]]
    assert len({first, *(digest.of(other) for other in others)}) == 7


def test_nobody_else_can_try_data_out(tmp_path):
    (tmp_path / "other").mkdir()
    assert DataDigest(tmp_path).of([torch.ones(1)]) != DataDigest(tmp_path / "other").of([torch.ones(1)])
    assert stat.S_IMODE((tmp_path / "data.key").stat().st_mode) == 0o600
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["data.key"]
