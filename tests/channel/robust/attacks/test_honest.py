"""Mean and spread of honest rows are those of torch."""

from __future__ import annotations

import torch

from fedlightning.channel.robust.attacks.honest import HonestRows
from tests.support.peers import played
from tests.support.rules import drawn


def test_mean_and_std_are_those_of_torch():
    rows = drawn(7)
    honest = HonestRows([rows[:2], rows[2:2], rows[2:]])
    assert honest.count == 7
    torch.testing.assert_close(honest.mean(), rows.mean(dim=0))
    torch.testing.assert_close(honest.std(), rows.std(dim=0))
    assert torch.equal(HonestRows([rows[:1]]).std(), torch.zeros(37, dtype=torch.float64))


def test_far_means_cost_no_digits():
    rows = 1e6 + 1e-3 * drawn(7)
    torch.testing.assert_close(HonestRows([rows]).std(), rows.std(dim=0), rtol=1e-6, atol=0)


def test_sixteen_bits_are_added_in_float64():
    rows = torch.ones(3000, 2, dtype=torch.bfloat16)
    assert HonestRows([rows]).mean().tolist() == [1.0, 1.0]


def test_processes_know_the_same():
    rows = drawn(7)

    def run(processes):
        honest = HonestRows([rows[processes.rank :: processes.count]], processes)
        return honest.count, honest.mean(), honest.std()

    for count, mean, std in played(9, run):
        assert count == 7
        torch.testing.assert_close(mean, rows.mean(dim=0))
        torch.testing.assert_close(std, rows.std(dim=0))
