"""What all robust rules have in common."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fedlightning.channel.robust.rows import ClientRows
from tests.support.gathered_rows import of_all_rules
from tests.support.paths import ROOT
from tests.support.peers import played
from tests.support.rules import ADVERSARIES, COUNT, RULES, aggregated, drawn

over_rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
FROM_ZERO = {"centred clipping"}  # starts at zero, so that it commutes with nothing
AFFINE = pytest.mark.parametrize("rule", [RULES[name] for name in RULES if name not in FROM_ZERO])

ATTACKS = {
    "far": lambda honest: torch.full_like(honest[:ADVERSARIES], 1e9),
    "very far": lambda honest: torch.full_like(honest[:ADVERSARIES], -1e30),
    "at the edge of float64": lambda honest: torch.full_like(honest[:ADVERSARIES], 1e308),
    "apart": lambda honest: torch.tensor([[1e5], [1e20], [1e200]], dtype=honest.dtype) * drawn(ADVERSARIES, seed=4),
    "one coordinate": lambda honest: honest[:ADVERSARIES] + 1e12 * torch.eye(37, dtype=honest.dtype)[:ADVERSARIES],
    "opposite": lambda honest: -1e6 * honest.mean(dim=0).expand(ADVERSARIES, -1),
}


@over_rules
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_the_aggregate_stays_near_the_honest_updates(rule, attack):
    """No attack of three of eleven moves it farther than honest updates lie from their mean."""
    honest = 0.5 + drawn(COUNT - ADVERSARIES)
    for places in (slice(0, ADVERSARIES), slice(COUNT - ADVERSARIES, COUNT)):
        rows = torch.empty(COUNT, 37, dtype=torch.float64)
        is_bad = torch.zeros(COUNT, dtype=torch.bool)
        is_bad[places] = True
        rows[is_bad], rows[~is_bad] = attack(honest), honest
        mean = honest.mean(dim=0)
        farthest = (honest - mean).norm(dim=1).max()
        assert (aggregated(rule, rows) - mean).norm() <= 1.01 * farthest


@over_rules
def test_a_majority_of_adversaries_is_not_withstood(rule):
    """The bound above holds by the number of adversaries, not for want of strength."""
    honest, bad = drawn(4), torch.full((7, 37), 1e9, dtype=torch.float64)
    found = aggregated(rule, torch.cat([honest, bad]))
    assert found.norm() > (3 if rule == RULES["centred clipping"] else 1e8)


@over_rules
def test_the_order_of_clients_changes_nothing(rule):
    rows = drawn()
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(aggregated(rule, rows[order]), aggregated(rule, rows), rtol=1e-7, atol=1e-7)
    arrived = ClientRows([rows[order[:4]], rows[order[4:]]], order.tolist())  # the same clients, other arrivals
    assert torch.equal(rule.aggregate(arrived), rule.aggregate(ClientRows([rows], range(COUNT))))


@AFFINE
def test_rules_commute_with_shifts_and_scales(rule):
    rows, shift = drawn(), 100 * drawn(1, seed=1)[0]
    expected = aggregated(rule, rows)
    if rule != RULES["centred clipping"]:
        torch.testing.assert_close(aggregated(rule, rows + shift), expected + shift, rtol=0, atol=1e-6)
    torch.testing.assert_close(aggregated(rule, 1e-6 * rows), 1e-6 * expected, rtol=1e-6, atol=1e-13)


@over_rules
def test_equal_updates_are_the_aggregate(rule):
    rows = drawn(1).expand(COUNT, -1).contiguous()
    found = aggregated(rule, rows if rule != RULES["centred clipping"] else 0.1 * rows)
    expected = rows[0] if rule != RULES["centred clipping"] else 0.1 * rows[0]
    torch.testing.assert_close(found, expected)


@over_rules
@pytest.mark.parametrize("columns", [1, 5, 36, 37])
def test_blocks_of_columns_give_what_the_whole_gives(rule, columns):
    torch.testing.assert_close(
        aggregated(rule, drawn(), columns=columns), aggregated(rule, drawn()), rtol=1e-9, atol=1e-9
    )


@over_rules
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_numbers_come_close_and_stay_narrow(rule, dtype):
    narrow = drawn(dtype=dtype)
    found = aggregated(rule, narrow)
    assert found.dtype == dtype
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), aggregated(rule, narrow.double()), rtol=tolerance, atol=tolerance)


@over_rules
@pytest.mark.parametrize("count", [2, 3])
def test_processes_come_to_what_one_comes_to(rule, count):
    rows = drawn(dtype=torch.float32)

    def run(processes):
        mine = list(range(processes.rank, COUNT, processes.count))
        return rule.aggregate(ClientRows([rows[mine]], mine, processes, columns=9))

    first, *others = played(count, run)
    for other in others:
        assert torch.equal(other, first)
    assert torch.equal(first, aggregated(rule, rows, columns=9))


@over_rules
def test_columns_that_are_not_finite_change_no_others(rule):
    wide = torch.cat([drawn(), torch.full((COUNT, 1), torch.inf, dtype=torch.float64)], dim=1)
    found = aggregated(rule, wide)
    torch.testing.assert_close(found[:37], aggregated(rule, drawn()), rtol=1e-9, atol=1e-9)
    assert not found[37].isfinite()


@over_rules
def test_updates_are_not_written_into(rule):
    rows = drawn()
    aggregated(rule, rows)
    assert torch.equal(rows, drawn())


@pytest.mark.slow
def test_processes_that_talk_over_gloo_come_to_the_bits_of_one(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.gathered_rows", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    expected = of_all_rules(None)
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
