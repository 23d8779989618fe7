"""What a server keeps for channels, and when it goes back."""

from __future__ import annotations

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.algorithms.base import Point
from fedlightning.channel import Channel, Clip, Krum, PerPhase
from fedlightning.federation.aggregation import CohortMean
from fedlightning.federation.channels.reception import Reception, described, description_of, require_same
from fedlightning.federation.protocol import Answer, Request, Roster, Stamp
from fedlightning.federation.terms import Terms
from fedlightning.oracle import Autocast
from tests.support.cases import CASES
from tests.support.federations import loop_for, quadratic, rounds_of, run
from tests.support.transforms import Halved, Jitter, Shift

NOISE = Channel(client=[Clip(0.5), Halved()], server=[Shift()], download=[Jitter()])


def test_what_clients_report_is_told_in_the_next_round():
    algorithm = fl.FedAvg(0.1)
    loop = loop_for(quadratic(algorithm), channels=Channel(client=[Halved()]))
    batches = rounds_of(algorithm, 2)
    assert float(_asked(loop, batches[0]).terms.public["0.mean_held"]) == 0.0
    told = float(_asked(loop, batches[1]).terms.public["0.mean_held"])
    assert told > 0.0
    assert told != float(loop.server.reception.kept.public["0.0.mean_held"])


def _asked(loop, batch):
    """The request of a round."""
    requests, ask = [], loop.loop.transport.ask

    def watched(request, invited):
        requests.append(request)
        return ask(request, invited)

    loop.loop.transport.ask = watched
    run(loop, [batch])
    loop.loop.transport.ask = ask
    return requests[0]


def test_phases_have_their_own():
    case = CASES["CDMA"]
    algorithm = case.algorithm()
    loop = loop_for(quadratic(algorithm), channels=PerPhase([None, NOISE]))
    run(loop, rounds_of(algorithm, 3, size=3))
    kept = loop.server.reception.kept
    assert kept.releases == {"1": 3}
    assert {name.split(".")[0] for name in (*kept.public, *kept.known)} == {"1"}
    assert all(not name.startswith("channel.0") for name in loop.clients.template)


def test_bytes_are_those_of_the_channel():
    algorithm = fl.FedAvg(0.1)
    loop = loop_for(quadratic(algorithm), channels=Channel(client=[Halved()]))
    batches = rounds_of(algorithm, 2)
    run(loop, batches[:1])
    metrics = loop.run(batches[1], Autocast("cpu")).metrics
    assert (metrics["upload"], metrics["round_upload"]) == (96, 48)
    assert metrics["round_upload_bytes"] == 6 * (8 * 4 + 8)  # halves of eight float64, and a report
    assert metrics["upload_bytes"] == 2 * metrics["round_upload_bytes"]
    assert metrics["round_download_bytes"] == 6 * (8 * 8 + 4)  # with the public value, a float32


def test_rounds_without_an_upload_have_no_release():
    algorithm = fl.FedPD(eta=0.2, p=0.5, seed=1)
    loop = loop_for(quadratic(algorithm), channels=NOISE)
    run(loop, rounds_of(algorithm, 6))
    skipped = sum(loop.algorithm.skips(t) for t in range(6))
    assert 0 < skipped < 6
    assert loop.server.reception.kept.releases == {"0": 6 - skipped}


def test_a_round_that_is_undone_is_forgotten_but_for_what_was_released():
    algorithm = CASES["CDMA"].algorithm()
    loop = loop_for(quadratic(algorithm), channels=NOISE)
    batches = rounds_of(algorithm, 2)
    run(loop, batches[:1])
    before = loop.server.snapshot()
    run(loop, batches[1:])
    assert loop.server.reception.kept.public != before.kept.public
    loop.server.undo(before)
    assert loop.server.reception.kept.public == before.kept.public
    assert loop.server.reception.kept.known == before.kept.known
    assert loop.server.reception.kept.releases == {"0": 2, "1": 2}


