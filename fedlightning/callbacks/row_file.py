"""A table on disk that grows by rows and, rarely, by columns."""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

Cells = Mapping[str, str]
"""One row: text by the name of the column; columns that are left out are empty."""


class RowFile:
    """Appends rows to a CSV file without reading the file again.

    The rows of one call are handed to the system in one piece. A process that is killed meanwhile leaves at most an
    incomplete end, which :meth:`keep` removes. A row with a new column has the whole file written anew, under another
    name that then takes the place of the file, so that the file is whole at any moment.
    """

    def __init__(self, path: Path) -> None:
        """Open a table, which need not exist.

        Args:
            path: Of the file; its folder is made with the first row.
        """
        self.path = path
        self._columns: list[str] = []
        if path.is_file():
            with path.open(newline="") as file:
                self._columns = next(csv.reader(file), [])

    @property
    def is_empty(self) -> bool:
        """True if there is no file, or no row in it."""
        return next(self._rows(), None) is None

    def append(self, columns: Sequence[str], rows: Iterable[Cells]) -> None:
        """Append rows.

        Args:
            columns: Names of all columns of these rows; new ones come after those of the file.
            rows: The rows.
        """
        new = [name for name in columns if name not in self._columns]
        if new:
            self._columns = [*self._columns, *new]
            self._rewrite(self._rows())
        text = io.StringIO(newline="")
        csv.DictWriter(text, self._columns, restval="", lineterminator="\n").writerows(rows)
        with self.path.open("ab", buffering=0) as file:
            file.write(text.getvalue().encode())

    def keep(self, wanted: Callable[[Cells], bool]) -> None:
        """Remove all rows that are not wanted, and an incomplete end; the rows are read one by one."""
        if self.path.is_file():
            self._rewrite(row for row in self._rows() if wanted(row))

    def begin_with(self, other: RowFile, wanted: Callable[[Cells], bool]) -> None:
        """Replace the content by the wanted rows of another table."""
        self._columns = [*other._columns]
        self._rewrite(row for row in other._rows() if wanted(row))

    def flush(self) -> None:
        """Return when what was appended has reached the disk."""
        if self.path.is_file():
            with self.path.open("ab") as file:
                os.fsync(file.fileno())

    def move_aside(self) -> Path:
        """Rename the file to ``<name>.before-1.csv``, or a higher number, and begin an empty one.

        Returns:
            The new name.
        """
        free = (self.path.with_name(f"{self.path.stem}.before-{n}{self.path.suffix}") for n in itertools.count(1))
        aside = next(path for path in free if not path.exists())
        self.path.rename(aside)
        self._columns = []
        return aside

    def _rows(self) -> Iterator[Cells]:
        """Read the rows that end in a line break."""
        if not self.path.is_file():
            return
        with self.path.open(newline="") as file:
            whole = (line for line in file if line.endswith("\n"))
            yield from csv.DictReader(whole, restval="")

    def _rewrite(self, rows: Iterable[Cells]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f"{self.path.name}.partial-{os.getpid()}")
        try:
            with partial.open("w", newline="") as file:
                writer = csv.DictWriter(file, self._columns, restval="", lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path)
        finally:
            partial.unlink(missing_ok=True)
