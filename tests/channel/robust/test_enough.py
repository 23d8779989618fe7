"""Cohorts that are too small for a rule are refused with what can be done."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel import Krum, Median
from fedlightning.channel.robust.enough import require_enough
from fedlightning.channel.robust.rows import ClientRows


def test_the_error_names_rule_numbers_and_remedy():
    rows = ClientRows([torch.zeros(6, 2)], range(6))
    text = (
        r"^Krum\(adversaries=2\) needs the updates of 7 clients or more, and only 6 count in this cohort\. Have fewer, "
    )
    with pytest.raises(ValueError, match=text + r"or invite more clients \(data\.participation\)\.$"):
        require_enough(Krum(2), rows, "Have fewer")
    require_enough(Krum(1), rows, "Have fewer")
    require_enough(Median(), rows, "Have fewer")
