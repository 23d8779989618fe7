"""Names of clients' states: the same on both sides, and another one after anything that matters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedlightning.algorithms.base import PerClient, Point
from fedlightning.federation.protocol import Moment, Precision, Request, Stamp
from fedlightning.federation.remote.generation import Generation, RequestDigest, Standing, require_distinct, text_of
from fedlightning.federation.remote.packet import PacketError

OWN = PerClient(torch.zeros(2), torch.tensor([1, 4]), torch.tensor([[1.0, 1.0], [4.0, 4.0]]))
REQUEST = Request(Stamp(3, 1), 7, Point(torch.arange(2.0)), torch.zeros(2), torch.ones(1), ("b",))
BASE = Generation(2, 1, "a" * 32)


def name(request=REQUEST, client=4, base=BASE, kept=()):
    return RequestDigest(request).generation(Standing(client, base, kept))


def test_a_name_is_a_round_a_phase_and_a_digest():
    found = name()
    assert (found.round, found.phase, len(found.key)) == (3, 1, 32)
    assert Generation.of(str(found)) == found
    assert (Generation.of(""), text_of(None)) == (None, "")


@pytest.mark.parametrize(
    "other",
    [
        lambda: name(replace(REQUEST, seed=8)),
        lambda: name(replace(REQUEST, message=Point(torch.tensor([0.0, -0.0])))),
        lambda: name(replace(REQUEST, message=Point(torch.arange(2.0).double()))),
        lambda: name(replace(REQUEST, point=torch.ones(2))),
        lambda: name(replace(REQUEST, buffers=torch.zeros(1))),
        lambda: name(replace(REQUEST, precision=Precision(torch.bfloat16))),
        lambda: name(replace(REQUEST, moment=Moment(1, 0, 0))),
        lambda: name(client=5),
        lambda: name(base=None),
        lambda: name(base=Generation(2, 1, "b" * 32)),
    ],
)
def test_whatever_changes_an_answer_changes_the_name(other):
    assert other().key != name().key


def test_what_is_kept_beside_and_what_others_receive_changes_nothing():
    assert name(kept=(BASE,)) == name()
    request = replace(REQUEST, message=Point(OWN))
    for sent in (request.to(4), request.to(1, 4), request.to(4, 9)):
        assert name(sent) == name(request)
    assert name(request, client=1).key != name(request, client=4).key


def test_a_tensor_that_comes_twice_is_named_as_its_copy_is():
    """A node gets one tensor for both where the server sent one, and two where they came apart."""
    point = REQUEST.point
    for message in (Point(point), Point(point[:1]), Point(point.view(torch.int32)), Point(point.view(1, 2))):
        copy = Point(message.z.clone())
        assert name(replace(REQUEST, message=message)) == name(replace(REQUEST, message=copy))
    assert name(replace(REQUEST, message=Point(point[:1]))).key != name(replace(REQUEST, message=Point(point))).key


@pytest.mark.parametrize(
    "text",
    ["1", "1.2", "1.2.x", "1.2." + "g" * 32, "9" * 5000 + ".0." + "a" * 32, "-1.0." + "a" * 32, "../" + "a" * 32],
)
def test_other_texts_are_no_names(text):
    with pytest.raises(PacketError, match="names no state of a client"):
        Generation.of(text)


def test_nobody_is_asked_twice_at_once():
    require_distinct([2, 1])
    with pytest.raises(PacketError, match="twice"):
        require_distinct([1, 2, 1])
