"""Name prefixes as a module's author writes them, and as the task that holds the module has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import nn

from fedlightning.core.parameter_space import is_under, names_under
from fedlightning.core.per_block import is_name_prefix, takes_blocks
from fedlightning.tasks.federated.hooks import PREFIX

T = TypeVar("T")


class ModuleNames:
    """Translates name prefixes of a module into those of the task; prefixes of the task stay as they are."""

    def __init__(self, module: nn.Module) -> None:
        """Read the names of the module's parameters."""
        self._names = [name for name, _ in module.named_parameters(remove_duplicate=False)]

    def prefix(self, prefix: Any) -> Any:
        """Return a prefix in the task's names."""
        known = isinstance(prefix, str) and any(is_under(name, prefix) for name in self._names)
        return f"{PREFIX}{prefix}" if known else prefix

    def known(self, prefix: Any, argument: str) -> Any:
        """Return a prefix in the task's names; what is no prefix is returned as it is, for its own error.

        Args:
            prefix: That of the module, or of the task.
            argument: What the message calls it.

        Raises:
            ValueError: If it matches no parameter; the message names those of the module.
        """
        found = self.prefix(prefix)
        self._require_known([found], argument)
        return found

    def prefixes(self, prefixes: Any, argument: str) -> Any:
        """Return several prefixes in the task's names; what is no list is returned as it is, for its own error.

        Args:
            prefixes: Those of the module, or of the task.
            argument: What the message calls them.

        Raises:
            ValueError: If a prefix matches no parameter; the message names those of the module.
        """
        if isinstance(prefixes, str) or not isinstance(prefixes, Iterable):
            return prefixes
        found = tuple(self.prefix(each) for each in prefixes)
        self._require_known(found, argument)
        return found

    def keys(self, value: Any, argument: str) -> Any:
        """Return a mapping by prefix with the task's names as keys; anything else is returned as it is.

        Args:
            value: Whatever was given; the key ``default`` stands for all names that no other key covers.
            argument: What the message calls it.

        Raises:
            ValueError: If a key matches no parameter; the message names those of the module.
        """
        if not isinstance(value, Mapping):
            return value
        found = {self.prefix(key): each for key, each in value.items()}
        self._require_known(found.keys() - {"default"}, argument)
        return found

    def options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options of a task, those with name prefixes in the task's names."""
        named = {name: self.keys(value, name) for name, value in options.items()}
        if "drift_parameters" in options:
            named["drift_parameters"] = self.prefixes(options["drift_parameters"], "drift_parameters")
        return named

    def hyper_parameters(self, owner: T) -> T:
        """Return an algorithm, or a part of one, whose hyper-parameters by prefix have the task's names.

        Raises:
            ValueError: If a prefix matches no parameter; the message names those of the module.
        """
        if not is_dataclass(owner) or isinstance(owner, type):
            return owner
        changes = {}
        for each in fields(owner):
            value = getattr(owner, each.name)
            if takes_blocks(each):
                named = self.keys(value, each.name)
            elif is_name_prefix(type(owner), each.name):
                named = self.known(value, each.name)
            else:
                named = self.hyper_parameters(value)
            if named is not value and named != value:
                changes[each.name] = named
        return replace(owner, **changes) if changes else owner

    def _require_known(self, prefixes: Iterable[Any], argument: str) -> None:
        for each in prefixes:
            if isinstance(each, str) and not each.startswith(PREFIX) and each != PREFIX.rstrip("."):
                names_under(each, self._names, argument)
