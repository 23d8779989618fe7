"""What happens to updates between clients and server; see :mod:`fedlightning.channel.base`."""

from typing import TYPE_CHECKING

from fedlightning.core.lazy import lazily

if TYPE_CHECKING:
    from fedlightning.channel.base import (
        Aggregated,
        Aggregation,
        Exchange,
        Fields,
        Release,
        Rows,
        Sent,
        Transform,
    )
    from fedlightning.channel.by_field import ByField
    from fedlightning.channel.channel import Channel, Channels, PerPhase
    from fedlightning.channel.clip import Clip
    from fedlightning.channel.compression import (
        QSGD,
        Compressed,
        Compressor,
        Draws,
        ErrorFeedback,
        FixedPoint,
        NaturalCompression,
        RandK,
        SignCompression,
        TopK,
    )
    from fedlightning.channel.privacy import AdaptiveClip, DistributedGaussianNoise, GaussianNoise
    from fedlightning.channel.robust import (
        ALIE,
        Attack,
        CenteredClipping,
        GaussianAttack,
        GeometricMedian,
        InnerProductManipulation,
        Krum,
        Mean,
        Median,
        MultiKrum,
        NearestNeighbourMixing,
        SignFlip,
        TrimmedMean,
    )

__all__ = [
    "ALIE",
    "QSGD",
    "AdaptiveClip",
    "Aggregated",
    "Aggregation",
    "Attack",
    "ByField",
    "CenteredClipping",
    "Channel",
    "Channels",
    "Clip",
    "Compressed",
    "Compressor",
    "DistributedGaussianNoise",
    "Draws",
    "ErrorFeedback",
    "Exchange",
    "Fields",
    "FixedPoint",
    "GaussianAttack",
    "GaussianNoise",
    "GeometricMedian",
    "InnerProductManipulation",
    "Krum",
    "Mean",
    "Median",
    "MultiKrum",
    "NaturalCompression",
    "NearestNeighbourMixing",
    "PerPhase",
    "RandK",
    "Release",
    "Rows",
    "Sent",
    "SignCompression",
    "SignFlip",
    "TopK",
    "Transform",
    "TrimmedMean",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "base": "Aggregated Aggregation Exchange Fields Release Rows Sent Transform",
        "by_field": "ByField",
        "channel": "Channel Channels PerPhase",
        "clip": "Clip",
        "compression": (
            "QSGD Compressed Compressor Draws ErrorFeedback FixedPoint NaturalCompression RandK SignCompression TopK"
        ),
        "privacy": "AdaptiveClip DistributedGaussianNoise GaussianNoise",
        "robust": (
            "ALIE Attack CenteredClipping GaussianAttack GeometricMedian InnerProductManipulation Krum Mean "
            "Median MultiKrum NearestNeighbourMixing SignFlip TrimmedMean"
        ),
    },
)
