"""What a run has told of single clients, after every round, and an end before it tells too much."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from fedlightning.channel.privacy import RDP, Accountant, EveryClient, Noise, Sampling, noises_of, sampling_of
from fedlightning.channel.privacy.sampling import FixedSizeSampling
from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.validation import require, require_instance
from fedlightning.data.remote import RemoteClients


class PrivacyBudget(Callback):
    """Logs epsilon and delta after every round, and stops a fit before epsilon would exceed a budget.

    The channel of the task adds the noise (:class:`~fedlightning.channel.GaussianNoise`); the data module's
    participation says how cohorts are drawn. Releases are counted by the server, phase by phase, and its checkpoints
    hold the counts, so a resumed fit goes on counting. Rounds that were undone count as well.

    Epsilon covers the server's state and the models made of it. It covers neither the losses that clients report nor
    what is decided by them: stopping, or choosing among checkpoints.

    Args:
        delta: Delta, between 0 and 1; usually well below one over the number of clients.
        accountant: Bounds what releases tell; null for :class:`~fedlightning.channel.privacy.RDP`.
        stop_at_epsilon: Budget > 0; null to go on.
        population: Number of clients of the deployment that ``noise_cohort_size`` stands for; null without it.
        every_n_rounds: Rounds between two accounts, at least 1. PLD takes up to a second for one.
        earlier: Releases of each phase, at least 0, that this run's checkpoint does not know of, though they came from
            the same clients: rounds that were lost with ``secure`` noise, an earlier run.
    """

    def __init__(
        self,
        delta: float,
        accountant: Accountant | None = None,
        stop_at_epsilon: float | None = None,
        population: int | None = None,
        every_n_rounds: int = 1,
        earlier: int = 0,
    ) -> None:
        self.delta = delta
        self.accountant = RDP() if accountant is None else accountant
        self.stop_at_epsilon = stop_at_epsilon
        self.population = population
        self.every_n_rounds = every_n_rounds
        self.earlier = earlier
        require(self, "delta", above=0.0, below=1.0)
        require(self, "stop_at_epsilon", above=0.0, optional=True)
        require(self, "population", at_least=1, whole=True, optional=True)
        require(self, "every_n_rounds", at_least=1, whole=True)
        require(self, "earlier", at_least=0, whole=True)
        require_instance("PrivacyBudget(accountant", self.accountant, Accountant, "RDP()")
        self._noises: tuple[Noise, ...] = ()
        self._sampling: Sampling | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find out what the fit releases, and end it here if nothing is left of the budget.

        Raises:
            TypeError: If nothing is known of the participation, or the task is no federated one.
            ValueError: If nothing is noised, no account holds for the fit, or the budget does not allow a single round.
        """
        self._noises = _noises(pl_module)
        self._sampling = self._found_sampling(trainer, pl_module)
        if self.stop_at_epsilon is None:
            return
        limits: Any = trainer.fit_loop
        if limits.min_epochs or limits.min_steps:
            raise InvalidValueError(
                f"PrivacyBudget(stop_at_epsilon={self.stop_at_epsilon}): Trainer(min_epochs={limits.min_epochs}, "
                f"min_steps={limits.min_steps}) would go on after the budget is used up. Leave these out."
            )
        first = self._epsilon(pl_module, rounds=1)
        if first > self.stop_at_epsilon and not any(self._counts(pl_module)):
            raise InvalidValueError(
                f"PrivacyBudget(stop_at_epsilon={self.stop_at_epsilon}): the first round alone has epsilon "
                f"{first:.3g}. Raise the noise: fedlightning privacy noise --help."
            )
        self._stop_if_used_up(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log epsilon and delta, and end the fit if another round would exceed the budget."""
        if self.stop_at_epsilon is not None:
            self._stop_if_used_up(trainer, pl_module)
        if trainer.global_step % self.every_n_rounds and not trainer.should_stop:
            return
        values = {"epsilon": self._epsilon(pl_module), "delta": self.delta}
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in values.items()})
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)

    def _found_sampling(self, trainer: Trainer, task: Any) -> Sampling:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if not hasattr(data, "participation"):
            raise InvalidTypeError(
                f"PrivacyBudget: a {type(data).__name__} does not say how cohorts are drawn. Train with a "
                "FederatedDataModule or RemoteClients."
            )
        sampling = _known_to_nodes(data, sampling_of(data.participation, data.num_clients))
        if isinstance(sampling, FixedSizeSampling) and _keeps_states(task):
            raise InvalidValueError(
                f"PrivacyBudget: {type(data.participation).__name__} draws cohorts of a fixed size, and clients of "
                f"{type(task.algorithm).__name__} here keep states of their own, from which later rounds may tell who "
                "took part in earlier ones. No account is known for this. Use "
                f"Poisson(rate={sampling.expected / data.num_clients:g}), or Full()."
            )
        sizes = {noise.noise_cohort_size for noise in self._noises}
        if sizes == {None}:
            if self.population is not None:
                raise InvalidValueError(
                    f"PrivacyBudget(population={self.population}): the noise is made for the cohorts of this run, so "
                    "leave population out, or set GaussianNoise(noise_cohort_size=...)."
                )
            return sampling
        cohort = sizes.pop()
        if sizes or cohort is None or self.population is None:
            raise InvalidValueError(
                f"PrivacyBudget(population={self.population}): some noise stands for larger cohorts. Give one "
                "noise_cohort_size to all phases, and population, the number of clients that such a cohort is drawn of."
            )
        rank_zero_info(
            f"epsilon is that of a deployment with {self.population} clients; this run, with fewer, protects less."
        )
        return sampling.scaled(self.population, cohort)

    def _counts(self, task: Any) -> list[int]:
        """Return the number of releases of each phase so far."""
        known = task.run.simulation.server.reception.kept.releases
        return [known.get(str(phase), 0) for phase in range(len(self._noises))]

    def _epsilon(self, task: Any, rounds: int = 0) -> float:
        """Return epsilon after so many more rounds."""
        assert self._sampling is not None
        releases: Counter[float] = Counter()
        for noise, count in zip(self._noises, self._counts(task), strict=True):
            releases[noise.multiplier] += count + self.earlier + rounds
        return self.accountant.epsilon(self._sampling, releases, self.delta)

    def _stop_if_used_up(self, trainer: Trainer, task: LightningModule) -> None:
        assert self.stop_at_epsilon is not None
        if not trainer.should_stop and self._epsilon(task, rounds=1) > self.stop_at_epsilon:
            trainer.should_stop = True
            rank_zero_info(
                f"Stopped after round {trainer.global_step}: epsilon is {self._epsilon(task):.4g} with delta "
                f"{self.delta:g}, and another round would exceed {self.stop_at_epsilon:g}."
            )


def _known_to_nodes(data: Any, sampling: Sampling) -> Sampling:
    """Return how cohorts are drawn as far as nodes do not know it: they are told the seed that cohorts follow from."""
    if not isinstance(data, RemoteClients) or isinstance(sampling, EveryClient):
        return sampling
    rank_zero_info(
        "Nodes know the seed of the cohorts, so epsilon counts each client as if it took part in all rounds."
    )
    return EveryClient(data.num_clients)


def _noises(task: Any) -> tuple[Noise, ...]:
    """Return the noise of each phase of a task.

    Raises:
        TypeError: If the task is no federated one.
        ValueError: If there is none.
    """
    options = getattr(task, "federation_options", None)
    if options is None:
        raise InvalidTypeError(f"PrivacyBudget: {type(task).__name__} is no federated task, and releases nothing.")
    noises = noises_of(options.channel, task.algorithm)
    if not noises:
        raise InvalidValueError(
            f"PrivacyBudget: {type(task).__name__} has no noise to account for. Give it "
            "channel=Channel(client=[Clip(1.0)], server=[GaussianNoise(multiplier=1.0)])."
        )
    return noises


def _keeps_states(task: Any) -> bool:
    """Return whether clients keep anything from round to round: states, personal parameters, memories of transforms."""
    space = task.parameter_space()
    bound = task.run.simulation.server.algorithm
    if space.personal.dim or bound.init_client(task.run.simulation.server.point) is not None:
        return True
    channels = task.federation_options.channel
    of_phases = [channels.of(phase) for phase in range(len(bound.phases))]
    return any(channel.remembers for channel in of_phases)
