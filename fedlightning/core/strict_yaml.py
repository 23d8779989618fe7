"""YAML files of plain values, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedlightning.core.errors import InvalidValueError, MissingFileError


class YamlError(InvalidValueError):
    """A text is no YAML, or gives a key of a mapping twice."""


def parsed(text: str, aliases: bool = True) -> Any:
    """Return the plain values that a YAML text holds; nothing in it can make objects or run code.

    Args:
        text: The text.
        aliases: Whether a value may stand for an earlier one (``*name``). With aliases, a short text can hold more
            than fits into memory, so texts of other machines have none.

    Raises:
        YamlError: If it is no YAML, or gives a key twice, where YAML itself would take the last value in silence.
    """
    try:
        return yaml.load(text, _StrictLoader if aliases else _PlainLoader)  # safe loaders
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        raise YamlError(f"it is no YAML{where}: {error.problem or error.context}.") from None
    except YamlError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # a date that no calendar has, a number of no digits
        raise YamlError(f"it is no YAML: {str(error).splitlines()[0]}.") from None


def read_mapping(path: Path, expected: str) -> dict[str, Any]:
    """Return the content of a file that holds keys and values at the top.

    Args:
        path: The file.
        expected: What the file should be, for messages, such as ``a node's config``.

    Raises:
        MissingFileError: If there is no such file.
        YamlError: If it is no text, no YAML, or holds something else at the top.
    """
    try:
        content = parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingFileError(f"{path}: no such file. Expected {expected}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise YamlError(f"{path}: it cannot be read ({error}). Expected {expected}.") from None
    except YamlError as error:
        raise YamlError(f"{path}: {error}") from None
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise YamlError(f"{path}: it holds a {type(content).__name__} at the top. Expected {expected}.")
    return dict(content)


class _StrictLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Loads YAML and refuses duplicate keys of a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise YamlError(f"a {key.id} is a key in line {line}. Expected a name or a number.")
            if (key.tag, key.value) in seen and key.tag != "tag:yaml.org,2002:merge":
                raise YamlError(f"'{key.value}' is given twice, again in line {line}. Remove one.")
            seen.add((key.tag, key.value))
        content: dict[Any, Any] = super().construct_mapping(node, deep)
        return content


class _PlainLoader(_StrictLoader):
    """Loads YAML without aliases."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        if self.check_event(yaml.AliasEvent):
            raise YamlError(f"the alias *{self.peek_event().anchor} is not allowed here. Write the value out.")
        return super().compose_node(parent, index)
