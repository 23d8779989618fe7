"""What happens to updates between clients and server; see :mod:`fedlightning.channel.base`."""

from fedlightning.channel.base import Aggregated, Aggregation, Exchange, Fields, Release, Rows, Sent, Transform
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
    "Aggregated",
    "Aggregation",
    "Attack",
    "CenteredClipping",
    "Exchange",
    "Fields",
    "GaussianAttack",
    "GeometricMedian",
    "InnerProductManipulation",
    "Krum",
    "Mean",
    "Median",
    "MultiKrum",
    "NearestNeighbourMixing",
    "Release",
    "Rows",
    "Sent",
    "SignFlip",
    "Transform",
    "TrimmedMean",
]
