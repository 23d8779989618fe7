"""What clients keep between rounds, on the device, the host and disk."""

from __future__ import annotations

import pytest
import torch

from fedlightning.federation.client_states import ClientStates, MemoryMapped, OnDevice, OnHost

TEMPLATE = {"dual": torch.tensor([1.0, 2.0]), "tolerance": torch.tensor(0.5)}


@pytest.fixture(params=["device", "host", "file"])
def states(request, tmp_path):
    storage = {"device": OnDevice(), "host": OnHost(), "file": MemoryMapped(str(tmp_path / "rows"))}[request.param]
    return ClientStates(TEMPLATE, num_clients=100, storage=storage)


def test_unseen_clients_stand_at_the_template(states):
    rows = states.of([3, 97])
    assert torch.equal(rows["dual"], TEMPLATE["dual"].expand(2, 2))
    assert rows["tolerance"].tolist() == [0.5, 0.5]
    assert states.seen == []


def test_written_rows_come_back_and_others_stay(states):
    states.write([7, 2], {"dual": torch.tensor([[7.0, 7.0], [2.0, 2.0]]), "tolerance": torch.tensor([0.7, 0.2])})
    rows = states.of([2, 5, 7])
    assert rows["dual"].tolist() == [[2, 2], [1, 2], [7, 7]]
    torch.testing.assert_close(rows["tolerance"], torch.tensor([0.2, 0.5, 0.7]))
    assert states.all("dual").shape == (100, 2)


def test_rows_grow_with_the_clients_seen(states):
    for client in range(0, 100, 3):
        states.write([client], {"dual": torch.full((1, 2), float(client)), "tolerance": torch.tensor([0.0])})
    assert torch.equal(states.all("dual")[::3, 0], torch.arange(0.0, 100, 3))
    assert torch.equal(states.all("dual")[1], TEMPLATE["dual"])


def test_a_field_not_written_stays_at_the_template(states):
    states.write([4], {"dual": torch.zeros(1, 2)})
    assert states.of([4])["tolerance"].tolist() == [0.5]


def test_rows_are_copies(states):
    states.write([1], {"dual": torch.zeros(1, 2), "tolerance": torch.zeros(1)})
    states.of([1])["dual"].add_(5)
    states.of([2])["dual"].add_(5)
    assert states.of([1, 2])["dual"].tolist() == [[0, 0], [1, 2]]


def test_state_dict_round_trip(states):
    states.write([9, 4], {"dual": torch.randn(2, 2), "tolerance": torch.randn(2)})
    other = ClientStates({k: torch.zeros_like(v) for k, v in TEMPLATE.items()}, num_clients=100)
    other.load_state_dict(states.state_dict())
    for name in TEMPLATE:
        assert torch.equal(other.all(name), states.all(name))


def test_state_of_another_federation_or_shape_is_refused(states):
    with pytest.raises(ValueError, match="federation of 100 clients, the data have 5"):
        ClientStates(TEMPLATE, num_clients=5).load_state_dict(states.state_dict())
    with pytest.raises(ValueError, match="fields"):
        ClientStates({"dual": torch.zeros(3)}, num_clients=100).load_state_dict(states.state_dict())


class Counted(OnHost):
    """Notes how many rows are asked for."""

    def __init__(self):
        self.rows = []

    def allocate(self, field, rows, template):
        self.rows.append(rows)
        return super().allocate(field, rows, template)


def test_stateless_costs_nothing_and_a_million_clients_cost_what_is_seen():
    ClientStates({}, num_clients=10**9).write([5], {})
    storage = Counted()
    states = ClientStates({"dual": torch.zeros(1000)}, num_clients=10**6, storage=storage)
    states.write([999_999], {"dual": torch.ones(1, 1000)})
    assert storage.rows == [1]
    assert states.of([999_999, 0])["dual"].sum() == 1000


def test_files_are_not_left_behind(tmp_path):
    states = ClientStates(TEMPLATE, 10, MemoryMapped(str(tmp_path)))
    states.write([1], {"dual": torch.ones(1, 2), "tolerance": torch.zeros(1)})
    assert list(tmp_path.iterdir()) == []


LATE_FIELD = "channel.0.held"


def test_fields_that_come_late_are_zero_for_all_others(states):
    states.write([7], {"dual": torch.zeros(1, 2)})
    states.write([2, 7], {LATE_FIELD: torch.tensor([[2.0], [7.0]])})
    assert states.of([2, 5, 7])[LATE_FIELD].tolist() == [[2.0], [0.0], [7.0]]
    assert states.of([2])["dual"].tolist() == [[1.0, 2.0]]
    states.write(list(range(30)), {"dual": torch.zeros(30, 2)})  # the memory grows
    assert states.of([2, 5, 7, 29])[LATE_FIELD].tolist() == [[2.0], [0.0], [7.0], [0.0]]
    assert list(states.of([2], start="channel.")) == [LATE_FIELD]


def test_late_fields_are_put_back_to_before_they_came(states):
    states.write([7], {"dual": torch.zeros(1, 2)})
    before = states.before([7, 9])
    states.write([7, 9], {LATE_FIELD: torch.tensor([[7.0], [9.0]])})
    states.restore(before)
    assert states.of([7, 9])[LATE_FIELD].tolist() == [[0.0], [0.0]]
    assert states.seen == [7]


def test_late_fields_of_some_processes_are_loaded(states):
    states.write([1, 2], {"dual": torch.ones(2, 2), LATE_FIELD: torch.tensor([[1.0], [2.0]])})
    other = ClientStates(TEMPLATE, num_clients=100)
    other.write([4], {"dual": torch.ones(1, 2)})  # it has met no client with such a field
    for parts in ([states, other], [other, states]):
        loaded = ClientStates(TEMPLATE, num_clients=100)
        for part in parts:
            loaded.load_state_dict(part.state_dict())
        assert loaded.of([1, 2, 3, 4])[LATE_FIELD].tolist() == [[1.0], [2.0], [0.0], [0.0]]
        assert loaded.of([1, 3, 4])["dual"].tolist() == [[1.0, 1.0], [1.0, 2.0], [1.0, 1.0]]


def test_clients_without_other_states_may_have_late_fields():
    states = ClientStates({}, num_clients=10, device=torch.device("cpu"))
    states.write([3], {LATE_FIELD: torch.tensor([[3.0]])})
    assert states.of([3, 4])[LATE_FIELD].tolist() == [[3.0], [0.0]]
    loaded = ClientStates({}, num_clients=10)
    loaded.load_state_dict(states.state_dict())
    assert loaded.all(LATE_FIELD).sum() == 3.0
