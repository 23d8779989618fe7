"""What a client replies must not depend on which clients are computed beside it."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from fedlightning import FederatedDataModule
from fedlightning.algorithms import SCAFFOLD, FedAvg, LocalGradientAlgorithm, Phase, Point, Reply
from fedlightning.oracle import Auto, Sequential, Vectorized
from fedlightning.participation import Participation
from tests.support.small import Line, clients, fitted, regression_data


@dataclass(frozen=True)
class Kept:
    moved: Tensor  # [d]


class Changed(FedAvg):
    """FedAvg whose clients send something else."""

    def sent(self, d, oracle):
        """What is sent in place of the moves ``[S, d]``."""
        return d

    def client_update(self, message, state, oracle):
        reply = super().client_update(message, state, oracle)
        return replace(reply, update=Point(message.z + self.sent(reply.point - message.z, oracle)))


class AllNormalised(Changed):
    def sent(self, d, oracle):
        return d / d.norm()


class EachNormalised(Changed):
    def sent(self, d, oracle):
        return d / d.norm(dim=1, keepdim=True)


class Centred(Changed):
    def sent(self, d, oracle):
        return d - d.mean(0)


class OfTheLargest(Changed):
    def sent(self, d, oracle):
        return d / d.abs().max()


class Shared(Changed):
    def sent(self, d, oracle):
        return d / len(d)


class Noisy(Changed):
    def sent(self, d, oracle):
        return d + 0.1 * torch.randn_like(d)


class NoisyInPython(Changed):
    def sent(self, d, oracle):
        return d * random.random()


class NoisyInNumPy(Changed):
    def sent(self, d, oracle):
        return d * float(np.random.rand())


class OwnNoise(Changed):
    def sent(self, d, oracle):
        return d + 0.1 * oracle.uniform(d.shape[1]).to(d.dtype)


class MixedState(FedAvg):
    def init_client(self, z):
        return Kept(torch.zeros_like(z))

    def client_update(self, message, state, oracle):
        reply = super().client_update(message, state, oracle)
        moved = reply.point - message.z
        return replace(reply, state=Kept(state.moved + moved.mean(0).expand_as(moved)))


class MixedLog(FedAvg):
    def client_update(self, message, state, oracle):
        reply = super().client_update(message, state, oracle)
        return replace(reply, log={"length": (reply.point - message.z).norm().expand(oracle.num_clients)})


class DrawnToTheMean(FedAvg):
    """FedDyn, whose clients use the mean of their corrections, which are equal in the first round."""

    def init_client(self, z):
        return Kept(torch.zeros_like(z))

    def client_update(self, message, state, oracle):
        h = state.moved.mean(0)
        w, _ = self.local_steps(message.z, oracle, lambda w, g: g - h + 0.1 * (w - message.z))
        return Reply(Point(w), state=Kept(state.moved - 0.1 * (w - message.z)), point=w)


class FromTheMeanOfBlocks(FedAvg):
    """Begins at the mean of the personal blocks, which are equal in the first round."""

    def client_update(self, message, state, oracle):
        v = oracle.personal.mean(0).expand_as(oracle.personal)
        for batch in oracle.batches():
            _, v = oracle.step_personal(message.z.expand(oracle.num_clients, -1), v, batch, self.personal_lr)
        return Reply(Point(message.z.expand(oracle.num_clients, -1)), personal=v)


class TillAllAreDone(FedAvg):
    """Goes on with clients that are done until the last one is."""

    def client_update(self, message, state, oracle):
        w, first = message.z.expand(oracle.num_clients, -1), None
        for batch in oracle.batches():
            g = oracle(w, batch)
            length = g.norm(dim=1)
            first = length if first is None else first
            if (length < 0.6 * first).all():
                break
            w = w - self.lr * g
        return Reply(Point(w), point=w)


class OfTheLongest(Changed):
    """Weighs clients by the largest number of steps."""

    def sent(self, d, oracle):
        return d * (oracle.steps.max() / oracle.steps)[:, None]


class ClippedByAll(FedAvg):
    """Clips gradients by the norm of all rows, with a small step."""

    def client_update(self, message, state, oracle):
        w = message.z.expand(oracle.num_clients, -1)
        for batch in oracle.batches():
            g = oracle(w, batch)
            w = w - self.lr * g * (1 / g.norm()).clamp(max=1)
        return Reply(Point(w), point=w)


class SeedsByRow(Changed):
    """Draws by the row, which is another client's in another chunk."""

    def sent(self, d, oracle):
        generators = (torch.Generator().manual_seed(row) for row in range(len(d)))
        return d + torch.stack([torch.randn(d.shape[1], generator=each) for each in generators])


