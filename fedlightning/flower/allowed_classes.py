"""Which classes the run of a server may have a node build."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from fedlightning.core.errors import FedlightningError, InvalidValueError
from fedlightning.core.serialisation import Trust
from fedlightning.core.strict_yaml import YamlError, parsed
from fedlightning.federation.client_states import MemoryMapped

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]*(://|::)")
_OUTSIDE = re.compile(r"[/\\~]|[A-Za-z]:[/\\]")
_OWN = "fedlightning"


class RefusedClassError(InvalidValueError):
    """A run names something that the node does not allow; nothing of it was built or called."""


class AllowedClasses:
    """Knows which classes and functions the config of a run may name.

    A name is allowed if the node's list has it, or the package that it is in, and it is defined there: a module that
    imports ``subprocess`` makes nothing of ``subprocess`` available. Of this package, only what tasks consist of can be
    named, such as algorithms, networks and regularizers, and no data, callbacks or commands. Optimizers and schedulers
    of ``torch.optim`` and the layers of ``torch.nn`` need not be listed.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        """Take the node's list.

        Args:
            classes: Class paths, and packages or modules with all that they define.
        """
        self._classes = tuple(classes)

    def require_there(self) -> None:
        """Make sure that all of the list can be imported, which tells a misspelt entry before a run needs it.

        Raises:
            InvalidValueError: At the first entry that cannot.
        """
        for entry in self._classes:
            try:
                import_module(entry)
            except ModuleNotFoundError:
                try:
                    _imported(entry)
                except (ImportError, AttributeError, ValueError) as error:
                    raise InvalidValueError(
                        f"classes: {entry} is not at this node ({error}). Correct it in node.yaml, or install its "
                        "package."
                    ) from None

    def require(self, config: Any, base: type, place: str = "model") -> None:
        """Make sure that a config names nothing but what is allowed, at every depth.

        Class paths count, and so does every text that could be the path of something importable: arguments that take
        functions are given as such. A text that is a path out of the node's folder or an address is refused, whether
        something is there or not, and so is one that names something in the node's folder: configs may name other
        configs to be read, and weights could be read and sent.

        Args:
            config: Plain values, or what a parser has made of them.
            base: What the outermost class has to derive from.
            place: Where the config stands, for messages.

        Raises:
            RefusedClassError: At the first name that is not allowed; the message has the name, the list and the remedy.
        """
        for path, where, is_class in _names(config, place):
            if not is_class and _leads_out(path):
                raise RefusedClassError(
                    f"{where}={path!r} is a path, whether anything is there or not, which is not a run's to read. Give "
                    "its content, or have a class of the node's own read it, and list that class."
                )
            if not is_class and _is_here(path):
                raise RefusedClassError(
                    f"{where}={path!r} is a file or folder in the folder of this node, which is not a run's to read. "
                    "Give its content, or have a class of the node's own read it, and list that class."
                )
            if not is_class and _ADDRESS.match(path):
                raise RefusedClassError(
                    f"{where}={path!r} is an address, such as files and machines have, which is not a run's to read. "
                    "Give its content, or have a class of the node's own read it, and list that class."
                )
            if is_class or _is_importable(path):
                self._require(path, where, is_class, base)

    def _require(self, path: str, place: str, is_class: bool, base: type) -> None:
        if not _DOTTED.fullmatch(path) or "__" in path:
            raise self._refused(path, place, "it is no dotted path of a class")
        listed = [each for each in self._classes if path == each or path.startswith(f"{each}.")]
        of_torch = path.startswith(("torch.optim.", "torch.nn."))
        if not listed and not of_torch and not any(_home(each) == path for each in self._listed()):
            raise self._refused(path, place, "it is not on this node's list of classes")
        try:
            found = _imported(path)
        except (ImportError, AttributeError) as error:
            if not is_class:  # a text that looks like a path
                return
            why = f"it is not installed here ({error}). Install the package, in the server's version"
            raise self._refused(path, place, why) from None
        if path in self._classes or any(each is found for each in self._listed()):
            return
        home, package = _home(found), _home(found).partition(".")[0]
        if package in (_OWN, "torch") and _is_trusted(found, base):
            return
        foreign = [each for each in listed if each.partition(".")[0] != _OWN]
        if not any(home.startswith(f"{each}.") for each in foreign):
            raise self._refused(path, place, f"it is {home}, which a run may not name unless the list has it")

    def _listed(self) -> Iterator[Any]:
        """Yield the classes and functions that are listed one by one."""
        for entry in self._classes:
            if "." not in entry or entry.partition(".")[0] == _OWN:
                continue
            try:
                found = _imported(entry)
            except (ImportError, AttributeError):
                continue
            if callable(found):
                yield found

    def _refused(self, path: str, place: str, why: str) -> RefusedClassError:
        return RefusedClassError(
            f"{place} names {path}: {why}; nothing of it was built. This node's list has "
            f"{', '.join(self._classes) or 'nothing'}. If the class may run here, add it or its package to 'classes' "
            "in node.yaml and start the node again."
        )


