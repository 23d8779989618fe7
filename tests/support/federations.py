"""Small federations for tests, run by the round loop without a Trainer."""

from __future__ import annotations

import numpy as np
import torch

from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.federation.processes import OneProcess
from fedlightning.federation.sampling.round_loader import RoundLoader
from fedlightning.federation.simulation import Simulation
from fedlightning.oracle import Autocast, Vectorized
from fedlightning.participation import FirstResponders, Full, Uniform
from fedlightning.tasks import ClientNumbers, PersonalQuadratic, QuadraticSaddle

CLIENTS = 6
K = 5


class Rounds(Simulation):
    """A simulation, with short names for what tests look at."""

    @property
    def point(self):
        return self.server.point

    @property
    def state(self):
        return self.server.state

    @property
    def algorithm(self):
        return self.server.algorithm

    @property
    def buffers(self):
        return self.server.buffers

    @property
    def upload(self):
        return self.server.traffic.upload

    @property
    def download(self):
        return self.server.traffic.download

    @property
    def clients(self):
        return self.runner.clients.table.states

    @property
    def oracle(self):
        return self.runner.oracle_selection.oracle

    def client_state(self, states):
        return self.runner.clients.table.client_state(states)


def quadratic(algorithm, num_clients=CLIENTS, dim_y=3, heterogeneity=1.0, seed=3, **federation):
    """A quadratic saddle problem in float64."""
    task = QuadraticSaddle(
        algorithm, num_clients=num_clients, dim_y=dim_y, heterogeneity=heterogeneity, problem_seed=seed, **federation
    )
    return task.double()


def personal_quadratic(algorithm, num_clients=CLIENTS, seed=3, **problem):
    """A quadratic problem with a personal block in float64."""
    return PersonalQuadratic(algorithm, num_clients=num_clients, problem_seed=seed, **problem).double()


def space_of(task):
    """The task's parameters by block."""
    return ParameterSpace(task, task.max_parameters, task.personal_parameters)


def loop_for(task, oracle=None, **options):
    """A round loop on a task, as the module would make it, but for the self-check: tests compare on their own."""
    options = {"self_check": "off", **options}
    return Rounds(task.algorithm, task, space_of(task), oracle or Vectorized(), **options)


def rounds_of(
    algorithm, count, num_clients=CLIENTS, size=None, local_steps=K, seed=0, start=0, processes=None, device="cpu"
):
    """Batches of ``count`` rounds of a federation of numbered clients: the part of one process, if several share it."""
    processes = OneProcess() if processes is None else processes
    data = ClientNumbers(
        num_clients,
        local_steps=local_steps,
        participation=Full() if size is None else Uniform(size),
        rounds_per_epoch=count,
        seed=seed,
    )
    share = {"rank": processes.rank, "world_size": processes.count, "by_owner": True}
    loader = RoundLoader(data, algorithm.phases, start=lambda: start, **share)
    return [batch.place(torch.device(device), torch.float64) for batch in loader]


def run(loop, batches):
    """All rounds; returns the point after each, ``[rounds, d]``."""
    points = []
    for batch in batches:
        loop.run(batch, Autocast(loop.point.device.type))
        points.append(loop.point.clone())
    return torch.stack(points)


def train(algorithm, rounds=4, size=None, oracle=None, local_steps=K, seed=0, device="cpu", **problem):
    """Task, loop and trajectory of a few rounds on a quadratic problem."""
    task = quadratic(algorithm, **problem).to(device)
    loop = loop_for(task, oracle)
    clients = problem.get("num_clients", CLIENTS)
    trajectory = run(loop, rounds_of(algorithm, rounds, clients, size, local_steps, seed, device=device))
    return task, loop, trajectory


def close(a, b, tolerance=1e-12):
    """Equal but for rounding."""
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def responders(**rule):
    """Rounds of thirty clients of whom the first to answer count."""
    return ClientNumbers(30, local_steps=K, participation=FirstResponders(**rule), rounds_per_epoch=60)


def numpy_operators(task):
    """One operator a client, from the problem's matrices."""
    matrices, offsets = task.matrix.double().numpy(), task.offset.double().numpy()
    return [lambda z, g=g, q=q: g @ z + q for g, q in zip(matrices, offsets, strict=True)]


def cohorts_of(batches):
    """Ids of every round's cohort; of every phase's cohort for algorithms with several."""
    rounds = [[cohort.client_ids for cohort in batch.cohorts] for batch in batches]
    return [phases[0] if len(phases) == 1 else phases for phases in rounds]


def start_of(task):
    """The task's initial point."""
    return np.concatenate([p.detach().double().numpy() for p in (task.x, task.y)])
