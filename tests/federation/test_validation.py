"""Mistakes of a new algorithm are named before they do harm."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAvg, LocalGradientAlgorithm, Reply
from fedlightning.algorithms.base import Algorithm, Point, of_any_length
from fedlightning.federation.validation import LeftOutWarnings, require_reply, shapes_of
from fedlightning.oracle import Sequential
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


@dataclass(frozen=True, eq=False)
class Counts(Mine):
    """Sets an attribute of its own in one of its functions."""

    where: str = "client_update"

    def broadcast(self, server):
        self.counted("broadcast")
        return server

    def client_update(self, message, state, oracle):
        self.counted("client_update")
        return super().client_update(message, state, oracle)

    def server_update(self, server, update):
        self.counted("server_update")
        return update

    def counted(self, where):
        if where == self.where:
            self.count = 1
        elif self.where == "lr":
            self.lr = 0.1


@dataclass(frozen=True, eq=False)
class WritesMessage(Mine):
    """Writes into what is frozen, and is not the algorithm."""

    def client_update(self, message, state, oracle):
        message.z = message.z + 1


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


@dataclass(frozen=True)
class State:
    c: Tensor


class Forgets(Mine):
    def init_client(self, z):
        Server(z)

    def client_update(self, message, state, oracle):
        return Reply(Server(state.c), point=message.z)


@dataclass(frozen=True)
class Modelless:
    c: Tensor


class WithoutModel(Mine):
    def init_server(self, z):
        return Modelless(z)


class Reads(Mine):
    def client_update(self, message, state, oracle):
        w, v = self.local_steps(message.z - state.c, oracle)
        return Reply(Server(w), personal=v, point=w)


class Misreads(Mine):
    def client_update(self, message, state, oracle):
        return Reply(Server(oracle.personal.z), point=message.z)


class Writes(Mine):
    def client_update(self, message, state, oracle):
        w, v = self.local_steps(message.z, oracle)
        return Reply(Server(w), state=State(w), personal=v, point=w)


class Logs(FedAvg):
    """Logs what it is given."""

    def __init__(self, value):
        super().__init__(0.1)
        object.__setattr__(self, "value", value)

    def client_update(self, message, state, oracle):
        return replace(super().client_update(message, state, oracle), log=self.value)


class PointsAtOne(FedAvg):
    def client_update(self, message, state, oracle):
        reply = super().client_update(message, state, oracle)
        return replace(reply, point=reply.point[0])


class Keeps(FedAvg):
    """Keeps another state than it began with."""

    def __init__(self, start, after):
        super().__init__(0.1)
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "after", after)

    def init_client(self, z):
        return State(self.start)

    def client_update(self, message, state, oracle):
        return replace(super().client_update(message, state, oracle), state=State(self.after))


class PointsElsewhere(FedAvg):
    """Returns some columns of its points."""

    def client_update(self, message, state, oracle):
        reply = super().client_update(message, state, oracle)
        return replace(reply, point=reply.point[:, :1])


class KeepsNone(FedAvg):
    """Returns what FedAvg returns, and forgets the state."""

    def init_client(self, z):
        return State(torch.zeros_like(z))


class WritesAnother(Writes):
    def init_client(self, z):
        return Server(z)


class StartsBare(Writes):
    def init_client(self, z):
        return z


def fit(algorithm, **options):
    data = FederatedDataModule.from_datasets(clients(), batch_size=4, local_steps=2, rounds_per_epoch=2)
    trainer(max_steps=2, **options).fit(Line(algorithm, oracle=Sequential()), data)


MISTAKES = {
    "momentum on self": (Remembers(0.1), AttributeError, r"Remembers sets self\.momentum: an algorithm keeps nothing"),
    **{
        f"count in {where}": (
            Counts(0.1, where),
            AttributeError,
            rf"^Counts sets self\.{'lr' if where == 'lr' else 'count'}: an algorithm keeps nothing on itself",
        )
        for where in ("broadcast", "client_update", "server_update", "lr")
    },
    "a frozen message": (WritesMessage(0.1), AttributeError, r"^cannot assign to field 'z'$"),
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
    "no state to read": (
        Reads(0.1),
        TypeError,
        r"Reads\.client_update reads state\.c, but Reads has no init_client, .* Write init_client\(self, z\), which r",
    ),
    "no state returned": (
        Forgets(0.1),
        TypeError,
        r"Forgets\.client_update reads state\.c, but Forgets\.init_client returned None, so that its clients keep",
    ),
    "no model": (
        WithoutModel(0.1),
        TypeError,
        r"WithoutModel: the server's state, a Modelless, has no field z with the model\. Return a frozen",
    ),
    "another None": (Misreads(0.1), AttributeError, r"'NoneType' object has no attribute 'z'"),
    "a state that would be lost": (
        Writes(0.1),
        TypeError,
        r"Writes\.client_update returned a state with c, but Writes has no init_client, .* State\(torch\.zeros_like\(z",
    ),
    "bare log": (Logs(torch.ones(1)), TypeError, r"returned log=Tensor; expected a dict of tensors \[S\]"),
    "logged number": (
        Logs({"a": 1.0}),
        TypeError,
        r"returned log\['a'\] of type float; expected a tensor of numbers, \[1\]",
    ),
    "logged truth": (
        Logs({"a": torch.ones(1) > 0}),
        TypeError,
        r"log\['a'\] of type torch.bool tensor; expected a tensor",
    ),
    "logged mean": (Logs({"a": torch.tensor(1.0)}), ValueError, r"returned log\['a'\] of shape \[\]; expected \[1\]"),
    "one point": (PointsAtOne(0.1), ValueError, r"client_update returned point of shape \[41\]; expected \[1, 41\]"),
    "some columns": (PointsElsewhere(0.1), ValueError, r"returned point of shape \[1, 1\]; expected \[1, 41\]"),
    "another shape": (
        Keeps(torch.ones(2), torch.ones(1, 1)),
        ValueError,
        r"state\.c of shape \[1, 1\]; expected \[S, 2\]",
    ),
    "fractions": (
        Keeps(torch.tensor(0), torch.ones(1)),
        TypeError,
        r"state\.c of type torch\.float32, but init_client returns torch\.int64, which cannot hold fractions",
    ),
    "no state": (KeepsNone(0.1), TypeError, r"KeepsNone\.client_update returned no state, .* state=State\(\.\.\.\)"),
    "another state": (WritesAnother(0.1), TypeError, r"a state with c; expected z as in the Server that init_client"),
    "bare state": (
        StartsBare(0.1),
        TypeError,
        r"StartsBare\.init_client returned a Tensor; expected an object of a fr",
    ),
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


@pytest.mark.parametrize("kept", [{"state": Point(torch.zeros(2, 3))}, {"personal": torch.zeros(2, 3)}])
def test_only_the_last_phase_may_return_what_clients_keep(kept):
    reply = Reply(Point(torch.zeros(2, 3)), **kept)
    with pytest.raises(ValueError, match="before the last phase of a round"):
        require_reply(FedAvg(0.1), reply, 2, 3, is_last=False)


def test_shapes_of_states():
    @dataclass(frozen=True)
    class State:
        z: Tensor
        models: Tensor = of_any_length()
        turn: int = 0

    state = State(torch.zeros(3), torch.zeros(5, 2), 7)
    assert shapes_of(None) == {}
    assert shapes_of(state) == {"z": (3,), "models": ("any", 2), "turn": "int"}
    assert shapes_of(state, {"z": torch.zeros(4), "models": None}) == {"z": (4,), "models": "NoneType"}


def test_clients_that_are_left_out_are_named_in_order():
    warnings = LeftOutWarnings(FedAvg(0.1))
    with pytest.warns(RuntimeWarning, match=r"numbers came from clients 1, 2, 3, 5: left out"):
        warnings.warn([2, 1, 5, 3])
    with pytest.warns(RuntimeWarning, match=r"numbers came from client 4: left out"):
        warnings.warn([4, 2])
