"""A compressor behind error feedback loses what the memory counts as sent, and is refused for the fields it meets."""

from __future__ import annotations

import pytest

from fedlightning.channel import (
    QSGD,
    ByField,
    Channel,
    Clip,
    DistributedGaussianNoise,
    ErrorFeedback,
    NaturalCompression,
    SignCompression,
    TopK,
)
from fedlightning.channel.chain import Chain

KEPT = ErrorFeedback(TopK(0.5))


@pytest.mark.parametrize(
    ("client", "remedy"),
    [
        ([KEPT, TopK(0.25)], r"ErrorFeedback\(TopK\(fraction=0\.25\)\) in place of TopK\(fraction=0\.25\)"),
        ([Clip(1.0), KEPT, Clip(1.0), NaturalCompression()], r"ErrorFeedback\(NaturalCompression\(\)\)"),
        ([Chain([KEPT, QSGD(4)])], r"ErrorFeedback\(QSGD"),
        ([ByField({"dz": KEPT}), SignCompression()], r"ErrorFeedback\(SignCompression\(\)\)"),
        ([KEPT, ByField({"dc": TopK(0.25)})], r"ErrorFeedback\(TopK"),
        ([ByField({"dz": Chain([KEPT, TopK(0.25)])})], r"ErrorFeedback\(TopK"),
        ([KEPT, ErrorFeedback(TopK(0.25)), TopK(0.1)], r"TopK\(fraction=0\.1\) comes after .*0\.25"),
    ],
)
def test_a_compressor_behind_error_feedback_is_refused_with_the_remedy(client, remedy):
    with pytest.raises(ValueError, match=rf"^Channel\(client=\.\.\.\): .*{remedy}"):
        Channel(client=client)


@pytest.mark.parametrize(
    "client",
    [
        [TopK(0.5), KEPT],
        [KEPT, ErrorFeedback(TopK(0.25))],
        [KEPT, Clip(1.0), DistributedGaussianNoise(1.0)],
        [ByField({"dz": KEPT, "dc": TopK(0.25)})],
        [ByField({"dz": KEPT}), ByField({"dc": TopK(0.25)})],
        [ByField({"dz": Chain([Clip(1.0), KEPT])}), ByField({"dc": Chain([TopK(0.25)])})],
    ],
)
def test_what_loses_nothing_of_the_memory_passes(client):
    assert Channel(client=client).client == tuple(client)


def test_of_broadcasts_nothing_is_lost():
    """What is left out of one is in the difference that the next one sends."""
    assert Channel(download=[KEPT, TopK(0.25)]).download