class LostBeside(Changed):
    """Is lost beside a client that moves far."""

    def sent(self, d, oracle):
        return d if d.max() < 10 else d * float("nan")


class OfTheBias(Changed):
    """Mixes a single number."""

    def sent(self, d, oracle):
        return torch.cat([d[:, :-1], d[:, -1:].mean(0, keepdim=True).expand(len(d), 1)], dim=1)


class TwentyInnerSteps(FedAvg):
    def client_update(self, message, state, oracle):
        w = message.z.expand(oracle.num_clients, -1)
        for batch in oracle.batches():
            for _ in range(20):
                g = oracle(w, batch)
                w = w - self.lr * (g - g.mean(0))
        return Reply(Point(w), point=w)


class NoisyAndMixed(Changed):
    def sent(self, d, oracle):
        return d.mean(0) + torch.randn_like(d)


class Counted(FedAvg):
    """Logs another number at every call."""

    calls = count()

    def client_update(self, message, state, oracle):
        reply = super().client_update(message, state, oracle)
        return replace(reply, log={"call": torch.full((oracle.num_clients,), float(next(self.calls)))})


class CountedAndMixed(Counted, Centred):
    pass


class ByLabels(FedAvg):
    """Takes longer steps for clients with more positive samples."""

    def client_update(self, message, state, oracle):
        w = message.z.expand(oracle.num_clients, -1)
        for batch in oracle.batches():
            x, y = batch.data
            assert (x.shape[-1], x.shape[:2]) == (6, y.shape)
            share = (y > 0).float().mean(dim=1, keepdim=True)
            w = batch.keep(w - self.lr * (1 + share) * oracle(w, batch), w)
        return Reply(Point(w), point=w)


class LabelsOfAll(FedAvg):
    """Takes longer steps where all clients together have more positive samples."""

    def client_update(self, message, state, oracle):
        w = message.z.expand(oracle.num_clients, -1)
        for batch in oracle.batches():
            w = w - self.lr * (1 + (batch.data[1] > 0).float().mean()) * oracle(w, batch)
        return Reply(Point(w), point=w)


class HalvedWithTheLongest(Changed):
    def sent(self, d, oracle):
        return d / 2 if d.norm(dim=1).max() > 0.7 else d


class HalvedWithTheShortest(Changed):
    def sent(self, d, oracle):
        return d / 2 if d.norm(dim=1).min() > 0.1 else d


class ClippedAbove(Changed):
    """Clips the norm of all rows together, if it is large."""

    def sent(self, d, oracle):
        return d * (100 / d.norm()).clamp(max=1)


class StepsByTheLargestDraw(FedAvg):
    def client_update(self, message, state, oracle):
        w = message.z.expand(oracle.num_clients, -1)
        steps = int((3 * oracle.uniform(1).max()).ceil())
        for _, batch in zip(range(steps), oracle.batches(), strict=False):
            w = w - self.lr * oracle(w, batch)
        return Reply(Point(w), point=w)


class ByAllBuffers(FedAvg):
    def client_update(self, message, state, oracle):
        w = message.z.expand(oracle.num_clients, -1)
        for batch in oracle.batches():
            w = w - self.lr / (1 + oracle.buffers.mean()) * oracle(w, batch)
        return Reply(Point(w), point=w)


class WithoutKeep(FedAvg):
    """Moves on with clients that have no more minibatches."""

    def client_update(self, message, state, oracle):
        w, m = message.z.expand(oracle.num_clients, -1), 0.0
        for batch in oracle.batches():
            m = 0.9 * m + oracle(w, batch)
            w = w - self.lr * m
        return Reply(Point(w), point=w)


class Hoarding(Changed):
    """Keeps something between calls."""

    def __init__(self, *args):
        super().__init__(*args)
        object.__setattr__(self, "kept", [])

    def sent(self, d, oracle):
        self.kept.append(len(d))
        return d / len(self.kept)


