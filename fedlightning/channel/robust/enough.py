"""The check that a cohort is large enough for an aggregation rule."""

from __future__ import annotations

from fedlightning.channel.base import Aggregation, Rows
from fedlightning.core.errors import InvalidValueError


def require_enough(rule: Aggregation, rows: Rows, remedy: str) -> None:
    """Refuse a cohort that is too small for a rule.

    Args:
        rule: The rule.
        rows: The updates that it is given.
        remedy: What can be changed about the rule, as an imperative.

    Raises:
        ValueError: If fewer updates count than the rule needs.
    """
    if rows.count < rule.fewest:
        raise InvalidValueError(
            f"{rule!r} needs the updates of {rule.fewest} clients or more, and only {rows.count} count in this cohort. "
            f"{remedy}, or invite more clients (data.participation)."
        )
