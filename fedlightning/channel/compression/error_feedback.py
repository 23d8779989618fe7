"""Compression with memory: EF21 (Richtárik, Sokolov, Fatkhullin, NeurIPS 2021).

Client i remembers g_i, which the server knows too, and sends what has changed since:

    c_i = C(u_i - g_i);  g_i <- g_i + c_i;  the server receives g_i

for an update u_i, zero being the first g_i. At a fixed point u_i stands still, so g_i = u_i and nothing is lost,
however much clients differ; a contraction C without memory loses (I - C) u_i in every round, and ends elsewhere.

Some fields are increments of something t_i that the client keeps, while the server keeps the mean of t_i as a running
sum: control variates, duals. What is lost of such an increment is missing from that sum for ever, so EF21 has to follow
t_i, not the increment. With h_i for what the server has received of t_i in all, and e_i = t_i - h_i:

    c_i = C(u_i + e_i);  e_i <- u_i + e_i - c_i;  the server receives c_i

which is error feedback as it was first known (Seide, Fu, Droppo, Li, Yu, Interspeech 2014), and the same method. The
server's sum is off by the mean of e_i, which vanishes as the increments do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedlightning.channel.base import Exchange, Fields, Sent, Transform
from fedlightning.channel.compression.compressor import Compressor, resent
from fedlightning.channel.compression.draws import Draws
from fedlightning.core.validation import require_instance


@dataclass(frozen=True)
class ErrorFeedback(Transform):
    """Compresses what has changed since a client's last update, so that nothing is lost in the long run (EF21).

    Unbiased compressors are divided by 1 + ω, which makes contractions of them. Clients keep a vector for each field.

    The bits are those of c_i, though the server's row is g_i: to know it, a server keeps the g_i of every client. Where
    all clients answer in every round, the mean of all g_i is enough; for increments that the server sums up, nothing
    has to be kept.

    Args:
        inner: Compressor C.
    """

    inner: Compressor

    def __post_init__(self) -> None:
        require_instance("ErrorFeedback(inner", self.inner, Compressor, "TopK(0.1)")

    def memory(self, like: Fields) -> Fields:
        """Return zeros: nothing has been sent yet; see :meth:`Transform.memory`."""
        return {name: torch.zeros_like(value) for name, value in like.items()}

    def apply(self, sent: Sent, memory: Fields, exchange: Exchange, purpose: int) -> tuple[Sent, Fields]:
        """Send what has changed, and remember it; see :meth:`Transform.apply`.

        The server's rows, of an exchange without client ids, are differences from what clients know: they have the
        errors in them already, and are compressed without memory.
        """
        if not exchange.client_ids:
            return self.inner.apply(sent, memory, exchange, purpose)
        draws = Draws.of(sent.values, exchange, purpose)
        found, after = {}, {}
        for name, value in sent.values.items():
            known = memory[name]
            if name in exchange.accumulated:
                change = value + known
                found[name] = self.inner.contracted(change, draws)
                after[name] = change - found[name].values
            else:
                increment = self.inner.contracted(value - known, draws)
                after[name] = known + increment.values
                found[name] = replace(increment, values=after[name])
        return resent(sent, found), after
