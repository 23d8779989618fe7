"""YAML files are read without surprises."""

from __future__ import annotations

import pytest

from fedlightning.core.errors import MissingFileError
from fedlightning.core.strict_yaml import YamlError, parsed, read_mapping


def test_plain_values_are_read():
    assert parsed("a: [1, 2.5, true, null]\nb: {c: text}") == {"a": [1, 2.5, True, None], "b": {"c": "text"}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\nb: 2\na: 3", r"'a' is given twice, again in line 3\. Remove one"),
        ("a: [1", "it is no YAML in line"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: 1\n[b, c]: 2", r"a sequence is a key in line 2\. Expected a name"),
        ("{? {a: 1} : 2}", r"a mapping is a key in line 1"),
        ("a: 2026-13-45", "it is no YAML: month must be in"),
        ("a: !!int b", "it is no YAML: invalid literal"),
    ],
)
def test_what_is_no_plain_yaml_is_refused(text, why):
    with pytest.raises(YamlError, match=why):
        parsed(text)


def test_keys_may_be_merged():
    assert parsed("base: &base {a: 1}\nmine:\n  <<: *base\n  b: 2")["mine"] == {"a": 1, "b": 2}


def test_texts_of_others_have_no_aliases():
    assert parsed("a: &x [1]\nb: *x") == {"a": [1], "b": [1]}
    with pytest.raises(YamlError, match=r"the alias \*x is not allowed here"):
        parsed("a: &x [1]\nb: *x", aliases=False)
    assert parsed("a: [1.0e-05, .inf]\n3: b", aliases=False) == {"a": [1e-5, float("inf")], 3: "b"}
    with pytest.raises(YamlError, match="it is no YAML"):
        parsed(100_000 * "[", aliases=False)


def test_a_file_holds_keys_at_the_top(tmp_path):
    file = tmp_path / "some.yaml"
    with pytest.raises(MissingFileError, match=r"some\.yaml: no such file\. Expected a config"):
        read_mapping(file, "a config")
    for content, why in (
        (b"- 1", "holds a list at the top"),
        (b"1: 2", "holds a dict"),
        (b"\xff\xfe\xff", "cannot be"),
    ):
        file.write_bytes(content)
        with pytest.raises(YamlError, match=rf"some\.yaml: it {why}"):
            read_mapping(file, "a config")
    file.write_text("a: 1\na: 2")
    with pytest.raises(YamlError, match=r"some\.yaml: 'a' is given twice"):
        read_mapping(file, "a config")
    file.write_text("a: 1")
    assert read_mapping(file, "a config") == {"a": 1}
