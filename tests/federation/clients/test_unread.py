"""Settings of clients' steps that nothing in an algorithm's client updates reads are refused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch

from fedlightning import federate
from fedlightning.algorithms import FedAvg, LocalGradientAlgorithm, Phase, Point, Reply
from fedlightning.local import SGD, Adam
from fedlightning.local.clipping import clipped
from fedlightning.oracle import Sequential, Vectorized
from tests.support.federations import close, loop_for, quadratic, rounds_of, run
from tests.support.lit import made
from tests.support.nodes import NODES, NUMBERS, by_nodes
from tests.support.peers import played
from tests.support.small import regression_data, trainer


@dataclass(frozen=True, eq=False)
class OwnLoop(FedAvg):
    """Steps in a loop of its own."""

    def client_update(self, message, state, oracle):
        w, v = message.z.expand(oracle.num_clients, -1), oracle.personal
        for batch in oracle.batches():
            g, v = oracle.step_personal(w, v, batch, self.personal_lr)
            w = batch.keep(w - self.lr * self.limited(g), w)
        return Reply(Point(w), personal=v, point=w)

    def limited(self, g):
        return g


class Clips(OwnLoop):
    """Reads one of the settings itself."""

    def limited(self, g):
        return clipped(self.local_clip, g)[0]


class Full(OwnLoop):
    """Steps along gradients of all data."""

    def client_update(self, message, state, oracle):
        w = message.z - self.lr * oracle.full(message.z.expand(oracle.num_clients, -1))
        return Reply(Point(w), point=w)

    @property
    def phases(self):
        return (Phase(self.broadcast, self.client_update, self.server_update, data="full"),)


@dataclass(frozen=True, eq=False)
class TwoPhases(LocalGradientAlgorithm):
    """Asks for gradients, and then for local steps, by the base class's way or by its own."""

    by_base: bool = True
    turned: bool = False

    @property
    def phases(self):
        ask = Phase(self.broadcast, self.collect, self.keep)
        step = Phase(self.broadcast, self.client_update, self.server_update)
        return (step, ask) if self.turned else (ask, step)

    def init_server(self, z):
        return Point(z)

    def broadcast(self, server):
        return server

    def collect(self, message, state, oracle):
        z = message.z.expand(oracle.num_clients, -1)
        return Reply(Point(torch.stack([oracle(z, batch) for batch in oracle.batches()]).mean(0)))

    def keep(self, server, update):
        return server

    def client_update(self, message, state, oracle):
        if self.by_base:
            w, _ = self.local_steps(message.z, oracle)
            return Reply(Point(w), point=w)
        return OwnLoop.client_update(self, message, state, oracle)

    def limited(self, g):
        return g

    def server_update(self, server, update):
        return update


class Waits(FedAvg):
    """Does nothing in the first round."""

    def init_server(self, z):
        return Waiting(z, 0)

    def client_update(self, message, state, oracle):
        if message.rounds:
            return super().client_update(message, state, oracle)
        return Reply(Point(message.z.expand(oracle.num_clients, -1)))

    def server_update(self, server, update):
        return Waiting(update.z, server.rounds + 1)


@dataclass(frozen=True)
class Waiting:
    z: torch.Tensor
    rounds: int


SETTINGS = {
    "clip": ({"local_clip": 0.5}, r"\(local_clip=0\.5\)", "local_clip"),
    "optimizer": ({"local_optimizer": SGD(momentum=0.9)}, r"\(local_optimizer=SGD\(momentum=0\.9", "local_optimizer"),
    "torch's": (
        {"local_optimizer": partial(torch.optim.Adam, eps=1e-6)},
        r"\(local_optimizer=Adam\)",
        "local_optimizer",
    ),
}


def trained(algorithm, rounds=2, oracle=None, **options):
    return run(loop_for(quadratic(algorithm), oracle, **options), rounds_of(algorithm, rounds, size=4))


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(), Vectorized(chunk_size=1)])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_nothing_reads_is_refused(setting, oracle):
    given, shown, name = SETTINGS[setting]
    refused = (
        rf"^OwnLoop{shown}.*: the client updates of OwnLoop take steps without {name}, which nothing in them reads\. "
        rf"Take the steps by self\.local_steps\(\.\.\.\), derive OwnLoop from Algorithm .* or leave {name} out "
    )
    with pytest.raises(ValueError, match=refused):
        trained(OwnLoop(0.05, **given), 1, oracle)
    trained(OwnLoop(0.05), 1, oracle)


@pytest.mark.parametrize("kind", [Full, partial(TwoPhases, by_base=False)], ids=["all data", "two phases"])
def test_so_it_is_without_minibatches_and_with_several_phases(kind):
    with pytest.raises(ValueError, match="take steps without local_clip"):
        trained(kind(0.05, local_clip=0.5), 1)


@pytest.mark.parametrize("turned", [False, True])
def test_one_phase_may_read_it_for_all(turned):
    trained(TwoPhases(0.05, turned=turned, local_clip=0.5, local_optimizer=Adam()))


def test_each_setting_counts_by_itself():
    trained(Clips(0.05, local_clip=0.5))
    with pytest.raises(ValueError, match="take steps without local_optimizer"):
        trained(Clips(0.05, local_clip=0.5, local_optimizer=Adam()))


def test_a_round_without_gradients_says_nothing():
    trained(Waits(0.05, local_clip=0.5), 2)


def test_a_self_check_does_not_count():
    with pytest.raises(ValueError, match="take steps without local_clip"):
        trained(OwnLoop(0.05, local_clip=0.5), 1, self_check="first")
    trained(TwoPhases(0.05, local_clip=0.5), 2, self_check="first")


@pytest.mark.parametrize(
    ("options", "name"), [({"gradient_clip_val": 0.5}, "local_clip"), ({}, "local_optimizer")], ids=["clip", "momentum"]
)
def test_a_module_and_its_trainer_are_named(options, name):
    module = made()
    if name == "local_optimizer":
        module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    with pytest.raises(
        ValueError, match=rf"take steps without {name}.*federate takes it from .*(gradient_clip_val|SGD)"
    ):
        trainer(max_steps=1, **options).fit(federate(module, OwnLoop), regression_data())


@pytest.mark.parametrize("by_base", [False, True])
def test_processes_agree(by_base):
    algorithm = TwoPhases(0.05, by_base=by_base, local_clip=0.5)

    def go(processes):
        loop = loop_for(quadratic(algorithm), processes=processes)
        return run(loop, rounds_of(algorithm, 2, size=3, processes=processes))

    if by_base:
        close(*played(2, go))
        return
    with pytest.raises(ValueError, match="take steps without local_clip"):
        played(2, go)


@pytest.mark.parametrize("by_base", [False, True])
def test_nodes_refuse_it_as_well(by_base, tmp_path):
    """A node decides once its clients have been in all phases, whose cohorts differ."""
    algorithm = TwoPhases(0.05, by_base=by_base, local_clip=0.5)
    batches = rounds_of(algorithm, 6, size=2)

    def go():
        by_nodes(lambda: quadratic(algorithm), NUMBERS, batches, NODES, tmp_path, Sequential())

    if by_base:
        go()
        return
    with pytest.raises(Exception, match="take steps without local_clip"):
        go()
