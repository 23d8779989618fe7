"""Rounds that nobody answers, and clients whose numbers are not finite."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning import algorithms as fl
from fedlightning.algorithms import SCAFFOLD, FedAvg, Phase
from fedlightning.data import RoundLoader
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.federation.server import RoundRejectedError
from fedlightning.oracle import Autocast, Sequential, Vectorized
from fedlightning.oracle.checks.check import ladder
from fedlightning.participation import FirstResponders, Poisson, ResponseShare, Selection
from fedlightning.tasks import ClientNumbers
from tests.support.federations import loop_for, quadratic, responders, rounds_of, run
from tests.support.over_the_wire import FederationOverTheWire
from tests.support.small import Line, clients, trainer


def test_a_round_nobody_answers_is_skipped_with_a_warning(tmp_path):
    task = quadratic(fl.SCAFFOLD(0.05), num_clients=30)
    before = torch.cat([task.x, task.y]).detach().clone()
    data = responders(size=5, responses=ResponseShare(0.0, 0.0), retries=1)
    run_ = trainer(tmp_path, max_steps=2, precision="64-true")
    with pytest.warns(RuntimeWarning, match=r"Round \d was skipped: of 10 clients invited, too few answered"):
        run_.fit(task, data)
    assert run_.global_step == 2
    assert torch.equal(torch.cat([task.x, task.y]), before)
    assert task.traffic == (0, 2 * 10 * 16)
    assert run_.callback_metrics["skipped"] == 1


def test_a_round_for_which_nobody_is_drawn_says_what_to_raise():
    data = ClientNumbers(30, local_steps=1, participation=Poisson(1e-9))
    with pytest.warns(RuntimeWarning, match=r"^Round 1 was skipped: nobody was drawn\. Raise the rate of the part"):
        trainer(max_steps=1, precision="64-true").fit(quadratic(fl.FedAvg(0.05), num_clients=30), data)
    two = ClientNumbers(30, local_steps=1, participation=Poisson(1e-9))
    with pytest.warns(RuntimeWarning, match=r"^Round 1 was skipped: nobody was drawn in phase 1 of 2\."):
        trainer(max_steps=1, precision="64-true").fit(quadratic(fl.CDMA_ONE(0.05), num_clients=30), two)


class OnlyTheFirstRound(ResponseShare):
    """Then nobody answers."""

    def arrivals(self, ids, round_index, draw):
        return ids if round_index == 0 else []


def test_a_skipped_round_does_not_move_a_server_optimizer(tmp_path):
    ends = []
    for rounds in (1, 2):
        task = quadratic(
            fl.FedAvg(0.05), num_clients=30, server_optimizer=partial(torch.optim.SGD, lr=0.5, momentum=0.9)
        )
        data = responders(size=5, responses=OnlyTheFirstRound(), retries=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            trainer(tmp_path, max_steps=rounds, precision="64-true").fit(task, data)
        ends.append(torch.cat([task.x, task.y]).detach())
    assert torch.equal(*ends)


class SecondPhaseUnheard(FirstResponders):
    """Nobody answers the second invitation of a round."""

    def select(self, num_clients, seed, round_index, phase):
        heard = super().select(num_clients, seed, round_index, phase)
        return heard if phase == 0 else Selection([], 15)


def test_a_round_skipped_in_its_second_phase_counts_what_was_sent_before():
    algorithm = fl.CDMA_ONE(0.05)
    data = responders(size=5, responses=ResponseShare(0.6, 0.6))
    object.__setattr__(data, "participation", SecondPhaseUnheard(5, ResponseShare(0.6, 0.6)))

    batch = next(iter(RoundLoader(data, algorithm.phases))).place(torch.device("cpu"), torch.float64)
    loop = loop_for(quadratic(algorithm, num_clients=30))
    before = loop.point.clone()
    with pytest.warns(RuntimeWarning, match=r"Round 1 was skipped: of 15 clients invited in phase 2 of 2, too few"):
        result = loop.run(batch, Autocast("cpu"))
    assert result.metrics["skipped"] == 1
    assert torch.equal(loop.point, before)
    assert loop.upload == 3 * 8  # the mean operator of those who answered, used by nobody
    assert loop.download == 5 * 8 + 15 * 16  # the point; then the point and the mean operator


class Twice(FedAvg):
    """The clients step in both phases."""

    times = 2

    @property
    def phases(self):
        return self.times * (Phase(self.broadcast, self.client_update, self.server_update),)


class Thrice(Twice):
    times = 3


class Counting(FederatedLightningModule):
    """A local buffer counts the steps of each client; in a second phase clients may return NaN."""

    def __init__(self, algorithm):
        super().__init__(algorithm)
        self.line = nn.Linear(3, 1)
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("limit", torch.tensor(torch.inf))

    def objective(self, batch):
        x, y = batch
        self.steps.add_(1.0)
        loss = (self.line(x).squeeze(1) - y).square().mean()
        return loss * torch.where(self.steps > self.limit, torch.nan, 1.0)


def three_rounds(algorithm):
    sets = [TensorDataset(torch.randn(8, 3), torch.randn(8)) for _ in range(4)]
    data = FederatedDataModule.from_datasets(sets, batch_size=4, local_steps=3, rounds_per_epoch=3)
    data.prepare_data()
    data.setup("fit")
    return [batch.place(torch.device("cpu"), torch.float32) for batch in RoundLoader(data, algorithm.phases)]


def test_a_client_that_one_phase_leaves_out_takes_back_the_phase_before():
    algorithm = Thrice(0.05)
    first, second, _ = three_rounds(algorithm)
    federation = FederationOverTheWire(Counting(algorithm), 4, Sequential(), buffers="local")
    tables = [federation.clients[i].runner.clients.table for i in range(4)]

    def kept():
        return [table.states.of([i])["buffers"].tolist() for i, table in enumerate(tables)]

    federation.run(first, Autocast("cpu"))
    before = kept()
    everyone, some, nobody = second.cohorts
    some = replace(some, members=some.members[2:], answering=2)
    nobody = replace(nobody, members=(), answering=0)
    with pytest.warns(RuntimeWarning, match="Round 2 was skipped"):
        federation.run(RoundBatch(second.index, (everyone, some, nobody), second.samples), Autocast("cpu"))
    assert kept() == before


@pytest.mark.parametrize("how", ["skipped", "overflow", "rejected"])
def test_a_round_that_fails_in_its_second_phase_leaves_local_buffers_as_they_were(how):
    algorithm = Twice(0.05)
    first, second, third = three_rounds(algorithm)
    task = Counting(algorithm)
    loop = loop_for(task, Sequential(), buffers="local")
    table = loop.runner.clients.table
    loop.run(first, Autocast("cpu"))
    before = table.states.of(range(4))
    if how == "skipped":
        nobody = replace(second.cohorts[1], members=(), answering=0)
        with pytest.warns(RuntimeWarning, match="Round 2 was skipped"):
            loop.run(RoundBatch(second.index, (second.cohorts[0], nobody), second.samples), Autocast("cpu"))
    else:
        task.limit.fill_(before["buffers"].max() + 3)  # where the second phase begins
        with nullcontext() if how == "overflow" else pytest.raises(RoundRejectedError):
            loop.run(second, Autocast("cpu"), undo_overflow=how == "overflow")
        task.limit.fill_(torch.inf)
    after = table.states.of(range(4))
    assert all(torch.equal(after[name], values) for name, values in before.items())
    loop.run(third, Autocast("cpu"))
    assert all(not torch.equal(table.states.of(range(4))[name], values) for name, values in before.items())


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
    assert message.startswith("NaN or infinite numbers came from clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 4 others")
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
