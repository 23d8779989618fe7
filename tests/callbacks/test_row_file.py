"""A table that is appended to, and what is left of it when a program is killed."""

from __future__ import annotations

import csv

from fedlightning.callbacks.row_file import RowFile


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_appended_and_columns_join(tmp_path):
    path = tmp_path / "made" / "table.csv"
    file = RowFile(path)
    assert file.is_empty
    file.append(["a", "b"], [{"a": "1", "b": "x, y"}, {"a": "2"}])
    whole = path.read_bytes()
    file.append(["a"], [{"a": "3"}])
    assert path.read_bytes() == whole + b"3,\n"  # appended, not written anew
    RowFile(path).append(["c", "a"], [{"c": "z", "a": "4"}])
    assert rows(path) == [
        {"a": "1", "b": "x, y", "c": ""},
        {"a": "2", "b": "", "c": ""},
        {"a": "3", "b": "", "c": ""},
        {"a": "4", "b": "", "c": "z"},
    ]
    assert not RowFile(path).is_empty
    assert list(path.parent.iterdir()) == [path]


def test_an_incomplete_end_is_removed(tmp_path):
    path = tmp_path / "table.csv"
    RowFile(path).append(["round", "value"], [{"round": str(n), "value": "0.5"} for n in (1, 2, 12)])
    path.write_bytes(path.read_bytes().removesuffix(b"2,0.5\n"))  # round 12 is cut to "1"
    file = RowFile(path)
    file.keep(lambda row: int(row["round"]) <= 2)
    file.append(["round"], [{"round": "3"}])
    assert [row["round"] for row in rows(path)] == ["1", "2", "3"]


def test_a_file_that_is_moved_aside_is_kept(tmp_path):
    path = tmp_path / "table.csv"
    for value in "123":
        file = RowFile(path)
        if not file.is_empty:
            file.move_aside()
        file.append([f"c{value}"], [{f"c{value}": value}])
        file.flush()
    assert rows(tmp_path / "table.before-1.csv") == [{"c1": "1"}]
    assert rows(tmp_path / "table.before-2.csv") == [{"c2": "2"}]
    assert rows(path) == [{"c3": "3"}]


def test_a_file_may_begin_with_rows_of_another(tmp_path):
    other = RowFile(tmp_path / "other.csv")
    other.append(["a"], [{"a": "1"}, {"a": "2"}])
    file = RowFile(tmp_path / "table.csv")
    file.begin_with(other, lambda row: row["a"] == "2")
    file.append(["b"], [{"b": "x"}])
    assert rows(tmp_path / "table.csv") == [{"a": "2", "b": ""}, {"a": "", "b": "x"}]
    assert len(rows(tmp_path / "other.csv")) == 2
