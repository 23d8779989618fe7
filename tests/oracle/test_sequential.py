"""One client after the other: what fails is shown with the client."""

from __future__ import annotations

import pytest

from fedlightning.oracle import Auto, ObjectiveError, Sequential, Vectorized
from tests.support.objectives_in_python import trained


def test_what_fails_one_by_one_is_shown_with_the_client():
    def fails(task, original, batch):
        if batch[0] == 3:  # a client's batch is its number
            raise TypeError("three is too many")
        return original(batch)

    for oracle in (Sequential(), Vectorized(), Auto()):
        with pytest.raises(
            ObjectiveError, match="objective failed for client 3: TypeError: three is too many"
        ) as error:
            trained(oracle, fails)
        assert isinstance(error.value.__cause__, TypeError)
