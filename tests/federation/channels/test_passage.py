"""The client's part of a channel, by closed forms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.channel import Aggregation, Channel, Clip, PerPhase
from fedlightning.federation.channels.passage import Passage
from fedlightning.federation.client_states import LATE, ClientStates
from fedlightning.federation.protocol import Answer, Request, Stamp
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.federation.terms import Terms
from fedlightning.oracle import Autocast
from tests.support.cases import CASES
from tests.support.federations import close, loop_for, personal_quadratic, quadratic, rounds_of, run
from tests.support.over_the_wire import FederationOverTheWire
from tests.support.transforms import Halved, Jitter

Z = torch.tensor([1.0, 2.0])


def request(**changes):
    asked = Request(Stamp(0, 0), 3, fl.Point(Z), Z, Z[:0], terms=Terms(2, 5))
    return replace(asked, **changes)


def answer(w, buffers=None, **changes):
    empty = torch.empty(len(w), 0)
    given = Answer(Stamp(0, 0), list(range(len(w))), fl.Point(w), empty if buffers is None else buffers)
    return replace(given, **changes)


def passage(*transforms, asked=None, **channel):
    return Passage(Channel(client=transforms, **channel), fl.FedAvg(0.1), request() if asked is None else asked)


def nobody():
    return ClientStates({}, 5)


def test_clips_act_on_moves_and_not_on_points():
    """A point far from zero that has moved by (3, 4) is clipped to a move of (0.6, 0.8)."""
    sent, memory = passage(Clip(1.0)).send(answer(torch.stack([Z + torch.tensor([3.0, 4.0]), Z])), nobody())
    torch.testing.assert_close(sent.update.z, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    assert memory == {}
    assert sent.bits.tolist() == [64.0, 64.0]


def test_whole_numbers_among_buffers_pass_by_the_channel():
    """A count of batches has grown by 20, which is no part of a norm."""
    asked = request(buffers=torch.tensor([0.0, 0.5]))
    through = Passage(Channel([Clip(1.0)]), fl.FedAvg(0.1), asked, whole=torch.tensor([True, False]))
    given = answer(torch.stack([Z + torch.tensor([3.0, 0.0])]), buffers=torch.tensor([[20.0, 4.0]]))
    sent, _ = through.send(given, nobody())
    torch.testing.assert_close(sent.update.z, torch.tensor([[0.6, 0.0]]))
    torch.testing.assert_close(sent.buffers, torch.tensor([[20.0, 0.8]]))
    assert sent.bits.tolist() == [4 * 32.0]
    assert through.bound(given) == 1.0


def test_a_round_of_clipped_moves_is_their_mean():
    algorithm = fl.FedAvg(0.3)
    batches = rounds_of(algorithm, 1)
    whole, clipped = (loop_for(quadratic(algorithm), channels=channel) for channel in (None, Channel([Clip(0.1)])))
    start = whole.point.clone()
    moves = []
    for client in range(6):
        (cohort,) = batches[0].cohorts
        alone = RoundBatch(0, (replace(cohort, members=(cohort.members[client],)),), batches[0].samples)
        moves.append(run(loop_for(quadratic(algorithm)), [alone])[0] - start)
    norms = torch.stack(moves).norm(dim=1, keepdim=True)
    assert (norms > 0.1).all()
    close(run(clipped, batches)[0], start + (0.1 * torch.stack(moves) / norms).mean(0))


def test_memory_goes_on_from_what_was_kept():
    states = nobody()
    way = passage(Halved())
    first, memory = way.send(answer(torch.stack([Z + 4, Z + 8])), states)
    torch.testing.assert_close(first.update.z, torch.tensor([[2.0, 2.0], [4.0, 4.0]]))
    assert all(name.startswith(f"{LATE}0.") for name in memory)
    states.write([0, 1], memory)
    later, _ = way.send(answer(torch.stack([Z, Z, Z]), client_ids=[1, 2, 0]), states)
    torch.testing.assert_close(later.update.z, torch.tensor([[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]))
    assert list(later.reports) == ["0.held"]
    assert later.bits.tolist() == [64.0] * 3  # 32 for halves of two numbers, 32 for the report


def test_memory_is_never_sent():
    channel = Channel(client=[Halved()])
    there = FederationOverTheWire(quadratic(fl.FedAvg(0.1)), 6, None, channels=channel)
    answers = []
    travel = there.wire.travel

    def watched(message):
        if isinstance(message, Answer):
            answers.append(message)
        return travel(message)

    there.wire.travel = watched
    for batch in rounds_of(fl.FedAvg(0.1), 2):
        there.run(batch, Autocast("cpu"))
    assert len(answers) == 12
    for each in answers:
        held = there.clients[each.client_ids[0]].clients
        assert any(name.startswith(LATE) for name in held.template)
        assert (set(each.metrics), set(each.reports), each.update.z.shape) == ({"drift"}, {"0.held"}, (1, 8))


def test_what_is_not_finite_is_found_before_transforms_hide_it():
    @dataclass(frozen=True)
    class Hiding(Jitter):
        def apply(self, sent, memory, exchange, purpose):
            return replace(sent, values={name: value.nan_to_num() for name, value in sent.values.items()}), {}

    sent, _ = passage(Hiding()).send(answer(torch.stack([Z, Z * torch.nan])), nobody())
    assert sent.sound.tolist() == [True, False]
    both, _ = passage().send(answer(torch.stack([Z, Z * torch.nan]), sound=torch.tensor([False, True])), nobody())
    assert both.sound.tolist() == [False, False]


def test_a_client_that_is_left_out_keeps_its_memory():
    algorithm, channel = fl.FedAvg(0.1), Channel(client=[Halved()])
    loop = loop_for(quadratic(algorithm), channels=channel)
    batches = rounds_of(algorithm, 2)
    run(loop, batches[:1])
    name = next(name for name in loop.clients.template if name.endswith("z"))
    before = loop.clients.all(name)
    loop.task.offset[2] = torch.nan
    with pytest.warns(RuntimeWarning, match="client 2: left out"):
        run(loop, batches[1:])
    after = loop.clients.all(name)
    assert torch.equal(after[2], before[2])
    assert all(not torch.equal(after[client], before[client]) for client in (0, 1, 3, 4, 5))


def test_buffers_pass_as_a_field_of_their_own():
    buffers = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    asked = request(buffers=torch.zeros(2))
    sent, _ = passage(Clip(1.0), asked=asked).send(answer(torch.stack([Z, Z]), buffers), nobody())
    torch.testing.assert_close(sent.buffers, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    each, _ = passage(Clip(10.0), asked=asked).send(answer(torch.stack([Z, Z]), buffers), nobody())
    assert torch.equal(each.buffers, buffers)


def test_buffers_that_are_stuck_at_the_server_pass_as_they_are():
    asked = request(buffers=torch.tensor([0.0, torch.inf]))
    buffers = torch.tensor([[3.0, torch.inf], [torch.nan, torch.inf]])
    sent, _ = passage(Clip(1.0), asked=asked).send(answer(torch.stack([Z, Z]), buffers), nobody())
    torch.testing.assert_close(sent.buffers[0], torch.tensor([1.0, torch.inf]))
    assert sent.sound.tolist() == [True, False]


def test_clipping_takes_all_fields_together_and_leaves_personal_blocks_at_home():
    case = CASES["FedAPM"]
    algorithm = case.personal_algorithm()
    loops = [loop_for(personal_quadratic(algorithm), channels=each) for each in (None, Channel([Clip(1e-3)]))]
    batches = rounds_of(algorithm, 1)
    free, clipped = (run(each, batches)[0] for each in loops)
    start = loop_for(personal_quadratic(algorithm)).point
    assert (free - start).norm() > 0.01
    assert (clipped - start).norm() <= 1e-3 + 1e-9
    close(*(each.clients.all("personal") for each in loops))


def test_a_rule_may_say_what_travels():
    @dataclass(frozen=True)
    class Masked(Aggregation):
        def aggregate(self, rows):
            return rows.combine(torch.full((rows.count,), 1 / rows.count))

        def wire_bits(self, length):
            return 20.0 * length

    sent, _ = passage(aggregate=Masked()).send(answer(torch.stack([Z, Z])), nobody())
    assert sent.bits.tolist() == [40.0, 40.0]


def test_a_length_that_changes_takes_no_memory():
    states = nobody()
    _, memory = passage(Halved()).send(answer(torch.stack([Z, Z])), states)
    states.write([0, 1], memory)
    longer = request(message=fl.Point(torch.ones(3)))
    with pytest.raises(
        ValueError, match=r"remembers \[2\] numbers of every client \('0\.z'\), but now they send \[3\]"
    ):
        passage(Halved(), asked=longer).send(answer(torch.ones(2, 3)), states)


def test_phases_without_a_channel_pass_as_they_are():
    channels = PerPhase([None, Channel([Clip(1.0)])])
    assert Passage.through(channels, fl.FedAvg(0.1), request()) is None
    assert Passage.through(None, fl.FedAvg(0.1), request()) is None
    assert Passage.through(channels, fl.FedAvg(0.1), request(stamp=Stamp(0, 1))) is not None


@pytest.mark.parametrize("given_up", ["overflow", "rejected"])
def test_a_round_that_is_given_up_leaves_memory_as_it_was(given_up):
    """The first phase of a round has passed; in the second one a client overflows, or all do."""
    case = CASES["CDMA"]
    algorithm = case.algorithm()
    loop = loop_for(quadratic(algorithm), channels=Channel(client=[Halved()]))
    batches = rounds_of(algorithm, 3, size=3)
    run(loop, batches[:1])
    before = {name: loop.clients.all(name) for name in loop.clients.template}
    kept = loop.server.reception.kept
    assert any(name.startswith(f"{LATE}0") for name in before)
    sound = type(algorithm).client_update

    def overflowing(self, message, state, oracle):
        reply = sound(self, message, state, oracle)
        return replace(reply, update=fl.Point(reply.update.z * torch.nan))

    type(algorithm).client_update = overflowing
    try:
        if given_up == "overflow":
            assert loop.run(batches[1], Autocast("cpu"), undo_overflow=True).overflow
        else:
            with pytest.raises(RuntimeError, match="returned NaN or infinite numbers"):
                loop.run(batches[1], Autocast("cpu"))
    finally:
        type(algorithm).client_update = sound
    assert loop.server.reception.kept == kept
    for name in loop.clients.template:
        after = loop.clients.all(name)
        assert torch.equal(after, before.get(name, torch.zeros_like(after)))
