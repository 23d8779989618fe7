"""FedBuff: late updates, against a simulation of its own that trains when clients start and not when they arrive."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.channel import Channel, Clip
from fedlightning.core.arrivals import Arrivals
from fedlightning.federation.processes import OneProcess
from fedlightning.federation.sampling.round_loader import RoundLoader
from fedlightning.oracle import Autocast
from fedlightning.participation import (
    Asynchronous,
    FixedDuration,
    HalfNormalDuration,
    LogNormalDuration,
    Timed,
    Uniform,
)
from fedlightning.tasks import ClientNumbers
from tests.support.federations import (
    CLIENTS,
    K,
    close,
    loop_for,
    numpy_operators,
    personal_quadratic,
    quadratic,
    run,
    start_of,
)
from tests.support.peers import played
from tests.support.references.fed_buff import FedBuffEvents
from tests.support.small import Line, Normed, fitted, regression_data, trainer

SECONDS = [1.0, 2.5, 0.7, 4.0, 1.9, 3.1]
ALL_AT_WORK = Asynchronous(CLIENTS, 2, FixedDuration(SECONDS))
HALF_AT_WORK = Asynchronous(3, 2, LogNormalDuration(spread=1.0))


def rounds_of(participation, count, start=0, processes=None, seed=0):
    """Batches of rounds of six numbered clients."""
    processes = OneProcess() if processes is None else processes
    data = ClientNumbers(CLIENTS, local_steps=K, participation=participation, rounds_per_epoch=count, seed=seed)
    share = {"rank": processes.rank, "world_size": processes.count, "by_owner": True}
    loader = RoundLoader(data, start=lambda: start, **share)
    return [batch.place(torch.device("cpu"), torch.float64) for batch in loader]


def trained(algorithm, participation, rounds=12, make=quadratic, **options):
    """Loop and trajectory on a quadratic problem."""
    loop = loop_for(make(algorithm), **options)
    return loop, run(loop, rounds_of(participation, rounds))


@pytest.mark.parametrize("dim_y", [3, 0], ids=["minimax", "minimisation"])
@pytest.mark.parametrize("hyper", [{}, {"lr_server": 0.6, "staleness_power": 0.0}, {"staleness_power": 2.0}], ids=str)
def test_late_updates_follow_the_events_of_the_paper(dim_y, hyper):
    algorithm = fl.FedBuff(lr=0.05, **hyper)
    task = quadratic(algorithm, dim_y=dim_y)
    loop = loop_for(task)
    events = FedBuffEvents(
        *(numpy_operators(task), start_of(task), K, 0.05, CLIENTS, 2),
        choose=lambda start, idle: min(idle),  # whoever is idle starts, and no two finish at the same time
        duration=lambda client, start: SECONDS[client],
        **hyper,
    )
    ages = []
    for batch, (z, now, late) in zip(rounds_of(ALL_AT_WORK, 30), events.updates(30), strict=True):
        metrics = loop.run(batch, Autocast("cpu")).metrics
        close(loop.point, torch.from_numpy(z), 1e-10)
        assert metrics["virtual_seconds"] == pytest.approx(now, abs=1e-12)
        assert metrics["staleness"] == sum(late.values()) / 2
        assert metrics["staleness_max"] == max(late.values())
        ages += late.values()
    assert max(ages) > 3
    assert min(ages) == 0


def test_only_models_that_clients_at_work_started_from_are_kept():
    loop = loop_for(quadratic(fl.FedBuff(lr=0.05)))
    points = [loop.point]
    for index, batch in enumerate(rounds_of(HALF_AT_WORK, 20)):
        loop.run(batch, Autocast("cpu"))
        arrivals = HALF_AT_WORK.select(CLIENTS, 0, index, 0).arrivals
        assert set(loop.state.rounds.tolist()) == {*arrivals.started.values(), *arrivals.in_flight}
        assert torch.equal(loop.state.models, torch.stack(points)[loop.state.rounds])
        points.append(loop.point)
    assert len(loop.state.models) < 6


def test_one_client_at_a_time_is_sequential_descent():
    task = quadratic(fl.FedBuff(lr=0.05))
    batches = rounds_of(Asynchronous(1, 1, HalfNormalDuration()), 20)
    operators, z = numpy_operators(task), start_of(task)
    for batch, point in zip(batches, run(loop_for(task), batches), strict=True):
        (member,) = batch.cohorts[0].members
        for _ in range(K):
            z = z - 0.05 * operators[member.id](z)
        close(point, torch.from_numpy(z))


def test_equal_durations_of_all_clients_are_fed_avg():
    _, late = trained(fl.FedBuff(lr=0.05), Asynchronous(CLIENTS, CLIENTS, FixedDuration(2.0)))
    _, timed = trained(fl.FedAvg(lr=0.05), Timed(FixedDuration(2.0)))
    close(late, timed)


def test_synchronous_rounds_on_a_clock_are_those_without_it():
    plain, timed = (
        trained(fl.FedAvg(0.05), Uniform(2)),
        trained(fl.FedAvg(0.05), Timed(FixedDuration(SECONDS), Uniform(2))),
    )
    assert torch.equal(plain[1], timed[1])
    cohorts = [Uniform(2).cohort(CLIENTS, 0, index, 0) for index in range(12)]
    expected = sum(max(SECONDS[client] for client in cohort) for cohort in cohorts)
    assert timed[0].server.traffic.virtual_seconds == pytest.approx(expected, abs=1e-12)
    assert plain[0].server.traffic.virtual_seconds is None


def test_the_power_of_staleness_changes_late_updates_alone():
    every = [trained(fl.FedBuff(0.05, staleness_power=power), HALF_AT_WORK)[1] for power in (0.5, 1.0)]
    late = next(
        i for i, b in enumerate(rounds_of(HALF_AT_WORK, 12)) if b.cohorts[0].arrivals.metrics(i)["staleness_max"]
    )
    assert torch.equal(every[0][:late], every[1][:late])
    assert not torch.allclose(every[0][late], every[1][late], rtol=1e-6)


@pytest.mark.parametrize("stop", [1, 5, 9])
def test_a_resumed_run_is_bitwise_the_uninterrupted_one(stop):
    algorithm = fl.FedBuff(lr=0.05)
    whole, trajectory = trained(algorithm, HALF_AT_WORK)
    first = loop_for(quadratic(algorithm))
    run(first, rounds_of(HALF_AT_WORK, stop))
    second = loop_for(quadratic(algorithm))
    second.load_state_dict(first.state_dict())
    again = Asynchronous(3, 2, LogNormalDuration(spread=1.0))  # nothing of what it simulated so far is known
    assert torch.equal(run(second, rounds_of(again, 12 - stop, stop)), trajectory[stop:])
    for name in ("upload", "download", "virtual_seconds"):
        assert getattr(second.server.traffic, name) == getattr(whole.server.traffic, name)
    for each in fields(whole.state):
        ours, theirs = (torch.as_tensor(getattr(loop.state, each.name)) for loop in (second, whole))
        assert torch.equal(ours, theirs)


def test_two_processes_are_one():
    make, batches = partial(quadratic, fl.FedBuff(lr=0.05)), partial(rounds_of, ALL_AT_WORK, 10)
    alone = run(loop_for(make()), batches())
    for trajectory in played(2, lambda each: run(loop_for(make(), processes=each), batches(processes=each))):
        close(trajectory, alone)


def test_personal_blocks_stay_with_clients_that_are_late():
    loop, _ = trained(fl.FedBuff(lr=0.05), HALF_AT_WORK, rounds=1, make=personal_quadratic)
    before = loop.clients.all("personal")
    for index, batch in enumerate(rounds_of(HALF_AT_WORK, 9, start=1), 1):
        run(loop, [batch])
        after = loop.clients.all("personal")
        changed = (after != before).any(dim=1).nonzero().flatten().tolist()
        assert changed == HALF_AT_WORK.cohort(CLIENTS, 0, index, 0)
        before = after


def test_a_channel_that_changes_nothing_leaves_late_updates_as_they_are():
    plain = trained(fl.FedBuff(lr=0.05), HALF_AT_WORK)[1]
    close(trained(fl.FedBuff(lr=0.05), HALF_AT_WORK, channels=Channel(client=[Clip(1e9)]))[1], plain)


def test_fits_resume_bit_for_bit(tmp_path):
    data = partial(regression_data, participation=Asynchronous(3, 2, HalfNormalDuration()))
    optimizer = partial(torch.optim.Adam, lr=0.01)
    make = partial(Line, fl.FedBuff(lr=0.05), server_optimizer=optimizer)
    torch.manual_seed(0)
    whole = make()
    fitted(whole, data(), max_steps=9)
    torch.manual_seed(0)
    fitted(first := make(), data(), max_steps=4).save_checkpoint(tmp_path / "half.ckpt")
    second = make()
    trainer(max_steps=9).fit(second, data(), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    for ours, theirs in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert second.round_metrics["virtual_seconds"] == whole.round_metrics["virtual_seconds"] > 0
    assert not torch.equal(first.head.weight, whole.head.weight)


def test_a_run_does_not_go_on_with_other_events():
    algorithm = fl.FedBuff(lr=0.05)
    server = algorithm.expecting(algorithm.init_server(torch.zeros(2)), 7, Arrivals({0: 7}, ()))
    with pytest.raises(
        ValueError, match=r"in round 9 clients are at work that started in round 4.*Resume with the part"
    ):
        algorithm.expecting(server, 8, Arrivals({1: 3}, (7,)))


def test_synchronous_algorithms_refuse_late_clients():
    with pytest.raises(ValueError, match=r"^SCAFFOLD needs clients that all start from the newest model.*Take FedBuff"):
        trained(fl.SCAFFOLD(0.05), HALF_AT_WORK, 1)


def test_averaged_buffers_are_refused():
    data = regression_data(participation=Asynchronous(3, 2, HalfNormalDuration()))
    with pytest.raises(ValueError, match=r"averages buffer 'net\.1\.running_mean'.*model\.buffers"):
        fitted(Normed(fl.FedBuff(0.05)), data, max_steps=1)
    fitted(Normed(fl.FedBuff(0.05), buffers="local"), data, max_steps=3)


@pytest.mark.parametrize(
    ("hyper", "why"),
    [
        ({"lr_server": 0.0}, r"FedBuff\(lr_server=0\.0\): expected > 0"),
        ({"staleness_power": -0.5}, r"FedBuff\(staleness_power=-0\.5\): expected >= 0"),
    ],
)
def test_impossible_hyper_parameters_are_refused(hyper, why):
    with pytest.raises(ValueError, match=why):
        fl.FedBuff(0.05, **hyper)