class ConjugateGradients(FedAvg):
    """Fletcher and Reeves' directions, which end in 0/0 where one step finds the minimum."""

    def client_update(self, message, state, oracle):
        w, p, before = message.z.expand(oracle.num_clients, -1), 0.0, None
        for batch in oracle.batches():
            g = oracle(w, batch)
            square = torch.einsum("sd,sd->s", g, g)[:, None]
            p = -g + (0.0 if before is None else square / before) * p
            w, before = w + self.lr * p, square
        return Reply(Point(w), point=w)


class Halting(FedAvg):
    """Stops a client whose gradient is a tenth shorter than its first one."""

    def client_update(self, message, state, oracle):
        w, first = message.z.expand(oracle.num_clients, -1), None
        for batch in oracle.batches():
            g = oracle(w, batch)
            length = torch.einsum("sd,sd->s", g, g).sqrt()
            first = length if first is None else first
            w = torch.where((length > 0.9 * first)[:, None], w - self.lr * g, w)
        return Reply(Point(w), point=w)


class MixedPersonal(FedAvg):
    def client_update(self, message, state, oracle):
        reply = super().client_update(message, state, oracle)
        return replace(reply, personal=reply.personal.mean(0).expand_as(reply.personal))


@dataclass(frozen=True, eq=False)
class MixedLater(LocalGradientAlgorithm):
    """Takes a mean over rows in the second of two phases."""

    def init_server(self, z):
        return Point(z)

    def broadcast(self, server):
        return server

    def client_update(self, message, state, oracle):
        w, _ = self.local_steps(message.z, oracle, lambda w, g: g)
        return Reply(Point(w), point=w)

    def corrected(self, message, state, oracle):
        w, _ = self.local_steps(message.z, oracle, lambda w, g: g - g.mean(0))
        return Reply(Point(w), point=w)

    def server_update(self, server, update):
        return Point(update.z)

    @property
    def phases(self):
        return tuple(Phase(self.broadcast, each, self.server_update) for each in (self.client_update, self.corrected))


class LineOfOnesOwn(Line):
    personal_parameters = ("head",)


class NormedLine(Line):
    def __init__(self, algorithm, **options):
        super().__init__(algorithm, **options)
        self.body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh())


class Growing(Participation):
    """A few clients in the first round, and all from then on."""

    def __init__(self, first=1):
        self.first = first

    def cohort(self, num_clients, seed, round_index, phase):
        return list(range(num_clients if round_index else self.first))


class Ended(Callback):
    """Counts the rounds that have ended."""

    rounds = 0

    def on_train_batch_end(self, *args):
        self.rounds += 1


def name_of(algorithm):
    return type(algorithm).__name__


def fit(algorithm, oracle=None, kind=Line, data=None, callbacks=(), rounds=7, **options):
    """The head's weight after a fit of four clients, whose oracle computes them together unless one is given."""
    torch.manual_seed(0)
    task = kind(algorithm, dropout=0.0, oracle=Vectorized(chunk_size=4) if oracle is None else oracle, **options)
    data = regression_data(local_steps=3) if data is None else data
    fitted(task, data, limit_val_batches=0, callbacks=list(callbacks), max_steps=rounds)
    return task.head.weight.detach().clone()


