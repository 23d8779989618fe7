"""A little is enough: the honest mean, shifted by standard deviations."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import norm

from fedlightning.channel import ALIE
from tests.support.exchanges import exchange
from tests.support.rules import drawn


@pytest.mark.parametrize("z", [1.5, -2.0, 0.0])
def test_adversaries_send_the_shifted_mean(z):
    rows = drawn(9)
    sent = ALIE(clients=[0, 1], z=z).act([rows], range(9), exchange(), 0)[0]
    expected = rows[2:].mean(dim=0) + z * rows[2:].std(dim=0)
    torch.testing.assert_close(sent[:2], expected.expand(2, -1))


def test_z_of_the_paper_is_where_enough_honest_clients_lie_beyond():
    """Of 50 clients, 24 are adversaries; 2 supporters make 26, a majority, so that 24 of 26 honest ones lie below z."""
    rows = drawn(50)
    sent = ALIE(clients=range(24), z=None).act([rows], range(50), exchange(cohort=50, num_clients=50), 0)[0]
    expected = rows[24:].mean(dim=0) + norm.ppf(24 / 26) * rows[24:].std(dim=0)
    torch.testing.assert_close(sent[0], expected)


def test_clients_that_did_not_answer_are_no_adversaries():
    rows = drawn(50)
    sent = ALIE(clients=range(24), z=None).act([rows], range(50), exchange(cohort=80, num_clients=80), 0)[0]
    expected = rows[24:].mean(dim=0) + norm.ppf(24 / 26) * rows[24:].std(dim=0)
    torch.testing.assert_close(sent[0], expected)


def test_one_honest_client_has_no_spread():
    sent = ALIE(clients=[0, 1]).act([drawn(3)], range(3), exchange(), 0)[0]
    torch.testing.assert_close(sent, drawn(3)[2].expand(3, -1))


def test_a_majority_of_adversaries_has_a_z():
    sent = ALIE(clients=[0, 1, 2], z=None).act([drawn(5)], range(5), exchange(cohort=5), 0)[0]
    assert sent.isfinite().all()


def test_z_is_a_number():
    with pytest.raises(ValueError, match=r"ALIE\(z=inf\)"):
        ALIE(share=0.1, z=float("inf"))
