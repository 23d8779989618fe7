"""What the server tells nodes of a run: its task and algorithm as plain values, without any code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import yaml

from fedlightning.core import strict_yaml
from fedlightning.core.errors import InvalidTypeError, InvalidValueError

LARGEST = 2**20
"""Characters of a description; a longer one is refused before it is read."""
WORK = ("batch_size", "local_steps", "local_epochs")
"""What a run may say of clients' work in a round; a node's own data module says the rest."""


@dataclass(frozen=True)
class RunConfig:
    """Describes a run to nodes, which build the same task from it if they allow its classes.

    Attributes:
        model: The task as ``class_path`` and ``init_args``, with its algorithm among them.
        seed: Seed of initial weights, and of the nodes' data where a node's config names no other.
        precision: The trainer's precision, by Lightning's name.
        work: Those of :data:`WORK` that the run sets for all nodes.

    Raises:
        ValueError: If something is of another form.
    """

    model: Mapping[str, Any]
    seed: int
    precision: str = "32-true"
    work: Mapping[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        path = self.model.get("class_path") if isinstance(self.model, Mapping) else None
        if not isinstance(path, str) or set(self.model) - {"class_path", "init_args", "dict_kwargs"}:
            raise InvalidTypeError("model: expected class_path and init_args of a task.")
        if type(self.seed) is not int or not isinstance(self.precision, str):
            raise InvalidTypeError(f"seed={self.seed!r}, precision={self.precision!r}: expected a number and a text.")
        if not isinstance(self.work, Mapping) or set(self.work) - set(WORK):
            raise InvalidTypeError(f"work={self.work!r}: expected some of {', '.join(WORK)}.")
        if wrong := [name for name, value in self.work.items() if value is not None and type(value) is not int]:
            raise InvalidTypeError(f"work.{wrong[0]}={self.work[wrong[0]]!r}: expected a whole number or null.")

    def to_text(self) -> str:
        """Return the description as text, the same for the same run."""
        return str(yaml.dump(asdict(self), Dumper=_PlainDumper, sort_keys=True, allow_unicode=True))

    @classmethod
    def of_text(cls, text: str) -> RunConfig:
        """Return the run that a text describes; nothing in it is imported or run.

        Raises:
            InvalidValueError: If the text is no description of a run, or too long.
        """
        if len(text) > LARGEST:
            raise InvalidValueError(f"The description of a run has {len(text)} characters; at most {LARGEST} are read.")
        try:
            content = strict_yaml.parsed(text, aliases=False)
            known = {each.name for each in fields(cls)}
            if not isinstance(content, Mapping) or set(content) != known:
                raise InvalidValueError(f"expected {', '.join(sorted(known))}.")
            return cls(**content)
        except (InvalidValueError, InvalidTypeError) as error:
            raise InvalidValueError(f"The description of the run cannot be used: {error}") from None


class _PlainDumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes equal values out again, where YAML would refer to the first."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
