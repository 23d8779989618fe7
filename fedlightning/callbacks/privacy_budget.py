"""What a run has told of single clients, after every round, and an end before it tells too much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.nn.modules.batchnorm import _NormBase

from fedlightning.callbacks.progress import rounds_in_total
from fedlightning.channel.privacy import (
    RDP,
    Accountant,
    EveryClient,
    Ledger,
    Noise,
    Part,
    Sampling,
    noises_of,
    sampling_of,
)
from fedlightning.channel.privacy.empty_cohorts import check_empty_cohorts, leaves_delta
from fedlightning.channel.privacy.sampling import FixedSizeSampling
from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.precision import as_tensor
from fedlightning.core.validation import require, require_instance
from fedlightning.data.remote import RemoteClients

_LEDGERS: WeakKeyDictionary[LightningModule, Ledger] = WeakKeyDictionary()
"""What the fits of each task of this process have released, as another fit goes on with its parameters."""


class PrivacyBudget(Callback):
    """Logs epsilon and delta after every round, and stops a fit before epsilon would exceed a budget.

    The channel of the task adds the noise (:class:`~fedlightning.channel.GaussianNoise`); the data module's
    participation says how cohorts are drawn. Releases are counted by the server, phase by phase, and checkpoints hold
    the counts and how cohorts were drawn, so a resumed fit goes on counting, and so does another fit of the same task
    object. Rounds that were undone count as well. Releases of a checkpoint that was trained without this callback count
    as if all clients had taken part. A fit from weights alone starts at zero, and says so.

    Epsilon covers the server's state and the models made of it. It covers neither the losses that clients report nor
    what is decided by them: stopping, or choosing among checkpoints.

    Args:
        delta: Delta, between 0 and 1; usually well below one over the number of clients.
        accountant: Bounds what releases tell; null for :class:`~fedlightning.channel.privacy.RDP`.
        stop_at_epsilon: Budget > 0; null to go on.
        population: Number of clients of the deployment that ``noise_cohort_size`` stands for; null without it.
        every_n_rounds: Rounds between two accounts, at least 1. PLD takes up to a second for one.
        earlier: Releases of each phase, at least 0, that this run's checkpoint does not know of, though they came from
            the same clients: rounds that were lost with ``secure`` noise, the run that made the weights. They count as
            if drawn with the participation and the noise of this run.
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
        self._task: LightningModule | None = None
        self._before = Ledger()
        self._loaded: Mapping[str, Any] | None = None
        self._accounted = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what has been released, and how cohorts were drawn, in plain types."""
        return {} if self._task is None else self._ledger(self._task).state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting from a :meth:`state_dict`."""
        self._loaded = state_dict

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find out what the fit releases, and end it here if nothing is left of the budget.

        Raises:
            TypeError: If nothing is known of the participation, or the task is no federated one.
            ValueError: If nothing is noised, no account holds for the fit and what was released before, or the budget
                does not allow a single round.
        """
        self._noises = _noises(pl_module)
        self._sampling = self._found_sampling(trainer, pl_module)
        self._before = self._found_ledger(pl_module, self._sampling)
        self._task, self._loaded, self._accounted = pl_module, None, trainer.global_step
        if not self._before.releases + self.earlier:
            rank_zero_info(
                "The account of privacy starts at zero. If the parameters were trained on the same clients before, add "
                "the rounds of that run, PrivacyBudget(earlier=...), and draw this one's noise and cohorts by another "
                "seed of the data module."
            )
        _check_relations(self._before, self._sampling)
        if self.delta * self._sampling.num_clients >= 1:
            rank_zero_warn(
                f"PrivacyBudget(delta={self.delta:g}): with {self._sampling.num_clients} clients, this delta allows to "
                f"publish one of them whole. Take one well below {1 / self._sampling.num_clients:g}."
            )
        if self.stop_at_epsilon is None or not self._before.releases:
            rounds = _rounds_left(trainer) if self.stop_at_epsilon is None else 1
            before, once = self._parts(pl_module, 0), dict(self._releases_of(1))
            check_empty_cohorts(self.accountant, before, self._sampling, once, rounds, self.delta)
        if self.stop_at_epsilon is None:
            return
        limits: Any = trainer.fit_loop
        if limits.min_epochs or limits.min_steps:
            raise InvalidValueError(
                f"PrivacyBudget(stop_at_epsilon={self.stop_at_epsilon}): Trainer(min_epochs={limits.min_epochs}, "
                f"min_steps={limits.min_steps}) would go on after the budget is used up. Leave these out."
            )
        first = self._epsilon(pl_module, rounds=1)
        if first > self.stop_at_epsilon and not self._before.releases:
            raise InvalidValueError(
                f"PrivacyBudget(stop_at_epsilon={self.stop_at_epsilon}): the first round alone has epsilon "
                f"{first:.3g}. Raise the noise: fedlightning privacy noise --help."
            )
        self._stop_if_used_up(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log epsilon and delta, and end the fit if another round would exceed the budget.

        Raises:
            ValueError: If a buffer that a client keeps may tell, with cohorts of a fixed size, who took part before.
        """
        _LEDGERS[pl_module] = self._ledger(pl_module)
        if isinstance(self._sampling, FixedSizeSampling) and (kept := _own_buffers(pl_module)):
            raise InvalidValueError(
                f"PrivacyBudget: '{kept[0]}' changes at each client that takes part, and stays there "
                "(buffers='local'), so that later updates may tell who took part in earlier rounds. No account is "
                "known for this with cohorts of a fixed size. Use "
                f"Poisson(rate={self._sampling.expected / self._sampling.num_clients:g}), or Full()."
            )
        if self.stop_at_epsilon is not None:
            self._stop_if_used_up(trainer, pl_module)
        if trainer.global_step % self.every_n_rounds and not trainer.should_stop:
            return
        self._account(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log epsilon of the whole fit where the last rounds were not accounted for."""
        if self._accounted != trainer.global_step:
            self._account(trainer, pl_module)

    def _account(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log epsilon and delta."""
        self._accounted = trainer.global_step
        values = {"epsilon": self._epsilon(pl_module), "delta": self.delta}
        trainer.callback_metrics.update({name: as_tensor(value) for name, value in values.items()})
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
        return self.accountant.epsilon_of(self._parts(task, rounds), self.delta)

    def _parts(self, task: Any, rounds: int) -> list[Part]:
        """Return all releases after so many more rounds."""
        assert self._sampling is not None
        return [*self._ledger(task).parts, (self._sampling, self._releases_of(self.earlier + rounds))]

    def _releases_of(self, rounds: int) -> Counter[float]:
        releases: Counter[float] = Counter()
        for multiplier in self._multipliers:
            releases[multiplier] += rounds
        return releases

    def _ledger(self, task: Any) -> Ledger:
        """Return what has been released so far."""
        assert self._sampling is not None
        return self._before.with_more(self._sampling, self._multipliers, self._counts(task))

    def _found_ledger(self, task: Any, sampling: Sampling) -> Ledger:
        """Return what was released before this fit: by the run of the checkpoint, or by other fits of the task."""
        known = Ledger.from_state_dict(self._loaded, type(sampling)) if self._loaded else _LEDGERS.get(task, Ledger())
        return known.with_more(EveryClient(sampling.num_clients), self._multipliers, self._counts(task))

    @property
    def _multipliers(self) -> list[float]:
        return [noise.multiplier for noise in self._noises]

    def _stop_if_used_up(self, trainer: Trainer, task: LightningModule) -> None:
        assert self.stop_at_epsilon is not None
        if trainer.should_stop:
            return
        if not leaves_delta(self.accountant, self._parts(task, 1), self.delta):
            trainer.should_stop = True
            rank_zero_info(
                f"Stopped after round {trainer.global_step}: cohorts that may be empty have used up delta="
                f"{self.delta:g}, so that another round would have an infinite epsilon. Take a higher rate."
            )
        elif self._epsilon(task, rounds=1) > self.stop_at_epsilon:
            trainer.should_stop = True
            rank_zero_info(
                f"Stopped after round {trainer.global_step}: epsilon is {self._epsilon(task):.4g} with delta "
                f"{self.delta:g}, and another round would exceed {self.stop_at_epsilon:g}."
            )


def _rounds_left(trainer: Trainer) -> int:
    """Return how many rounds are left to a fit that begins here; 1 if nothing but its budget or a clock ends it."""
    total = rounds_in_total(trainer)
    return 1 if total is None else max(1, total - trainer.global_step)


def _check_relations(before: Ledger, sampling: Sampling) -> None:
    """Refuse to go on with cohorts that hide another change of the data than those before."""
    for other, releases in before.parts:
        if other.relation != sampling.relation:
            raise InvalidValueError(
                f"PrivacyBudget: {sum(releases.values())} releases were made with {other} (so count those of a run "
                f"without PrivacyBudget), which hides {other.protects}; this fit has {sampling}, which hides "
                f"{sampling.protects}. One epsilon cannot stand for both. Go on with the participation of before, or "
                "take Poisson or Full from the start."
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


def _own_buffers(task: Any) -> list[str]:
    """Return buffers that clients change and keep, but for running statistics, which no update of theirs depends on."""
    table = task.run.simulation.runner.clients.table
    layers = [(name, module) for name, module in task.named_modules() if isinstance(module, _NormBase)]
    statistics = {f"{name}.{each}" for name, module in layers for each, _ in module.named_buffers(recurse=False)}
    return sorted(table.changed_buffers - set(table.averaged_buffers) - statistics)
