"""What passes between server and clients: weights from the roster, and values spread over clients."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from fedlightning.algorithms.base import PerClient, Point
from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.federation.protocol import (
    Answer,
    ClientValues,
    Parameter,
    Precision,
    Request,
    Roster,
    Stamp,
    described,
)

ROSTER = Roster(torch.tensor([3, 5, 2]))


def test_weights_come_from_the_roster():
    assert ROSTER.num_clients == 3
    assert ROSTER.weights([2, 0], by_samples=True).tolist() == [2, 3]
    assert ROSTER.weights([2, 0], by_samples=False).tolist() == [1.0, 1.0]
    assert ROSTER.largest_weight(by_samples=True) == 5
    assert ROSTER.largest_weight(by_samples=False) == 1.0
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


def test_a_request_moves_with_its_message():
    per_client = PerClient(torch.zeros(2), torch.tensor([1]), torch.ones(1, 2))
    request = Request(Stamp(0, 0), 1, Point(torch.zeros(2)), torch.zeros(2), torch.zeros(1))
    for message in (Point(torch.zeros(2)), Point(per_client), None):
        moved = replace(request, message=message).placed(torch.device("meta"))
        z = None if message is None else moved.message.z
        parts = (z.default, z.client_ids, z.values) if isinstance(z, PerClient) else (z,)
        assert all(part is None or part.is_meta for part in (*parts, moved.point, moved.buffers))
        assert (message is None) == (moved.message is None)


def test_a_precision_holds_on_whatever_device_a_client_has():
    autocast = Precision(torch.bfloat16, 8.0).on(torch.device("cpu"))
    assert (autocast.device_type, autocast.dtype, autocast.scale) == ("cpu", torch.bfloat16, 8.0)
    assert Precision().on(torch.device("cuda", 1)).device_type == "cuda"


def test_parameters_are_described_in_the_order_of_the_point():
    task = nn.ModuleDict({"max": nn.Linear(2, 3, bias=False), "min": nn.Linear(1, 1)}).double()
    found = described(ParameterSpace(task, ("max",)).shared, task)
    assert found[0] == Parameter("min.weight", (1, 1), torch.float64)
    assert [each.name for each in found] == ["min.weight", "min.bias", "max.weight"]


def test_several_clients_of_one_machine_receive_what_is_theirs():
    own = PerClient(torch.tensor([9.0]), torch.tensor([4, 1]), torch.tensor([[4.0], [1.0]]))
    request = Request(Stamp(0, 0), 1, Point(own), torch.zeros(1), torch.zeros(0))
    sent = request.to(1, 2).message.z
    assert sent.of([1, 2]).tolist() == [[1.0], [9.0]]
    assert 4.0 not in sent.values
    assert sent.client_ids.tolist() == [1, 2]
