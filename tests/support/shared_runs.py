"""Runs whose results must not depend on the number of processes."""

from __future__ import annotations

import warnings
from functools import partial

import torch

from fedlightning import algorithms as fl
from fedlightning.channel import ALIE, Channel, GeometricMedian, NearestNeighbourMixing, TrimmedMean
from fedlightning.federation.server import RoundRejectedError
from fedlightning.oracle import Autocast, Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import QuadraticSaddle
from tests.support.cases import CASES
from tests.support.federations import loop_for, personal_quadratic, quadratic, rounds_of
from tests.support.situations import ROUNDS, SITUATIONS, batches_of, seeded
from tests.support.small import regression_data

COUNT = 2


def followed(simulation, batches, undo_overflow=False):
    """All that may be compared of a run: points, what was logged, which rounds were rejected, and what is stored."""
    record = {"points": [], "metrics": [], "rejected": [], "undone": []}
    for number, batch in enumerate(batches):
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Round .* was skipped")
                warnings.filterwarnings("ignore", message=".*NaN or infinite")
                result = simulation.run(batch, Autocast("cpu"), undo_overflow)
            record["metrics"].append({name: torch.as_tensor(value) for name, value in result.metrics.items()})
            record["undone"].append(result.undone)
        except RoundRejectedError as error:
            record["rejected"].append((number, str(error)))
        record["points"].append(simulation.point.clone())
    return {**record, "points": torch.stack(record["points"]), "state": simulation.state_dict()}


def on_a_quadratic(name, size, processes):
    algorithm = CASES[name].algorithm()
    simulation = loop_for(quadratic(algorithm), processes=processes)
    return followed(simulation, rounds_of(algorithm, ROUNDS, size=size, processes=processes))


def on_personal_blocks(name, processes):
    case = CASES[name]
    algorithm = case.personal_algorithm()
    simulation = loop_for(personal_quadratic(algorithm, **case.problem), processes=processes)
    return followed(simulation, rounds_of(algorithm, ROUNDS, size=4, processes=processes))


def under_attack(name, rule, processes):
    """Twelve clients, three of whom attack."""
    algorithm = CASES[name].algorithm()
    channel = Channel(aggregate=rule, adversary=ALIE(share=0.25))
    simulation = loop_for(quadratic(algorithm, num_clients=12), processes=processes, channels=channel)
    return followed(simulation, rounds_of(algorithm, ROUNDS, 12, processes=processes))


def in_a_situation(situation, processes):
    make, data_options, options = SITUATIONS[situation]
    task = seeded(make)()
    data = regression_data(**{"participation": Uniform(3), **data_options})
    simulation = loop_for(task, Vectorized(chunk_size=2), processes=processes, **options)
    return followed(simulation, batches_of(data, task, processes=processes))


class Failing(QuadraticSaddle):
    """A quadratic problem in which some clients return NaN."""

    failing: frozenset[int] = frozenset()

    def objective(self, batch):
        lost = torch.isin(batch, torch.tensor(sorted(self.failing), dtype=batch.dtype)).any()
        return super().objective(batch) * torch.where(lost, torch.nan, 1.0)


def with_failing_clients(failing, undo_overflow, processes):
    """One round in which all clients are sound, and two in which some fail."""
    algorithm = fl.SCAFFOLD(0.05)
    task = Failing(algorithm, num_clients=6, problem_seed=3).double()
    simulation = loop_for(task, processes=processes)
    batches = rounds_of(algorithm, 3, processes=processes)
    sound = followed(simulation, batches[:1])
    task.failing = frozenset(failing)
    after = followed(simulation, batches[1:], undo_overflow)
    return {**after, "points": torch.cat([sound["points"], after["points"]])}


EVERYONE = range(6)
RUNS = {
    **{f"{name}: cohort": partial(on_a_quadratic, name, 4) for name in CASES},
    **{f"{name}: a process without clients": partial(on_a_quadratic, name, 2) for name in ("SCAFFOLD", "FIAELT")},
    **{f"{name}: personal block": partial(on_personal_blocks, name) for name in CASES},
    **{f"situation: {situation}": partial(in_a_situation, situation) for situation in SITUATIONS},
    "attacked: the mean": partial(under_attack, "SCAFFOLD", None),
    "attacked: trimmed mean": partial(under_attack, "SCAFFOLD", TrimmedMean(0.25)),
    "attacked: mixing": partial(under_attack, "FedMM", NearestNeighbourMixing(GeometricMedian(), 3)),
    "failing: a client of the second process": partial(with_failing_clients, [3], False),
    "failing: all clients of the second process": partial(with_failing_clients, [1, 3, 5], False),
    "failing: everyone": partial(with_failing_clients, EVERYONE, False),
    "failing: an overflow in the second process": partial(with_failing_clients, [3], True),
}
"""By name, functions of the :class:`Processes` that share a run."""