@pytest.mark.parametrize(
    ("algorithm", "field"),
    [
        (AllNormalised(0.05), "update.z"),
        (Centred(0.05), "update.z"),
        (OfTheLargest(0.05), "update.z"),
        (Shared(0.05), "update.z"),
        (MixedState(0.05), "state.moved"),
        (MixedLog(0.05), "log.length"),
        (MixedLater(0.05), "update.z"),
        (DrawnToTheMean(0.05), "update.z"),
        (TillAllAreDone(0.8), "update.z"),
        (OfTheBias(0.001), "update.z"),
        (ClippedByAll(1e-4), "update.z"),
        (SeedsByRow(0.05), "update.z"),
        (LostBeside(0.05), "update.z"),
        (TwentyInnerSteps(0.05), "update.z"),
        (NoisyAndMixed(0.05), "update.z"),
        (CountedAndMixed(0.05), "update.z"),
        (LabelsOfAll(0.05), "update.z"),
        (HalvedWithTheLongest(0.05), "update.z"),
        (HalvedWithTheShortest(0.05), "update.z"),
        (ClippedAbove(0.05), "update.z"),
        (StepsByTheLargestDraw(0.05), "update.z"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("oracle", [None, Auto(trials=1)], ids=["named", "auto"])
def test_an_algorithm_whose_clients_depend_on_each_other_is_refused(algorithm, field, oracle):
    update = "corrected" if isinstance(algorithm, MixedLater) else "client_update"
    with pytest.raises(ValueError, match=rf"{type(algorithm).__name__}.{update}: '{field}' of client \d changes with"):
        fit(algorithm, oracle)


@pytest.mark.parametrize("algorithm", [MixedPersonal(0.05), FromTheMeanOfBlocks(0.05)], ids=name_of)
def test_mixed_personal_blocks_are_refused(algorithm):
    with pytest.raises(ValueError, match="'personal' of client"):
        fit(algorithm, kind=LineOfOnesOwn)


def test_clients_that_depend_on_the_steps_of_others_are_refused():
    with pytest.raises(ValueError, match=r"'update\.z' of client"):
        fit(OfTheLongest(0.05), data=regression_data(local_epochs=1, local_steps=None))


def test_clients_are_tried_in_the_first_round_that_has_two():
    ended = Ended()
    with pytest.raises(ValueError, match="changes with"):
        fit(AllNormalised(0.05), data=regression_data(participation=Growing()), callbacks=[ended])
    assert ended.rounds == 1


def test_clients_are_tried_in_the_first_round_in_which_they_take_different_numbers_of_steps():
    equal, unequal = clients(sizes=(12, 12, 12, 12)), clients(sizes=(12, 12, 4, 8))
    ended, options = Ended(), {"batch_size": 4, "local_epochs": 1, "participation": Growing(2)}
    fit(WithoutKeep(0.05), data=FederatedDataModule.from_datasets(equal, **options))
    with pytest.raises(ValueError, match="changes with"):
        fit(WithoutKeep(0.05), data=FederatedDataModule.from_datasets(unequal, **options), callbacks=[ended])
    assert ended.rounds == 1


def test_clients_that_read_the_buffers_of_others_are_refused():
    with pytest.raises(ValueError, match="changes with"):
        fit(ByAllBuffers(0.05), kind=NormedLine)


@pytest.mark.parametrize(
    ("algorithm", "place"),
    [(Hoarding(0.05), "self.algorithm"), (Counted(0.05), "Counted.calls")],
    ids=["own", "of class"],
)
def test_what_is_kept_between_calls_is_told(algorithm, place):
    with pytest.warns(UserWarning, match=rf"{name_of(algorithm)}.client_update changes {place} in Python, where"):
        fit(algorithm)


class NoisyAndHoarding(Noisy, Hoarding):
    def sent(self, d, oracle):
        return Hoarding.sent(self, Noisy.sent(self, d, oracle), oracle)


def test_who_draws_and_keeps_something_is_told_of_both():
    with pytest.warns(UserWarning, match="client_update draws"), pytest.warns(UserWarning, match="update changes self"):
        fit(NoisyAndHoarding(0.05))


def test_a_client_that_is_computed_alone_does_not_hide_those_that_are_together():
    data = FederatedDataModule.from_datasets(clients(sizes=(12, 9, 9, 9)), batch_size=None, local_steps=2)
    with pytest.raises(ValueError, match="changes with"):
        fit(AllNormalised(0.05), data=data)


@pytest.mark.parametrize("algorithm", [Noisy(0.05), NoisyInPython(0.05), NoisyInNumPy(0.05)], ids=name_of)
def test_numbers_drawn_for_all_clients_are_told(algorithm):
    with pytest.warns(UserWarning, match=rf"{type(algorithm).__name__}.client_update draws .* oracle.uniform"):
        fit(algorithm)


@pytest.mark.parametrize("hidden", [3, 64], ids=["small", "d = 513"])
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(0.05),
        EachNormalised(0.05),
        OwnNoise(0.05),
        ByLabels(0.05),
        ConjugateGradients(0.05),
        Halting(0.2),
        SCAFFOLD(1e-6),
    ],
    ids=name_of,
)
def test_clients_by_themselves_are_accepted_and_the_same_in_any_chunk(algorithm, hidden, caplog):
    class Wide(Line):
        def __init__(self, algorithm, **options):
            super().__init__(algorithm, **options)
            self.body, self.head = nn.Sequential(nn.Linear(6, hidden), nn.Tanh()), nn.Linear(hidden, 1)

    with caplog.at_level("INFO"):
        together = fit(algorithm, kind=Wide, rounds=1)
    assert "made-up" not in caplog.text
    torch.testing.assert_close(together, fit(algorithm, Vectorized(chunk_size=1), kind=Wide, rounds=1))
    torch.testing.assert_close(together, fit(algorithm, Sequential(), kind=Wide, rounds=1))


def test_a_check_leaves_no_trace():
    assert torch.equal(fit(OwnNoise(0.05)), fit(OwnNoise(0.05), self_check="off"))


@pytest.mark.parametrize(
    ("oracle", "options"),
    [(Sequential(), {}), (Vectorized(chunk_size=1), {}), (None, {"self_check": "off"})],
    ids=["one by one", "chunks of one", "off"],
)
def test_clients_that_are_alone_or_unchecked_are_not_refused(oracle, options):
    fit(AllNormalised(0.05), oracle, **options)


class ByLogged(FedAvg):
    """Needs what the objective logs, which a made-up function does not."""

    def client_update(self, message, state, oracle):
        reply = super().client_update(message, state, oracle)
        return replace(reply, log={"twice": 2 * oracle.tally.means()["rmse"]})


class Restless(FedAvg):
    """Asks for more gradients than a made-up function gives."""

    def client_update(self, message, state, oracle):
        for _ in range(400):
            for batch in oracle.batches():
                oracle(message.z.expand(oracle.num_clients, -1), batch)
        return super().client_update(message, state, oracle)


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [(ByLogged(0.05), "KeyError: 'rmse'"), (Restless(0.05), "it asked for too many gradients")],
    ids=["fails", "restless"],
)
def test_what_could_not_be_tried_is_told(algorithm, why, caplog):
    with caplog.at_level("INFO"):
        torch.testing.assert_close(fit(algorithm), fit(FedAvg(0.05)))
    line = f"whether what {name_of(algorithm)}.client_update replies for one of them depends on others was not checked"
    assert [text.rpartition("made-up functions: ")[2] for text in caplog.messages if line in text] == [why]


