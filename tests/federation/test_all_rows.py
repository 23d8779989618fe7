"""Updates of a whole cohort are put together by a rule, wherever they lie."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel import Channel, FixedPoint, GeometricMedian, Mean, Median, SignFlip
from fedlightning.federation.all_rows import AllRows
from tests.support.exchanges import exchange
from tests.support.peers import played
from tests.support.rules import drawn

CPU = torch.device("cpu")
IDS = [3, 1, 8, 5, 2]
FIELDS = {"z": drawn(5, 6).view(5, 2, 3), "steps": torch.tensor([5.0, 1, 4, 2, 9])}


def put_together(channel, chunks, processes=None, fields=FIELDS):
    rows = AllRows(channel, exchange(), 7)
    for chunk in chunks:
        rows.add({name: value[chunk] for name, value in fields.items()}, torch.ones(len(chunk)))
    if processes is not None:
        rows.gather(processes, CPU)
    rows.finish([IDS[place] for chunk in chunks for place in chunk], ["steps"])
    return rows


@pytest.mark.parametrize("chunks", [[[0, 1, 2, 3, 4]], [[4], [0, 2], [1, 3]]])
def test_fields_are_aggregated_and_counts_have_their_median(chunks):
    rows = put_together(Channel(aggregate=Median()), chunks)
    assert list(rows) == ["z", "steps"]
    assert rows.weight == 5
    assert torch.equal(rows.mean("z"), FIELDS["z"].median(dim=0).values)
    assert rows.mean("steps") == 4
    assert torch.equal(rows.sum("z"), 5 * rows.mean("z"))


def test_without_a_rule_it_is_the_mean():
    rows = put_together(Channel(adversary=SignFlip(clients=[19])), [[0, 1, 2, 3, 4]])
    torch.testing.assert_close(rows.mean("z"), FIELDS["z"].mean(dim=0))


@pytest.mark.parametrize("rule", [None, Mean(), FixedPoint(52, 100.0, 5)], ids=["none", "mean", "masked sum"])
@pytest.mark.parametrize("count", [1, 2, 6])  # of six processes, one has no client
def test_counts_have_their_mean_where_the_rule_is_one(rule, count):
    channel = Channel(aggregate=rule, adversary=None if rule else SignFlip(clients=[19]))

    def run(processes):
        mine = list(range(processes.rank, 5, count))
        rows = put_together(channel, [mine] if mine else [], processes)
        return rows.mean("z"), float(rows.mean("steps"))

    for z, steps in played(count, run):
        torch.testing.assert_close(z, FIELDS["z"].mean(dim=0))
        assert steps == pytest.approx(4.2)


@pytest.mark.parametrize("rule", [Mean(), FixedPoint(52, 10.0, 5)], ids=["mean", "masked sum"])
@pytest.mark.parametrize("count", [1, 2, 6])
def test_weights_count_where_the_rule_is_a_mean(rule, count):
    samples = torch.tensor([4.0, 1, 2, 3, 6], dtype=torch.float64)

    def run(processes):
        rows = AllRows(Channel(aggregate=rule), exchange(), 7, heaviest=8.0)
        mine = list(range(processes.rank, 5, count))
        if mine:
            rows.add({name: value[mine] for name, value in FIELDS.items()}, samples[mine])
        rows.gather(processes, CPU)
        rows.finish([IDS[place] for place in mine], ["steps"])
        return rows

    for rows in played(count, run):
        assert rows.weight == 16
        torch.testing.assert_close(rows.mean("z"), torch.tensordot(samples / 16, FIELDS["z"], dims=1))
        torch.testing.assert_close(rows.sum("z"), torch.tensordot(samples, FIELDS["z"], dims=1))
        assert float(rows.mean("steps")) == pytest.approx(float(samples @ FIELDS["steps"].double()) / 16)


def test_clients_of_weight_zero_are_left_out():
    rows = AllRows(Channel(aggregate=Median()), exchange(), 7)
    values = {"z": torch.tensor([[torch.nan], [1.0], [2.0], [4.0]])}
    rows.add(values, torch.tensor([0.0, 1.0, 1.0, 1.0]))
    rows.finish([1, 2, 3], [])
    assert rows.mean("z") == 2
    assert rows.weight == 3


def test_adversaries_act_on_fields_and_not_on_counts():
    rows = put_together(Channel(adversary=SignFlip(clients=[8, 2])), [[0, 1], [2, 3, 4]])
    signs = torch.tensor([1.0, 1, -1, 1, -1], dtype=torch.float64)
    torch.testing.assert_close(rows.mean("z"), (signs[:, None, None] * FIELDS["z"]).mean(dim=0))
    assert float(rows.mean("steps")) == pytest.approx(4.2)


@pytest.mark.parametrize("names", [("z", "squared"), ("squared", "z")])
def test_squared_norms_are_those_of_what_adversaries_send_in_any_order(names):
    z = FIELDS["z"].flatten(1)
    fields = {"z": z, "squared": z.square().sum(1)}
    rows = AllRows(Channel(adversary=SignFlip(clients=[8, 2], scale=3.0)), exchange(), 7)
    rows.add({name: fields[name] for name in names}, torch.ones(5))
    rows.finish(IDS, ["squared"], {"squared": "z"})
    scales = torch.tensor([1.0, 1, -3, 1, -3], dtype=torch.float64)
    torch.testing.assert_close(rows.mean("squared"), (scales.square() * fields["squared"]).mean())
    torch.testing.assert_close(rows.mean("z"), (scales[:, None] * z).mean(0))


@pytest.mark.parametrize("count", [2, 4, 6])  # of six processes, one has no client
def test_processes_come_to_the_bits_of_one(count):
    channel = Channel(aggregate=GeometricMedian(), adversary=SignFlip(clients=[8, 2]))
    alone = put_together(channel, [[0, 1, 2, 3, 4]])

    def run(processes):
        mine = list(range(processes.rank, 5, count))
        rows = put_together(channel, [mine] if mine else [], processes)
        return rows.mean("z"), rows.mean("steps"), rows.weight

    for z, steps, weight in played(count, run):
        assert torch.equal(z, alone.mean("z"))
        assert steps == 4
        assert weight == 5


def test_different_shapes_are_refused():
    rows = AllRows(Channel(aggregate=Median()), exchange(), 7)
    for length in (2, 3):
        rows.add({"z": torch.zeros(1, length)}, torch.ones(1))
    with pytest.raises(ValueError, match=r"sent 'z' in different shapes, \[2\] and \[3\]\. If it holds"):
        rows.finish([0, 1], [])
