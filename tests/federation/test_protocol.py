"""What passes between server and clients: weights from the roster, and values spread over clients."""

from __future__ import annotations

import torch

from fedlightning.federation.protocol import Answer, ClientValues, Roster, Stamp

ROSTER = Roster(torch.tensor([3, 5, 2]))


def test_weights_come_from_the_roster():
    assert ROSTER.num_clients == 3
    assert ROSTER.weights([2, 0], by_samples=True).tolist() == [2, 3]
    assert ROSTER.weights([2, 0], by_samples=False).tolist() == [1.0, 1.0]
    assert ROSTER.total_weight(by_samples=True) == 3 + 5 + 2
    assert ROSTER.total_weight(by_samples=False) == 3.0


def test_a_roster_without_buffers_has_an_empty_start():
    assert (ROSTER.buffers, ROSTER.start_buffers.shape) == ((), (0,))


def test_values_are_spread_over_all_clients():
    values = ClientValues([3, 1], torch.tensor([0.5, 2.0]), torch.tensor([4.0, 1.0]))
    assert values.spread(5).nan_to_num(-1.0).tolist() == [-1.0, 2.0, -1.0, 0.5, -1.0]


def test_nan_is_a_result_unless_the_metric_is_undefined():
    values, samples = torch.tensor([1.0, torch.nan]), torch.ones(2)
    assert len(ClientValues([0, 1], values, samples).defined) == 2
    assert ClientValues([0, 1], values, samples, nan_is_undefined=True).defined.tolist() == [1.0]


def test_answers_belong_to_a_round_and_a_phase():
    assert Stamp(2, 0) == (2, 0)
    assert Stamp(2, 0) != Stamp(2, 1)
    answer = Answer(Stamp(0, 0), [4], None, torch.zeros(1, 0))
    assert (answer.client_ids, answer.metrics, answer.tally, answer.evaluated, answer.sound) == (
        [4],
        {},
        {},
        None,
        None,
    )
