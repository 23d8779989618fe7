"""Mistakes of a new algorithm, and clients whose numbers are not finite."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import SCAFFOLD, FedAvg, LocalGradientAlgorithm, Reply
from fedlightning.algorithms.base import Algorithm
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.oracle.check import ladder
from tests.support.federations import loop_for, quadratic, rounds_of, run
from tests.support.small import Line, clients, trainer


@dataclass(frozen=True)
class Server:
    z: Tensor


@dataclass(frozen=True, eq=False)
class Mine(LocalGradientAlgorithm):
    """Federated averaging as a user would write it."""

    def init_server(self, z):
        return Server(z)

    def broadcast(self, server):
        return server

    def client_update(self, message, state, oracle):
        w, v = self.local_steps(message.z, oracle)
        return Reply(Server(w), personal=v, point=w)

    def server_update(self, server, update):
        return update


class Undecorated(Mine):
    """Inherits its fields."""


class Remembers(Mine):
    def server_update(self, server, update):
        self.momentum = update.z - server.z
        return update


@dataclass
class Thawed(Algorithm):
    lr: float = 0.1
    init_server, broadcast = Mine.init_server, Mine.broadcast
    client_update, server_update = Mine.client_update, Remembers.server_update
    local_steps = Mine.local_steps
    local_optimizer = local_clip = None


class Bare(Mine):
    def client_update(self, message, state, oracle):
        return self.local_steps(message.z, oracle)[0]


class BareUpload(Mine):
    def client_update(self, message, state, oracle):
        return Reply(self.local_steps(message.z, oracle)[0])


class Averaged(Mine):
    def client_update(self, message, state, oracle):
        return Reply(Server(self.local_steps(message.z, oracle)[0].mean(0)))


class Packed(Mine):
    def client_update(self, message, state, oracle):
        return Reply(Server(self.local_steps(message.z, oracle)))


class Short(Mine):
    def server_update(self, server, update):
        return Server(update.z[:3])


class BareServer(Mine):
    def server_update(self, server, update):
        return update.z


def fit(algorithm, **options):
    data = FederatedDataModule.from_datasets(clients(), batch_size=4, local_steps=2, rounds_per_epoch=2)
    trainer(max_steps=2, **options).fit(Line(algorithm, oracle=Sequential()), data)


MISTAKES = {
    "momentum on self": (Remembers(0.1), AttributeError, r"Remembers sets self\.momentum: an algorithm keeps nothing"),
    "not frozen": (Thawed(), AttributeError, r"Thawed sets self\.momentum: an algorithm keeps nothing on itself"),
    "client": (Bare(0.1), TypeError, r"Bare\.client_update returned a Tensor; expected Reply\(update="),
    "upload": (BareUpload(0.1), TypeError, r"client_update returned Reply\(update=Tensor\); expected an object of"),
    "packed": (
        Packed(0.1),
        TypeError,
        r"Packed\.client_update returned update\.z of type tuple; expected a tensor \[1, ",
    ),
    "rows": (Averaged(0.1), ValueError, r"client_update returned update\.z of shape \[41\]; expected \[1, \.\.\.\]"),
    "shape": (Short(0.1), ValueError, r"Short\.server_update returned z of shape \[3\]; expected \[41\] as before"),
    "server": (
        BareServer(0.1),
        TypeError,
        r"BareServer\.server_update returned a Tensor; expected a Server as init_server",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_slip_in_a_new_algorithm_is_named(mistake):
    algorithm, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message):
        fit(algorithm)


def test_an_algorithm_that_is_no_dataclass_of_its_own_runs():
    fit(Undecorated(0.1))


def bad(count, all_clients=4):
    sets = clients(all_clients)
    for i in range(count):
        x, y = sets[i].tensors
        sets[i] = TensorDataset(torch.full_like(x, torch.nan), y)
    return sets


def caught(sets, rounds=4, **options):
    data = FederatedDataModule.from_datasets(sets, batch_size=4, local_steps=2, rounds_per_epoch=rounds, **options)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trainer(max_steps=rounds).fit(Line(FedAvg(0.05), oracle=Vectorized()), data)
    return [str(w.message) for w in found if "left out" in str(w.message)]


def test_a_client_that_returns_nan_is_named_once():
    (message,) = caught(bad(1))
    assert message.startswith("NaN or infinite numbers came from client 0: left out of the mean whenever")
    assert caught(bad(0)) == []


def test_many_clients_that_return_nan_are_no_flood():
    (message,) = caught(bad(14, all_clients=16))
    assert message.startswith("NaN or infinite numbers came from client 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 4 others")
    assert message.endswith("Further clients are not named.")


class Recorded:
    """One of two processes, in words: what it asks of the other, and where the other stands on the ladder."""

    count, rank = 2, 0

    def __init__(self, events, other=None):
        self.events, self.other = events, other

    def sum(self, tensor):
        self.events.append(f"sum {list(tensor.shape)}")
        return tensor

    def largest(self, value):
        self.events.append("largest")
        return value if self.other is None else max(value, self.other)

    def collect(self, value):
        self.events.append("collect")
        return [value]

    def agree(self, value):
        self.events.append("agree")
        return value


def rounds_with(monkeypatch, falls_back, other=None):
    """What two rounds ask of other processes, the clients' replies among it; perhaps one by one from the second on."""
    algorithm, events = SCAFFOLD(0.05), []
    task = quadratic(algorithm)
    original, task.branch = task.objective, False
    task.objective = lambda batch: original(batch) * (2 if task.branch and original(batch).item() == 0 else 1)
    processes = Recorded(events)
    loop = loop_for(task, Vectorized(chunk_size=2), processes=processes, self_check="first")
    ask = loop.loop.transport.ask

    def noting(request, invited):
        events.append("clients begin")
        for answer in ask(request, invited):
            events.append("answer")
            yield answer
        events.append("clients end")

    monkeypatch.setattr(loop.loop.transport, "ask", noting)
    first, second, third = rounds_of(algorithm, 3)
    run(loop, [first])
    events.clear()
    task.branch = falls_back
    run(loop, [second])
    assert isinstance(loop.oracle, Sequential) == falls_back
    processes.other = other
    run(loop, [third])
    return loop, events


