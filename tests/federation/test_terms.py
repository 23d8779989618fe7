"""Terms of an exchange are placed with their tensors."""

from __future__ import annotations

import torch

from fedlightning.federation.protocol import Request, Stamp
from fedlightning.federation.terms import Terms


def test_tensors_are_placed():
    terms = Terms(3, 9, {"0.norm": torch.ones(())}, expected=2.5)
    placed = Request(Stamp(0, 0), 1, None, torch.ones(2), torch.ones(0), terms=terms).placed(torch.device("meta"))
    assert placed.terms.public["0.norm"].device.type == "meta"
    assert (placed.terms.cohort, placed.terms.num_clients, placed.terms.expected) == (3, 9, 2.5)
    assert Request(Stamp(0, 0), 1, None, torch.ones(2), torch.ones(0)).placed(torch.device("meta")).terms is None
