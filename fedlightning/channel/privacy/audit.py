"""An audit of one run: a lower bound on epsilon from guesses about which canaries took part.

T. Steinke, M. Nasr, M. Jagielski: Privacy auditing with one (1) training run, NeurIPS 2023. Of m canaries, each takes
part by a fair coin of its own; after the run somebody guesses the coins of some, the others are passed over. If the run
is (epsilon, delta) private, correct guesses are hardly more frequent than those of a coin that falls right with
probability ``e^epsilon / (1 + e^epsilon)``. Observed more often, they refute the claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedlightning.core.errors import InvalidValueError


def correct_guesses(scores: Sequence[float], took_part: Sequence[bool], guesses: int) -> int:
    """Return how many guesses are right, when the highest scores are guessed to have taken part and the lowest not to.

    Args:
        scores: Of the m canaries; higher where it seems that a canary took part.
        took_part: Whether it did.
        guesses: Number of guesses, half of them for either side; even, at most m.
    """
    if guesses % 2 or not 0 < guesses <= len(scores):
        raise InvalidValueError(f"guesses={guesses}: expected an even number from 2 to {len(scores)}.")
    order = sorted(range(len(scores)), key=scores.__getitem__)
    lowest, highest = order[: guesses // 2], order[-(guesses // 2) :]
    return sum(not took_part[each] for each in lowest) + sum(bool(took_part[each]) for each in highest)


def epsilon_at_least(correct: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95) -> float:
    """Return a number that the true epsilon exceeds, with some confidence.

    Args:
        correct: Number of right guesses.
        guesses: Number of guesses.
        canaries: Number m of canaries.
        delta: Of the claim that is audited, at least 0.
        confidence: Probability with which the number is below the true epsilon.
    """
    allowed = 1 - confidence
    if p_value(correct, guesses, canaries, 0.0, delta) > allowed:
        return 0.0
    low, high = 0.0, 1.0
    while p_value(correct, guesses, canaries, high, delta) <= allowed:
        if high > 64:
            return high
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        below = p_value(correct, guesses, canaries, middle, delta) <= allowed
        low, high = (middle, high) if below else (low, middle)
    return low


def p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of so many right guesses, if a run is (epsilon, delta) private.

    This is the paper's main theorem: the tail of the binomial distribution, and for delta > 0 at most
    ``2 m delta max over i of P[correct - i <= B < correct] / i`` more.
    """
    chance = 1 / (1 + math.exp(-epsilon))
    probabilities = [_binomial(k, guesses, chance) for k in range(guesses + 1)]
    tail = math.fsum(probabilities[correct:])
    near, most = 0.0, 0.0
    for i in range(1, correct + 1):
        near += probabilities[correct - i]
        most = max(most, near / i)
    return min(1.0, tail + 2 * canaries * delta * most)


def _binomial(k: int, n: int, p: float) -> float:
    """Return the probability of ``k`` successes in ``n`` trials."""
    if p in (0.0, 1.0):
        return float(k == n * p)
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(ways + k * math.log(p) + (n - k) * math.log1p(-p))