def test_processes_exchange_nothing_while_clients_compute(monkeypatch):
    """Else a process that falls back to a slower way would wait for others that do not, or they for it."""
    _, steady = rounds_with(monkeypatch, falls_back=False)
    _, falling = rounds_with(monkeypatch, falls_back=True)
    end = falling.index("clients end")
    assert falling[: end + 1] == [
        "clients begin",
        "largest",  # where the others stand on the ladder, before the first client computes
        *["answer"] * 6,  # six clients one by one, as the first chunk of two falls back
        "clients end",
    ]
    assert [event for event in falling if event != "answer"] == [event for event in steady if event != "answer"]


def test_a_process_follows_another_down_the_ladder_before_the_next_round(monkeypatch):
    loop, _ = rounds_with(monkeypatch, falls_back=False)
    assert isinstance(loop.oracle, Vectorized)
    lowest = len(ladder(loop.oracle, on_cpu=True)) - 1
    loop, _ = rounds_with(monkeypatch, falls_back=False, other=lowest)
    assert loop.oracle == Sequential()


def test_a_key_that_one_client_s_dict_lacks_is_named():
    """Each client is a chunk of its own here, so nobody sees both dicts side by side."""
    algorithm = FedAvg(0.05)
    task = quadratic(algorithm)
    original = task.objective
    task.objective = lambda batch: {"loss": original(batch), **({} if batch[0] == 3 else {"margin": 1.0})}
    loop = loop_for(task, Sequential())
    point = loop.point.clone()
    with pytest.raises(
        ValueError, match=r"'margin' came from some clients of a cohort only\. The dict of an objective must"
    ):
        run(loop, rounds_of(algorithm, 1))
    assert torch.equal(loop.point, point)
