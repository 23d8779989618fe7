"""Autograd says whether it notes operations, and whether hooks pack what it saves."""

from __future__ import annotations

import torch
from torch.autograd.graph import save_on_cpu

from fedlightning.oracle.sight import Sight


def test_what_autograd_does_at_present_is_seen():
    with torch.no_grad():
        assert not Sight.now().enabled
    with torch.enable_grad():
        plain = Sight.now()
        with save_on_cpu():
            packed = Sight.now()
    assert plain.enabled
    assert plain.packs in (False, None)
    assert packed.packs in (True, None)
    assert (plain.packs is None) == (packed.packs is None)
