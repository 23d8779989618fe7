"""The errors that this package raises on purpose.

Every one of them derives from :class:`FedlightningError` and from the built-in class that fits, so that
``except fedlightning.FedlightningError`` catches whatever the library objects to, and ``except ValueError`` goes on
catching values out of range. Their messages are written for users: the command shows them without a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator


class FedlightningError(Exception):
    """Base of all errors that fedlightning raises on purpose; their messages say what to change."""


class InvalidValueError(FedlightningError, ValueError):
    """A value is out of range, unknown, or does not fit another one."""


class InvalidTypeError(FedlightningError, TypeError):
    """A value is of a type that cannot be used here."""


class InvalidAttributeError(FedlightningError, AttributeError):
    """An attribute may not be set, or is not there because a constructor was not called."""


class MissingFileError(FedlightningError, FileNotFoundError):
    """A file or folder is not where it was looked for."""


class OutputError(FedlightningError, OSError):
    """Results cannot be written; the message names file, reason and remedy."""


class MissingPackageError(FedlightningError, ModuleNotFoundError):
    """A package that only some users need is not installed."""


class NoSuchClientError(FedlightningError, IndexError):
    """A client's number is not among those of the federation."""


class UsageError(FedlightningError, RuntimeError):
    """The call is not possible now, or not in this process."""


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that led to it, each once: one that a thread has kept may lead to itself."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        yield link
        seen.add(id(link))
        link = link.__cause__ or link.__context__
