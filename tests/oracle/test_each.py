"""Replays of one client's gradient are every client's own gradient, on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlightning.algorithms import SCAFFOLD
from fedlightning.oracle import Cost, Sequential, Vectorized, each
from fedlightning.oracle.errors import BatchedError, ObjectiveError
from fedlightning.oracle.randomness import Randomness
from fedlightning.oracle.recording import waiting
from tests.support.cohorts import (
    NETS,
    a_right_and_a_wrong_step,
    assert_equal_evaluations,
    classify,
    conv,
    setting,
    turns_of,
)
from tests.support.small import Line, Normed, fitted, regression_data


class Characters(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(5, 4, num_layers=2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", [*NETS, "lstm"])
def test_every_network_equals_plain_evaluation(name, threads):
    make, shape = (Characters, (7, 5)) if name == "lstm" else NETS[name]
    objective, w, v, b, data = setting(make(), shape, torch.float64)
    plain = Sequential().evaluator(objective, 1)
    replayed = Vectorized(backward="each", threads=threads).evaluator(objective, 100)
    for _ in range(3):
        assert_equal_evaluations(replayed(w, v, b, data), plain(w, v, b, data))
        w = w + 0.1 * torch.randn_like(w)
        data = (torch.randn_like(data[0]), data[1].flip(1))


def test_an_lstm_in_float32_keeps_what_its_backward_pass_needs():
    objective, *arguments = setting(Characters(), (7, 5), torch.float32)
    plain, replayed = Sequential().evaluator(objective, 1), Vectorized(backward="each").evaluator(objective, 100)
    for _ in range(2):
        assert_equal_evaluations(replayed(*arguments), plain(*arguments), 1e-6)


def read(value):
    def loss(net, batch):
        x, y = batch
        error = F.cross_entropy(net(x), y)
        return error * (2.0 if value(error, x) else 1.0)

    return loss


READING = {
    "item": read(lambda error, x: error.item() > 1),
    "a branch": read(lambda error, x: error > 1),
    "a number": read(lambda error, x: float(error.detach()) > 1),
    "a list": read(lambda error, x: x.tolist()),
    "an array": read(lambda error, x: x.numpy().sum() > 0),
    "numpy": read(lambda error, x: np.asarray(x).sum() > 0),
    "noise": lambda net, batch: classify(net, batch) * torch.rand(()),
    "a mask": lambda net, batch: net(batch[0])[batch[1] > 0].square().mean(),
    "places": lambda net, batch: net(batch[0])[(batch[1] > 0).nonzero().flatten()].square().mean(),
}


@pytest.mark.parametrize("what", READING)
def test_what_depends_on_numbers_is_not_replayed(what):
    objective, *arguments = setting(conv(), (2, 8, 8), loss=READING[what])
    with pytest.raises(BatchedError):
        Vectorized(backward="each").evaluator(objective, 100)(*arguments)


@pytest.mark.parametrize("make", [lambda **how: Line(SCAFFOLD(0.05), dropout=0.0, **how), Normed])
def test_a_fit_is_that_of_plain_evaluation(make):
    tasks = []
    for oracle in (Sequential(), Vectorized(backward="each", threads=2), Vectorized(backward="each", chunk_size=3)):
        torch.manual_seed(0)
        tasks.append(make(oracle=oracle))
        fitted(tasks[-1], regression_data(local_steps=25), limit_val_batches=0)
    assert tasks[1].run.simulation.runner.oracle_selection.oracle.backward == "each"
    for task in tasks[1:]:
        for name, value in task.state_dict().items():
            torch.testing.assert_close(value, tasks[0].state_dict()[name])


def test_hooks_on_tensors_are_replayed():
    class Reversed(Line):
        def objective(self, batch):
            x, y = batch
            output = self.head(self.body(x))
            output.register_hook(lambda gradient: 0.5 * gradient)
            return F.mse_loss(output.squeeze(1), y)

    tasks = []
    for oracle in (Sequential(), Vectorized(backward="each", threads=2)):
        torch.manual_seed(0)
        tasks.append(Reversed(dropout=0.0, oracle=oracle))
        fitted(tasks[-1], regression_data(local_steps=25), limit_val_batches=0)
    assert tasks[1].run.simulation.runner.oracle_selection.oracle.backward == "each"
    torch.testing.assert_close(tasks[1].body[0].weight, tasks[0].body[0].weight)


def test_a_fit_with_dropout_is_that_of_plain_evaluation():
    tasks = []
    for oracle in (Sequential(), Vectorized(backward="each", threads=2), Vectorized(backward="each", chunk_size=3)):
        torch.manual_seed(0)
        tasks.append(Line(oracle=oracle))
        fitted(tasks[-1], regression_data(local_steps=25), limit_val_batches=0)
    for task in tasks[1:]:
        assert task.run.simulation.runner.oracle_selection.oracle.backward == "each"
        torch.testing.assert_close(task.head.weight, tasks[0].head.weight)


def test_numbers_from_a_generator_of_the_objectives_own_are_drawn_plainly():
    class Own(Line):
        def objective(self, batch):
            x, y = batch
            return super().objective((x + torch.randn(x.shape, generator=torch.Generator().manual_seed(3)), y))

    task = Own(oracle=Vectorized(backward="each"))
    fitted(task, regression_data(local_steps=25))
    assert isinstance(task.run.simulation.runner.oracle_selection.oracle, Sequential)


@pytest.mark.parametrize("options", [{"compile": True}, {"replay": False}])
def test_options_that_exclude_replays_are_refused(options):
    with pytest.raises(ValueError, match="backward='each'"):
        Vectorized(backward="each", **options)


@pytest.mark.parametrize(
    ("threads", "dim", "chunk"),
    [(2, 10**7, 2), (2, 2 * 10**6, 8), (2, 10**6, 16), (3, 10**6, 15), (3, 10**8, 3), (2, 10**4, 104)],
)
def test_chunks_keep_all_threads_and_are_small_where_clients_are_large(threads, dim, chunk):
    for activation_bytes in (1000, 10**8):  # which few clients have at a time
        assert Vectorized(backward="each", threads=threads).chunk(Cost(dim, 4, activation_bytes)) == chunk


def test_clients_with_batches_of_other_shapes_are_recorded_anew():
    objective, w, v, b, data = setting(Characters(), (7, 5), torch.float64)
    plain = Sequential().evaluator(objective, 1)
    replayed = Vectorized(backward="each", threads=2).evaluator(objective, 100)
    for cut in (7, 4, 7, 2):
        shorter = (data[0][:, :, :cut], data[1])
        assert_equal_evaluations(replayed(w, v, b, shorter), plain(w, v, b, shorter))


def test_a_batch_that_is_written_into_late_is_written_once():
    class Late(Line):
        def objective(self, batch):
            if self.global_step >= 2:
                batch[0].mul_(0.5)
            return super().objective(batch)

    tasks = []
    for oracle in (Sequential(), Vectorized(backward="each", threads=2)):
        torch.manual_seed(0)
        tasks.append(Late(dropout=0.0, oracle=oracle))
        data = regression_data(local_steps=25)
        data.rounds_per_epoch = 2
        fitted(tasks[-1], data, max_steps=4, limit_val_batches=0)
    torch.testing.assert_close(tasks[1].head.weight, tasks[0].head.weight)


def test_an_objective_that_begins_to_write_into_a_parameter_is_refused():
    class Clamping(Line):
        def objective(self, batch):
            if self.global_step >= 2:
                with torch.no_grad():
                    self.head.weight.clamp_(-0.05, 0.05)
            return super().objective(batch)

    data = regression_data(local_steps=25)
    data.rounds_per_epoch = 4
    with pytest.raises(ObjectiveError, match="has begun to write into a trainable parameter"):
        fitted(Clamping(dropout=0.0, oracle=Vectorized(backward="each", threads=2)), data, max_steps=4)


@pytest.fixture
def turns(monkeypatch):
    """Numbers of clients and threads of all turns in which steps are taken."""
    return turns_of(each, monkeypatch)


def steps_along(oracle, net, shape, count):
    """The point where steps on different batches lead, and all losses."""
    objective, w, v, b, (x, y) = setting(net, shape, torch.float64)
    evaluate = oracle.evaluator(objective, 100)
    batches = [(x + 0.1 * k, y) for k in range(count)]
    if not isinstance(oracle, Vectorized):
        losses = []
        for batch in batches:
            result = evaluate(w, v, b, batch)
            w, b = w - 0.1 * result.g, result.buffers
            losses.append(result.loss)
        return w, losses
    with evaluate.steps_in_place(w, v, "both", 0.1) as step:
        losses = []
        for batch in batches:
            result = step(b, batch, Randomness(range(len(w)), 0))
            b = result.buffers
            losses.append(result.loss)
    return w, losses


@pytest.mark.parametrize(("name", "per_turn"), [("conv", [3] * 2), ("batch-norm", [3] * 20)])
def test_clients_take_steps_in_a_row_unless_their_buffers_are_read_between(name, per_turn, turns):
    make, shape = NETS[name]
    results = []
    for oracle in (Sequential(), Vectorized(backward="each", threads=2)):
        torch.manual_seed(0)
        results.append(steps_along(oracle, make(), shape, 20))
    torch.testing.assert_close(results[1], results[0])
    assert turns == [(clients, 2) for clients in per_turn]


def test_batches_of_several_shapes_wait_together(turns):
    objective, w, v, b, (x, y) = setting(Characters(), (7, 5), torch.float64)
    plain, point = Sequential().evaluator(objective, 1), w.clone()
    with Vectorized(backward="each", threads=2).evaluator(objective, 100).steps_in_place(w, v, "both", 0.1) as step:
        for cut in (7, 4, 7, 2):
            step(b, (x[:, :, :cut], y), None)
            point = point - 0.1 * plain(point, v, b, (x[:, :, :cut], y)).g
    torch.testing.assert_close(w, point)
    assert len(turns) == 1


def test_a_step_that_waits_keeps_its_samples():
    objective, w, v, b, (x, y) = setting(conv(), (2, 8, 8), torch.float64)
    plain, point, shared = Sequential().evaluator(objective, 1), w.clone(), torch.empty_like(x)
    with Vectorized(backward="each", threads=2).evaluator(objective, 100).steps_in_place(w, v, "both", 0.1) as step:
        for k in range(3):
            torch.mul(x, k, out=shared)
            step(b, (shared, y), None)
            point = point - 0.1 * plain(point, v, b, (shared, y)).g
    torch.testing.assert_close(w, point)


def test_samples_that_share_memory_are_written_into_for_both_names(turns):
    """A copy of each would keep the one from seeing what is written into the other."""

    def halved(net, batch):
        x, y, same = batch
        same.mul_(0.5)
        return classify(net, (x, y))

    objective, w, v, b, (x, y) = setting(conv(), (2, 8, 8), torch.float64, halved)
    plain, point = Sequential().evaluator(objective, 1), w.clone()
    with Vectorized(backward="each", threads=2).evaluator(objective, 100).steps_in_place(w, v, "both", 0.1) as step:
        for k in range(1, 3):
            ours, theirs = k * x, k * x
            step(b, (ours, y, ours), None)
            point = point - 0.1 * plain(point, v, b, (theirs, y, theirs)).g
    torch.testing.assert_close(w, point)
    assert len(turns) == 2


def test_few_steps_wait_if_their_samples_are_large(turns, monkeypatch):
    monkeypatch.setattr(waiting, "MOST_WAITING_BYTES", 3 * 2 * 8 * 8 * 8 * 4)
    steps_along(Vectorized(backward="each", threads=1), conv(), (2, 8, 8), 7)
    assert len(turns) == 7


def test_what_fails_in_a_step_that_has_waited_is_said():
    objective, w, v, b, (x, y) = setting(conv(), (2, 8, 8))
    evaluate = Vectorized(backward="each").evaluator(objective, 100)
    with pytest.raises(BatchedError, match="Target 99 is out of bounds"):
        a_right_and_a_wrong_step(evaluate, w, v, b, (x, y))


def test_an_error_between_steps_stays_as_it_is():
    objective, w, v, b, data = setting(conv(), (2, 8, 8))
    evaluate, start = Vectorized(backward="each").evaluator(objective, 100), w.clone()

    def take_a_step():
        with evaluate.steps_in_place(w, v, "both", 0.1) as step:
            step(b, data, None)
            raise LookupError("no more data")

    with pytest.raises(LookupError, match="no more data"):
        take_a_step()
    assert torch.equal(w, start), "nobody asks any more for a step that waits"
