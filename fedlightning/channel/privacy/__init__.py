"""Privacy of single clients: adaptive clipping, Gaussian noise, and accounts of what the noise leaves to be known."""

from typing import TYPE_CHECKING

from fedlightning.channel.privacy.adaptive_clip import AdaptiveClip
from fedlightning.channel.privacy.distributed import DistributedGaussianNoise
from fedlightning.channel.privacy.gaussian import GaussianNoise
from fedlightning.core.lazy import lazily

if TYPE_CHECKING:
    from fedlightning.channel.privacy.accountants import PLD, RDP, Accountant, Part, Releases
    from fedlightning.channel.privacy.audit import correct_guesses, epsilon_at_least
    from fedlightning.channel.privacy.calibration import noise_multiplier
    from fedlightning.channel.privacy.coverage import Noise, noises_of
    from fedlightning.channel.privacy.ledger import Ledger
    from fedlightning.channel.privacy.sampling import (
        EveryClient,
        FixedSizeSampling,
        PoissonSampling,
        Sampling,
        sampling_of,
    )

__all__ = [
    "PLD",
    "RDP",
    "Accountant",
    "AdaptiveClip",
    "DistributedGaussianNoise",
    "EveryClient",
    "FixedSizeSampling",
    "GaussianNoise",
    "Ledger",
    "Noise",
    "Part",
    "PoissonSampling",
    "Releases",
    "Sampling",
    "correct_guesses",
    "epsilon_at_least",
    "noise_multiplier",
    "noises_of",
    "sampling_of",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "accountants": "PLD RDP Accountant Part Releases",
        "audit": "correct_guesses epsilon_at_least",
        "calibration": "noise_multiplier",
        "coverage": "Noise noises_of",
        "ledger": "Ledger",
        "sampling": "EveryClient FixedSizeSampling PoissonSampling Sampling sampling_of",
    },
)
