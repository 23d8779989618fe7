"""lp-proj (Lin, Han, Li and Zhang, NeurIPS 2022): personal models tied together in a random subspace.

Client, on every minibatch:   theta <- theta - lr * (g_i(theta) + lam * P' s(P theta - w)),   inner_steps times
                              w     <- w + lr_reference * lam * s(P theta - w)
Server:                       w     <- (1 - beta) * w + beta * mean(w)

with s(r) = r for p = 2 and sign(r) for p = 1. These are steps on h_i(w) = min over theta of f_i(theta) + lam/p |r|^p
with r = P theta - w in the p-norm, an infimal convolution. theta is the client's own model, of full length d, and stays
where it is; only the reference w, of length k = ``dim``, travels. P is drawn once from ``seed``, which everybody knows.

The server knows no model, only w. The point that is logged and evaluated as the global one is z0 + P'(w - P z0): of all
models that P takes to w the one nearest to the common start z0 (P P' = I). It is worth little by itself where k << d;
the clients' own models are what the method is for. The drift is |w_i - w|, which is the distance of these points.

Known from the paper's abstract and its authors' code (desternylin/perfed), not from the paper's full text.

P mixes no min with max coordinates, so with a max block y the problem stays a saddle point problem, y having a
reference of its own.

Symbols: w -> w; theta_i -> theta; P -> the projection drawn from seed; lambda -> lam; p -> p; eta -> lr_reference; beta
-> beta.

Departures: P is a :class:`~fedlightning.local.CountSketch` and not a dense Gaussian with normalised rows, which would
take k d numbers and as much time a step; it has the same scale, so lam means the same. w starts at P z0 and not at
zero, so that nothing pulls before the clients differ. The inner steps are taken on one minibatch and not on one each
(as in :class:`pFedMe`, which this is for p = 2, k = d, apart from theta's start: here it is carried on from round to
round). In the code all clients train in every round and some of them send; here those train who send. Its p = 2 step of
w is taken where its general one would divide by the norm. No weight decay and no clipping.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Reply, per_block, relative_to
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.parameter_space import ParameterSpace, PerBlock
from fedlightning.core.schedule import PerRound
from fedlightning.core.validation import require, require_step_size
from fedlightning.local import CountSketch
from fedlightning.oracle.gradient import GradientOracle
from fedlightning.proximal.composite import Composite


@dataclass(frozen=True)
class Reference:
    """Holds the message in both directions.

    Attributes:
        w: The reference, ``[k]`` as a message and after averaging, ``[S, k]`` as an update.
    """

    w: Tensor = relative_to("w")


@dataclass(frozen=True)
class Server:
    """Holds the server's state between rounds.

    Attributes:
        w: The reference, ``[k]``.
        start: The task's initial parameters z0, ``[d]``; never sent.
    """

    w: Tensor
    start: Tensor


@dataclass(frozen=True)
class Client:
    """Holds the state of a client between rounds.

    Attributes:
        theta: The personal model, ``[d]`` for one client, ``[S, d]`` for a cohort.
    """

    theta: Tensor


@dataclass(frozen=True, eq=False)
class LpProj(Algorithm):
    """Trains personal models whose projections to a random subspace are drawn to a common reference.

    Args:
        lr: Step size > 0 of theta: one number, ``[min, max]`` or by name prefix.
        dim: Length k >= 1 of the reference, at most that of the model.
        lam: Weight lambda >= 0 of the distance between theta's projection and the reference.
        lr_reference: Step size eta > 0 of w; for p = 2 ``lr_reference * lam`` stays below 2.
        p: Norm of the distance: 2, squared, or 1, of which the paper reports robustness against wrong uploads.
        inner_steps: Steps of theta on each minibatch.
        beta: Share beta > 0 of the clients' mean in the server's new reference.
        seed: Of the projection.
    """

    lr: PerBlock = per_block()
    dim: int  # type: ignore[misc]  # per_block() without a default has none
    lam: PerRound = 1.0
    lr_reference: PerRound = 0.1
    p: int = 2
    inner_steps: int = 1
    beta: PerRound = 1.0
    seed: int = 0

    primal: ClassVar[bool] = False
    state_depends_on = ("dim", "seed")  # another P makes another model of the same reference

    sketch: ClassVar[CountSketch]
    """The projection P, drawn by :meth:`bind`."""

    def __post_init__(self) -> None:
        require_step_size(self, "lr", "lr_reference")
        require(self, "beta", above=0.0)
        require(self, "dim", "inner_steps", at_least=1)
        require(self, "lam", at_least=0.0)
        require(self, "seed")
        if self.p not in (1, 2):
            raise InvalidValueError(f"LpProj(p={self.p!r}): expected 1 or 2.")

    def bind(self, space: ParameterSpace, like: Tensor, regularizer: Composite | None = None) -> LpProj:
        """Return a bound copy that knows the projection."""
        bound = super().bind(space, like, regularizer)
        x, y = space.shared.min_dim, space.shared.dim - space.shared.min_dim
        k = bound.dim
        fewest = (x > 0) + (y > 0)
        if not fewest <= k <= x + y:
            raise InvalidValueError(f"LpProj(dim={k}): expected {fewest} to {x + y}, the number of shared parameters.")
        first = k if not y else min(max(round(k * x / (x + y)), min(x, 1), k - y), x, k - 1)
        object.__setattr__(bound, "sketch", _drawn((x, y), (first, k - first), bound.seed, like))
        return bound

    def init_server(self, z: Tensor) -> Server:
        """Start with the projection of the point as the reference."""
        return Server(self.sketch.project(z), z)

    def init_client(self, z: Tensor) -> Client:
        """Start with the personal model at the point."""
        return Client(z)

    def broadcast(self, server: Server) -> Reference:
        """Send the reference."""
        return Reference(server.w)

    def client_update(self, message: Reference, state: Client, oracle: GradientOracle) -> Reply:
        """Take steps of the personal model on the pulled objective, and move the reference towards its projection."""
        project, lift, lam = self.sketch.project, self.sketch.lift, self.lam
        theta, w, v = state.theta, message.w.expand(oracle.num_clients, -1), oracle.personal
        for batch in oracle.batches():
            for step in range(self.inner_steps):
                g, v = oracle.step_personal(theta, v, batch, 0.0 if step else self.personal_lr)
                pull = lam * lift(self._slope(project(theta) - w))
                theta = batch.keep(theta - self.lr * (g + pull), theta)
            w = batch.keep(w + self.lr_reference * lam * self._slope(project(theta) - w), w)
        log = {"reference_drift": (w - message.w).norm(dim=1), "own_distance": (project(theta) - message.w).norm(dim=1)}
        return Reply(Reference(w), Client(theta), personal=v, log=log)

    def server_update(self, server: Server, update: Reference) -> Server:
        """Step by the share beta towards the mean of the clients' references."""
        return Server((1 - self.beta) * server.w + self.beta * update.w, server.start)

    def point(self, server: Server) -> Tensor:
        """Return the model nearest to the start whose projection is the reference."""
        return server.start + self.sketch.lift(server.w - self.sketch.project(server.start))

    def personal_model(self, state: Client) -> Tensor:
        """Return the personal models."""
        return state.theta

    def _slope(self, gap: Tensor) -> Tensor:
        """Return the gradient of 1/p |gap|^p, a subgradient for p = 1."""
        return gap if self.p == 2 else gap.sign()


_IN_USE: WeakValueDictionary[tuple[Any, ...], CountSketch] = WeakValueDictionary()


def _drawn(sizes: tuple[int, int], rows: tuple[int, int], seed: int, like: Tensor) -> CountSketch:
    """Draw a projection, or return the same one if it is in use: a schedule binds the algorithm in every round."""
    key = (sizes, rows, seed, like.dtype, like.device)
    sketch = _IN_USE.get(key)
    if sketch is None:
        sketch = _IN_USE[key] = CountSketch(sizes, rows, seed, like)
    return sketch
