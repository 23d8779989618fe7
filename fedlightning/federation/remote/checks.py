"""Checks of answers from other machines, before any of their numbers touches a state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from math import hypot, isfinite, isnan, nan
from typing import Any

import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.federation.channels.differences import counts_of, squared_norms_of
from fedlightning.federation.protocol import Answer, Request
from fedlightning.federation.remote.expectations import Expectation
from fedlightning.federation.validation import tensors_of


class AnswerChecks:
    """Says what is wrong with an answer, so that it can be left out.

    NaN and infinity pass: the server leaves such clients out itself, and has to see them where a loss is scaled.
    """

    def __init__(self, largest: float = 1e12) -> None:
        """Set the limits.

        Args:
            largest: Numbers of an update, a buffer or a validation may be this large, above 0. Larger ones are taken
                for those of a broken or hostile machine, and would drown all others in a mean. Logged values may be as
                large as 1e12.

        Raises:
            ValueError: If the limit is not above 0.
        """
        if not largest > 0:
            raise InvalidValueError(f"largest={largest}: expected a number above 0.")
        self._largest = largest

    def objection(self, answer: Answer, request: Request, expected: Expectation, asked: Collection[int]) -> str | None:
        """Return what is wrong with the answer of one client; None if nothing is.

        Args:
            answer: The answer.
            request: What was asked.
            expected: What an answer to this request looks like.
            asked: The clients that the machine it came from was asked about.
        """
        return next(self._objections(answer, request, expected, asked), None)

    def _objections(
        self, answer: Answer, request: Request, expected: Expectation, asked: Collection[int]
    ) -> Iterator[str]:
        if answer.stamp != request.stamp:
            yield f"it answers phase {answer.stamp.phase + 1} of round {answer.stamp.round + 1}"
        if len(answer.client_ids) != 1:
            yield f"it is of {len(answer.client_ids)} clients; expected one"
        elif answer.client_ids[0] not in asked:
            yield "its machine was not asked for this client"
        if type(answer.update) is not type(expected.update):
            yield f"its update is a {type(answer.update).__name__}; expected a {type(expected.update).__name__}"
            return
        sent = {**tensors_of(answer.update), "buffers": answer.buffers}
        wanted = {**tensors_of(expected.update), "buffers": expected.buffers}
        yield from _differences(sent, wanted)
        yield from self.too_large(sent)
        yield from self._wrong_values(_plain(answer.update), _plain(expected.update))
        yield from _wrong_norms(answer.update)
        yield from self._objections_to_what_a_channel_adds(answer, expected)
        if set(answer.metrics) != expected.metrics:
            yield f"it logs {sorted(answer.metrics)}; expected {sorted(expected.metrics)}"
        if answer.per_client != expected.per_client:
            yield f"it logs {sorted(answer.per_client)} client by client; expected {sorted(expected.per_client)}"
        for name, value in {**answer.metrics, **answer.tally}.items():
            if value.shape != (1,) or not value.is_floating_point():
                yield f"'{name}' is a {value.dtype} {list(value.shape)}; expected one real number"
        if odd := [name for name in answer.tally if not name.startswith("train_")]:
            yield f"it logs '{odd[0]}' of its objective; expected names that begin with 'train_'"
        yield from _too_large({**answer.metrics, **answer.tally}, _LARGEST_LOGGED)
        for name, mask in {"evaluated": answer.evaluated, "sound": answer.sound}.items():
            if mask is not None and (mask.shape != (1,) or mask.dtype != torch.bool):  # it becomes a weight
                yield f"'{name}' is a {mask.dtype} {list(mask.shape)}; expected one truth value"

    def _wrong_values(self, sent: Mapping[str, object], wanted: Mapping[str, object]) -> Iterator[str]:
        """Yield which plain values of an update are of another type, or no finite number below the limit."""
        for name, value in sent.items():
            if type(value) is not type(wanted[name]):
                yield f"'{name}' is a {type(value).__name__}; expected a {type(wanted[name]).__name__}"
            elif isinstance(value, int | float) and not abs(value) <= self._largest:
                yield f"'{name}' is {value}, above {self._largest:.0e}"

    def _objections_to_what_a_channel_adds(self, answer: Answer, expected: Expectation) -> Iterator[str]:
        reports = expected.reports or {}
        if answer.reports.keys() != reports.keys():
            yield f"it reports {sorted(answer.reports)} to a channel; expected {sorted(reports)}"
            return
        yield from self.too_large(answer.reports)
        for name, value in answer.reports.items():
            if value.shape != (1,) or not value.is_floating_point():
                yield f"'{name}' is a {value.dtype} {list(value.shape)}; expected one real number"
            elif (allowed := reports[name]) is not None and isfinite(value) and float(value) not in allowed:
                yield f"'{name}' is {float(value):g}; expected {' or '.join(f'{each:g}' for each in allowed)}"
        if expected.reports is None:
            if answer.bits is not None:
                yield "it counts the bits of an update that passes through no channel"
            return
        numbers = sum(value.numel() for value in (*tensors_of(expected.update).values(), expected.buffers))
        most = _MOST_BITS * (numbers + len(reports) + 1)
        norm = _norm(answer, expected.whole)
        if expected.bound is not None and norm > expected.bound * (1 + _ROUNDING):
            yield f"its update has the norm {norm:g}, above {expected.bound:g}, to which the channel clips"
        if answer.bits is None or answer.bits.shape != (1,) or answer.bits.is_complex():
            yield "it does not say how many bits its update takes"
        elif not 0 <= float(answer.bits) <= most:
            yield f"its update takes {float(answer.bits):g} bits; expected 0 to {most}"

    def too_large(self, sent: Mapping[str, Tensor]) -> Iterator[str]:
        """Yield which tensors have finite numbers above the limit, in words."""
        yield from _too_large(sent, self._largest)


def _too_large(sent: Mapping[str, Tensor], limit: float) -> Iterator[str]:
    for name, value in sent.items():
        largest = _largest(value)
        if not isfinite(largest):
            largest = _largest(value[value.isfinite()])
        if largest > limit:
            yield f"'{name}' has numbers up to {largest:.0e}, above {limit:.0e}"


def _largest(value: Tensor) -> float:
    """Return the largest absolute value of a tensor, at the speed of memory; 0 if there is none, NaN with a NaN."""
    if not value.numel():
        return 0.0
    low, high = (value.to(torch.uint8) if value.dtype == torch.bool else value).aminmax()
    return nan if isnan(float(low)) else max(abs(float(low)), abs(float(high)))


def _plain(update: Any) -> dict[str, object]:
    """Return what an update holds beside tensors, by name."""
    found = {} if update is None else {each.name: getattr(update, each.name) for each in fields(update)}
    return {name: value for name, value in found.items() if not isinstance(value, Tensor)}


def _wrong_norms(update: Any) -> Iterator[str]:
    """Yield which squared norms of an update are not those of the fields they belong to, if both are finite."""
    sent = tensors_of(update)
    for name, of in squared_norms_of(update).items():
        said, found = sent[name].double(), sent[of].double().flatten(1).square().sum(1)
        digits = torch.finfo(sent[name].dtype)
        slack = max(_ROUNDING, 4 * digits.eps) * found + digits.tiny * sent[of].numel()  # small squares may be lost
        wrong = (said - found).abs() > slack
        if bool((wrong & said.isfinite() & found.isfinite()).any()):
            yield f"'{name}' is {float(said[0]):g}; the squared norm of '{of}' is {float(found[0]):g}"


_MOST_BITS = 256
"""Bits that a number may take on the wire, with whatever says where it belongs."""


_LARGEST_LOGGED = 1e12
"""Largest value that a client may log: larger ones would drown all others in a mean."""

_ROUNDING = 1e-3
"""Relative error of a norm that is computed in few digits."""


def _norm(answer: Answer, whole: Tensor | None) -> float:
    """Return the norm of what passed through a channel, of one client; buffers that are whole numbers did not."""
    buffers = answer.buffers if whole is None else answer.buffers[:, ~whole.to(answer.buffers.device)]
    counts = counts_of(answer.update)
    sent = {name: value for name, value in tensors_of(answer.update).items() if name not in counts}
    return hypot(*(float(value.double().norm()) for value in (*sent.values(), buffers)))


def _differences(sent: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield how names, shapes and dtypes differ."""
    if sent.keys() != wanted.keys():
        yield f"it sends {sorted(sent)}; expected {sorted(wanted)}"
        return
    for name, value in sent.items():
        like = wanted[name]
        if (value.shape, value.dtype) != (like.shape, like.dtype):
            yield f"'{name}' is {value.dtype} {list(value.shape)}; expected {like.dtype} {list(like.shape)}"
