"""Tensors kept in files."""

from __future__ import annotations

import pytest
import torch

from fedlightning.data.cache import cached


def test_what_is_kept_is_made_once(tmp_path):
    path = tmp_path / "folder" / "x.pt"
    assert cached(path, lambda: torch.arange(3)).tolist() == [0, 1, 2]
    assert cached(path, lambda: torch.arange(9)).tolist() == [0, 1, 2]
    assert cached(None, lambda: torch.arange(2)).tolist() == [0, 1]
    assert [file.name for file in path.parent.iterdir()] == ["x.pt"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, OSError])
def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch, interrupt):
    path = tmp_path / "x.pt"

    def half(tensor, file):
        file.write(b"half a tens")
        raise interrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(interrupt):
        cached(path, lambda: torch.arange(3))
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())
    assert cached(path, lambda: torch.arange(3)).tolist() == [0, 1, 2]
