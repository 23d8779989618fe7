"""FedMM over partial cohorts: the paper's mean wanders, the mean over all clients reaches the saddle."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedMM
from fedlightning.participation import Full, Uniform
from tests.support.federations import loop_for, quadratic, rounds_of, run
from tests.support.small import Line, clients, trainer

PROBLEM = {"num_clients": 10, "heterogeneity": 0.5}


def distances(algorithm, rounds, size, **options):
    task = quadratic(algorithm, **PROBLEM)
    loop = loop_for(task, **options)
    trajectory = run(loop, rounds_of(algorithm, rounds, num_clients=10, size=size, local_steps=4))
    return loop, (trajectory - task.solution).norm(dim=1)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [3.0, [3.0, 4.0]], ids=["one", "by-block"])
def test_the_mean_over_all_reaches_the_saddle_with_thirty_percent_of_the_clients(mu):
    loop, distance = distances(FedMM(0.12, mu=mu, mean_over="all"), 360, size=3)
    assert distance[-1] < 1e-10
    torch.testing.assert_close(loop.state.z, loop.clients.all("state.u").mean(0), rtol=1e-12, atol=1e-12)
    assert loop.clients.all("state.lam").mean(0).norm() < 1e-9


def test_the_mean_over_the_cohort_does_not():
    _, distance = distances(FedMM(0.12, mu=3.0), 200, size=3)
    assert distance[-50:].min() > 0.1


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_with_all_clients_both_are_the_same(weighting):
    task = Line(FedMM(0.05, mu=1.5, eta3=0.9), dropout=0.0, weighting=weighting)
    other = Line(FedMM(0.05, mu=1.5, eta3=0.9, mean_over="all"), dropout=0.0, weighting=weighting)
    other.load_state_dict(task.state_dict())
    points = []
    for each in (task, other):
        data = FederatedDataModule.from_datasets(clients(), batch_size=4, local_steps=3, seed=1)
        trainer(max_steps=6, precision="64-true").fit(each, data)
        points.append(each.server_state.z)
        assert each.traffic[0] == 6 * 4 * len(points[0])
    torch.testing.assert_close(*points, rtol=1e-12, atol=1e-12)


def test_a_server_optimizer_moves_the_point_and_not_the_mean():
    make = partial(torch.optim.SGD, lr=0.5)
    task = Line(FedMM(0.05, mean_over="all"), dropout=0.0, server_optimizer=make)
    data = FederatedDataModule.from_datasets(clients(), batch_size=4, local_steps=3, participation=Uniform(2))
    trainer(max_steps=5, precision="64-true").fit(task, data)
    server = task.server_state
    assert (server.z - server.mean).norm() > 1e-3
    torch.testing.assert_close(server.mean, task.client_states.u.mean(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("mean_over", "participation", "said"),
    [
        ("cohort", Uniform(2), True),
        ("cohort", Full(), False),
        ("cohort", Uniform(4), False),
        ("all", Uniform(2), False),
    ],
)
def test_who_trains_the_paper_s_method_on_partial_cohorts_is_told(mean_over, participation, said, caplog):
    data = FederatedDataModule.from_datasets(clients(), batch_size=4, local_steps=1, participation=participation)
    with caplog.at_level("INFO", "lightning.pytorch.utilities.rank_zero"):
        trainer(max_steps=1).fit(Line(FedMM(0.05, mean_over=mean_over)), data)
    told = [r.getMessage() for r in caplog.records if "does not converge to the saddle; mean_over: all" in r.message]
    assert len(told) == said


def test_an_unknown_mean_is_refused():
    with pytest.raises(ValueError, match=r"FedMM\(mean_over='every'\): expected 'cohort' or 'all'"):
        FedMM(0.05, mean_over="every")