@pytest.mark.parametrize(
    ("adversaries", "sound", "usable"),
    [(0, [True, True, True], None), (0, [True, False, True], 2), (0, [False, False, False], None), (1, [False] * 3, 0)],
)
def test_a_rule_says_that_too_few_updates_count(adversaries, sound, usable):
    """Unless all that it needs have answered, and none of them with finite numbers: then something else is wrong."""
    robust = Reception(Channel(aggregate=Krum(adversaries)))
    request = Request(Stamp(0, 0), 3, Point(torch.zeros(2)), torch.zeros(2), torch.zeros(0), terms=Terms(4, 10))

    def shortage(reception):
        cohort = reception.cohort(request, Roster(torch.ones(10)), False, fl.FedAvg(0.1))
        answer = Answer(Stamp(0, 0), [0, 1, 2], Point(torch.ones(3, 2)), torch.empty(3, 0), sound=torch.tensor(sound))
        cohort.add(answer)
        return reception.shortage(request, cohort)

    needs = f"Krum(adversaries={adversaries}) needs the updates of {2 * adversaries + 3} clients or more"
    said = None if usable is None else f"{needs}, and of 4 that were asked, {usable} sent finite numbers"
    assert shortage(robust) == said
    assert shortage(Reception(Channel(client=[Clip(1.0)]))) is None
    assert Reception(PerPhase([None])).shortage(request, CohortMean(Roster(torch.ones(10)), False)) is None


def test_description():
    assert described(None) == description_of(None) == ""
    text = described(PerPhase([None, Channel(client=[Clip(0.5)])]))
    assert text.startswith("PerPhase(channels=[None, Channel(client=[Clip(norm=0.5, each=False)], ")
    reception = loop_for(quadratic(fl.FedAvg(0.1)), channels=NOISE).server.reception
    assert description_of(reception) == described(NOISE)


def test_another_channel_than_the_checkpoints_is_refused():
    algorithm = fl.FedAvg(0.1)
    first = loop_for(quadratic(algorithm), channels=Channel(client=[Clip(0.5)]))
    run(first, rounds_of(algorithm, 1))
    state = first.state_dict()
    short, other = (rf"Channel\(client=\[Clip\(norm=0\.{digit}\)\]\)" for digit in (5, 6))
    for channels, then, now in (
        (Channel(client=[Clip(0.6)]), short, other),
        (None, r"Channel\(client=.*download=\[\].*\)", None),
    ):
        with pytest.raises(ValueError, match=rf"channel={then}, this run has channel={now}:.*with the same channel"):
            loop_for(quadratic(algorithm), channels=channels).load_state_dict(state)
    without = loop_for(quadratic(algorithm))
    run(without, rounds_of(algorithm, 1))
    assert {"channel", "bits"} & set(without.state_dict()) == set()
    with pytest.raises(ValueError, match=r"trained with channel=None, this run has channel=Channel\("):
        loop_for(quadratic(algorithm), channels=NOISE).load_state_dict(without.state_dict())
    require_same(None, None)


def test_a_refused_channel_says_what_weights_alone_have_cost_of_privacy():
    algorithm = fl.FedAvg(0.1)
    first = loop_for(quadratic(algorithm), channels=NOISE)
    run(first, rounds_of(algorithm, 3))
    with pytest.raises(ValueError, match=r"weights alone.*PrivacyBudget\(earlier=3\)"):
        loop_for(quadratic(algorithm)).load_state_dict(first.state_dict())


def test_a_channel_may_be_resumed_before_the_first_round():
    algorithm = fl.FedAvg(0.1)
    first, second = (loop_for(quadratic(algorithm), channels=NOISE) for _ in range(2))
    second.load_state_dict(first.state_dict())
    assert torch.equal(run(second, rounds_of(algorithm, 2)), run(first, rounds_of(algorithm, 2)))
