"""What happens to updates between clients and server; see :mod:`fedlightning.channel.base`."""

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
    "AdaptiveClip",
    "Aggregated",
    "Aggregation",
    "Attack",
    "ByField",
    "CenteredClipping",
    "Channel",
    "Channels",
    "Clip",
    "DistributedGaussianNoise",
    "Exchange",
    "Fields",
    "GaussianAttack",
    "GaussianNoise",
    "GeometricMedian",
    "InnerProductManipulation",
    "Krum",
    "Mean",
    "Median",
    "MultiKrum",
    "NearestNeighbourMixing",
    "PerPhase",
    "Release",
    "Rows",
    "Sent",
    "SignFlip",
    "Transform",
    "TrimmedMean",
]
