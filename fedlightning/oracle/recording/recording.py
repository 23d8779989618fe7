"""Recording of a gradient at the first step of a round, and replay at all other steps.

Under ``vmap`` the K local steps of a round run the same tensor operations on new numbers. For small models, most of the
time goes into finding out which operations these are: Python, functorch and autograd bookkeeping. A :class:`Recording`
notes the operations that reach the device during the first step (forward and backward) as a
:class:`~fedlightning.oracle.recording.program.Program`, and runs the rest of the round from the program. The operations
are the same, so the results are the same bit for bit (but see :meth:`Recording.steps`); random operations draw anew. A
recording lives for one phase of one round, so the next round sees whatever a task changes between rounds (a schedule, a
mode). Its first call runs as it stands, too; if it does what the same call did in an earlier round
(:mod:`fedlightning.oracle.recording.outline`), that round's program is used again, and so are those for other numbers
of clients (:mod:`fedlightning.oracle.recording.known`). From the third such round on a glance may do in its place
(:mod:`fedlightning.oracle.recording.glance`). On a GPU, a replay that draws no random numbers is one CUDA graph
(:mod:`fedlightning.oracle.recording.graphs`).

A function is not recorded if it reads a tensor's value in Python, draws from a generator of its own, or writes into a
tensor that existed before the call, because its next call may run other operations or find other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedlightning.oracle.randomness import ClientNoise, Noise, PerClient
from fedlightning.oracle.recording.direct import without_overrides
from fedlightning.oracle.recording.glance import Glance, no_glance
from fedlightning.oracle.recording.known import KnownInRound, KnownRecording
from fedlightning.oracle.recording.outline import Draft
from fedlightning.oracle.recording.program import Steps
from fedlightning.oracle.recording.recorder import Follower, Recorder
from fedlightning.oracle.recording.replay import Replay

Recordable = Callable[..., tuple[Sequence[Tensor], Any]]
"""A function of tensors without side effects. The first result is a sequence of tensors; the second result is the same
in all calls with the same shapes."""


class Recording:
    """Calls a function of tensors, and replays the function from the second call with the same shapes on."""

    def __init__(
        self,
        function: Recordable,
        noise: Noise | None = None,
        known: KnownInRound | None = None,
        kind: Any = None,
        glance: Callable[..., Glance | None] = no_glance,
    ) -> None:
        """Wrap a function.

        Args:
            function: What is recorded.
            noise: Draws its random numbers.
            known: Keeps recordings for other rounds; None to keep none.
            kind: Tells this function from others of which recordings are kept.
            glance: Shows, for arguments of the function, in less time than the function whether it does what it did;
                by default nothing does.
        """
        self._function = function
        self._known, self._kind, self._glance = known, kind, glance
        self._noise: Noise = ClientNoise() if noise is None else noise
        self._replays: dict[Any, Replay | None] = {}

    @property
    def replays(self) -> bool:
        """Whether everything called so far is replayed when it is called again."""
        return all(known is not None for known in self._replays.values())

    def is_replayed(self, *inputs: Tensor) -> bool | None:
        """Return whether a call with such arguments would be replayed; None if it would be the first."""
        key = key_of(inputs)
        return self._replays[key] is not None if self._has_met(key) else None

    def __call__(self, *inputs: Tensor, room: Tensor | None = None) -> tuple[Sequence[Tensor], Any]:
        """Return what the function returns.

        Args:
            inputs: Arguments of the function.
            room: Where a replay may put the function's first result: a tensor of its shape and dtype. It is the first
                result then, or has not been used.
        """
        key = key_of(inputs)
        if not self._has_met(key):
            return self._record(key, inputs)
        known = self._replays[key]
        if known is None:
            with PerClient(self._noise):
                return self._function(*inputs)
        with torch.no_grad(), without_overrides():
            return known.run(*inputs, room=room), known.constant

    def can_step(self, *inputs: Tensor) -> bool:
        """Return whether :meth:`steps` can replay a call with such arguments."""
        known = self._replay_of(key_of(inputs))
        return known is not None and known.steps is not None

    def steps(self, *inputs: Tensor, lr: float) -> tuple[Steps, Any] | None:
        """Begin steps along what would be the function's first result, in place.

        Every step subtracts ``lr`` times that result from the first argument, as does
        ``point.sub_(result, alpha=lr)``. The result is the parts that the function joins into it, which are not put
        together. On a CPU, large matrix products are subtracted while they are computed, which leaves out a rounding;
        all other bits are the same.

        Args:
            inputs: Arguments of the first step.
            lr: Step size.

        Returns:
            What is sent, for every step, all arguments but the first, each as it is here but for the numbers, and gives
            all results but the first; and the function's second result. Send inside ``torch.no_grad`` and
            ``without_overrides``. The first argument holds what the steps made of it once they are closed. None if
            :meth:`can_step` says so.
        """
        known = self._replay_of(key_of(inputs))
        if known is None or known.steps is None:
            return None
        with torch.no_grad(), without_overrides():
            steps = known.steps(inputs[0], lr)
            next(steps)
        return steps, known.constant

    def _has_met(self, key: Any) -> bool:
        """Return whether a call is no first one, or need not be looked at because the like of it was."""
        if key not in self._replays and self._known is not None:
            replay = self._known.right(self._kind_of(key), self._alike(key))
            if replay is not None:
                self._replays[key] = replay
        return key in self._replays

    def _replay_of(self, key: Any) -> Replay | None:
        """Return what replays calls of a kind; None if nothing does so far."""
        return self._replays[key] if self._has_met(key) else None

    def _kind_of(self, key: Any) -> Any:
        """Return what tells recordings apart; threads decide which products are subtracted at once."""
        return self._kind, torch.get_num_threads(), key

    def _alike(self, key: Any) -> Any:
        """Return what recordings for other numbers of clients have in common with that of a kind."""
        return self._kind_of(tuple([(shape[1:], dtype, place) for shape, _, dtype, place in key]))

    def _record(self, key: Any, inputs: Sequence[Tensor]) -> tuple[Sequence[Tensor], Any]:
        if self._known is None:
            return self._record_anew(key, inputs, None)
        kind = self._kind_of(key)
        earlier = self._known.earlier(kind)
        if earlier is not None:
            return self._at_a_glance(key, inputs, earlier) or self._follow(key, inputs, earlier)
        if not self._known.is_of_use(kind):
            return self._record_anew(key, inputs, None)
        draft = Draft(inputs)
        outputs, constant = self._record_anew(key, inputs, draft)
        self._known.keep(kind, self._alike(key), draft.finished(outputs), self._replays[key])
        return outputs, constant

    def _record_anew(self, key: Any, inputs: Sequence[Tensor], draft: Draft | None) -> tuple[Sequence[Tensor], Any]:
        recorder = Recorder(inputs, self._noise, draft)
        with recorder:
            outputs, constant = self._function(*inputs)
        self._replays[key] = recorder.replay(outputs, constant)
        return outputs, constant

    def _at_a_glance(
        self, key: Any, inputs: Sequence[Tensor], earlier: KnownRecording
    ) -> tuple[Sequence[Tensor], Any] | None:
        """Return what an earlier recording gives, if a glance shows that it is right; else None."""
        if earlier.glance is None:
            return None
        if self._glance(*inputs) != earlier.glance:
            earlier.glance = None
            return None
        self._agrees(key, earlier)
        with torch.no_grad(), without_overrides():
            return earlier.replay.run(*inputs), earlier.replay.constant

    def _follow(self, key: Any, inputs: Sequence[Tensor], earlier: KnownRecording) -> tuple[Sequence[Tensor], Any]:
        """Call the function, which is known already if it does what it did in another round.

        If it does something else, it counts as changing from round to round: its next call is recorded.
        """
        assert self._known is not None
        draft = Draft(inputs)
        with Follower(self._noise, draft):
            outputs, constant = self._function(*inputs)
        if draft.finished(outputs) == earlier.outline and constant == earlier.replay.constant:
            self._agrees(key, earlier)
            if not earlier.was_glanced_at:
                seen = self._glance(*inputs)
                earlier.glance = seen if seen is not None and seen.tells_all(earlier.outline) else None
                earlier.was_glanced_at = True
        else:
            self._known.give_up(self._kind_of(key))
        return outputs, constant

    def _agrees(self, key: Any, earlier: KnownRecording) -> None:
        """Replay from now on what was recorded in another round."""
        assert self._known is not None
        self._replays[key] = earlier.replay
        self._known.agrees(self._kind_of(key), self._alike(key))


def key_of(inputs: Sequence[Tensor]) -> Any:
    """Return what calls must agree in to run the same operations: also in which inputs are one tensor."""
    places: dict[int, int] = {}  # where each tensor stands first, by identity
    return tuple(
        [
            (t.shape, t.stride() if t.numel() else (), t.dtype, places.setdefault(id(t), place))
            for place, t in enumerate(inputs)
        ]
    )