class Fails(FedAvg):
    def client_update(self, message, state, oracle):
        raise ZeroDivisionError("of mine")


def test_what_fails_in_earnest_is_not_told_twice(caplog):
    with caplog.at_level("INFO"), pytest.raises(ZeroDivisionError, match="of mine"):
        fit(Fails(0.05))
    assert "made-up" not in caplog.text


class Chatty(FedAvg):
    def client_update(self, message, state, oracle):
        warnings.warn(f"{oracle.num_clients} clients", UserWarning, stacklevel=1)
        return super().client_update(message, state, oracle)


@pytest.mark.parametrize("oracle", [Vectorized(chunk_size=4), Auto(trials=1)], ids=["named", "auto"])
def test_warnings_of_a_trial_do_not_reach_the_user(oracle):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(Chatty(0.05), oracle, rounds=3)
    said = [str(each.message) for each in caught if "clients" in str(each.message)]
    assert len(said) == {"4 clients": 3, "2 clients": 6, "1 clients": 12}[said[0]]


def test_samples_that_arrive_in_order_all_arrive():
    data = regression_data(local_steps=3, num_workers=1)
    torch.testing.assert_close(fit(FedAvg(0.05), data=data), fit(FedAvg(0.05), self_check="off"))


class NoisyTwice(MixedLater):
    """Draws for all clients in both phases."""

    def client_update(self, message, state, oracle):
        w, _ = self.local_steps(message.z, oracle, lambda w, g: g)
        return Reply(Point(w + torch.randn_like(w)), point=w)

    @property
    def phases(self):
        return (Phase(self.broadcast, self.client_update, self.server_update),) * 2


def test_a_function_that_draws_in_several_phases_is_told_of_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(NoisyTwice(0.05))
    assert sum("draws from random generators" in str(each.message) for each in caught) == 1


def test_coarse_numbers_hide_no_dependence():
    torch.manual_seed(0)
    task = Line(Centred(0.05), dropout=0.0, oracle=Vectorized(chunk_size=4))
    with pytest.raises(ValueError, match="changes with"):
        fitted(task, regression_data(local_steps=3), limit_val_batches=0, precision="bf16-true")