def _names(config: Any, place: str, owner: Any = None) -> Iterator[tuple[str, str, bool]]:
    """Yield every text of a config with its place, and whether it is a class path.

    Args:
        config: Plain values, or what a parser has made of them.
        place: Where the config stands.
        owner: The class path of the class that the config is the arguments of, if it is any's.

    Raises:
        RefusedClassError: If an argument asks for a download.
    """
    if isinstance(config, Mapping):
        for key, value in config.items():
            if key == "download" and value not in (False, None) and owner not in _CHANNELS:
                raise RefusedClassError(
                    f"{place}.download={value!r}: a run may not have a node fetch anything. Send what was fetched with "
                    "the parameters, or have a class of the node's own fetch it, and list that class."
                )
            if key == "class_path":
                yield (value if isinstance(value, str) else repr(value)), place, True
            elif key == "init_args":
                yield from _names(value, place, config.get("class_path"))
            else:
                yield from _names(value, f"{place}.{key}")
    elif isinstance(config, list | tuple | set | frozenset):
        for number, value in enumerate(config):
            yield from _names(value, f"{place}[{number}]")
    elif isinstance(config, str):
        yield config, place, False
        yield from _names(_within(config, place), place)
    elif callable(config) and hasattr(config, "__qualname__"):
        yield _home(config), place, True


_CHANNELS = ("fedlightning.channel.Channel", "fedlightning.channel.channel.Channel")
"""Class paths of the class whose ``download`` says what broadcasts go through, and fetches nothing."""


def _within(text: str, place: str) -> Any:
    """Return the lists and mappings that a text holds as YAML, which parsers look for; None for any other text.

    Raises:
        RefusedClassError: If other readers would find some, where this one finds a mistake.
    """
    if not {"{", "[", ":", "-"} & set(text):
        return None
    try:
        content = parsed(text, aliases=False)
    except YamlError as error:
        if _is_structured(text):
            raise RefusedClassError(
                f"{place}={text[:80]!r} holds YAML or JSON that not all read alike: {error} Write it as plain values."
            ) from None
        return None
    return content if isinstance(content, Mapping | list) else None


def _is_structured(text: str) -> bool:
    """Return whether any reader of JSON or YAML takes a text for a list or mapping; no value is made of YAML."""
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(text), Mapping | list):
            return True
    for loader in {yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)}:
        with suppress(yaml.YAMLError, ValueError, RecursionError):
            if isinstance(yaml.compose(text, loader), yaml.CollectionNode):
                return True
    return False


def _is_importable(text: str) -> bool:
    """Return whether a text may be the path of something to import; only the outermost package is looked up."""
    if not _DOTTED.fullmatch(text):
        return False
    package = text.partition(".")[0]
    try:
        return package in sys.modules or find_spec(package) is not None
    except (ImportError, ValueError):
        return True


def _leads_out(text: str) -> bool:
    """Return whether a text is a path that does not begin in the present folder or leaves it; no file is looked at."""
    return bool(_OUTSIDE.match(text)) or ".." in re.split(r"[/\\]", text)


def _is_here(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):
        return False


def _imported(path: str) -> Any:
    """Return what a dotted path names: an attribute of a module, or of something in it, as parsers look it up.

    Raises:
        ImportError: If there is no such module.
        AttributeError: If there is nothing of the name in it.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError:
        outer, _, inner = module.rpartition(".")
        if not outer:
            raise
        return getattr(getattr(import_module(outer), inner), name)


def _home(found: Any) -> str:
    """Return where something is defined, as a dotted path."""
    return f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', type(found).__qualname__)}"


def _is_trusted(found: Any, base: type) -> bool:
    """Return whether something is what a checkpoint may build, too, or a task of this package, and writes no files."""
    if isinstance(found, type) and issubclass(found, MemoryMapped):
        return False
    trust, path = Trust(), _home(found)
    with suppress(FedlightningError):
        return trust.find(path, "") is found
    with suppress(FedlightningError):
        return trust.find_subclass(path, base, "") is found
    return False
