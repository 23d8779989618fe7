"""Participation in a round: how a cohort is chosen, and which of its clients answer."""

from fedlightning.participation.base import Participation, Recruitment, Selection
from fedlightning.participation.draws import Full, Poisson, Uniform
from fedlightning.participation.responses import Devices, FirstResponders, Responses, ResponseShare
from fedlightning.participation.waiting import WaitForAll

__all__ = [
    "Devices",
    "FirstResponders",
    "Full",
    "Participation",
    "Poisson",
    "Recruitment",
    "ResponseShare",
    "Responses",
    "Selection",
    "Uniform",
    "WaitForAll",
]
