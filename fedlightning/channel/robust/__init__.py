"""Aggregation rules that a minority of arbitrary updates cannot move far, and simulated adversaries to try them on."""

from fedlightning.channel.robust.attacks.alie import ALIE
from fedlightning.channel.robust.attacks.base import Attack
from fedlightning.channel.robust.attacks.gaussian import GaussianAttack
from fedlightning.channel.robust.attacks.inner_product import InnerProductManipulation
from fedlightning.channel.robust.attacks.sign_flip import SignFlip
from fedlightning.channel.robust.centered_clipping import CenteredClipping
from fedlightning.channel.robust.geometric_median import GeometricMedian
from fedlightning.channel.robust.krum import Krum, MultiKrum
from fedlightning.channel.robust.mean import Mean
from fedlightning.channel.robust.median import Median
from fedlightning.channel.robust.mixing import NearestNeighbourMixing
from fedlightning.channel.robust.trimmed_mean import TrimmedMean

__all__ = [
    "ALIE",
    "Attack",
    "CenteredClipping",
    "GaussianAttack",
    "GeometricMedian",
    "InnerProductManipulation",
    "Krum",
    "Mean",
    "Median",
    "MultiKrum",
    "NearestNeighbourMixing",
    "SignFlip",
    "TrimmedMean",
]
