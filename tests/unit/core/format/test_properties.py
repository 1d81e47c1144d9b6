"""Test the parser and writer of Java properties files."""

from __future__ import annotations

import pytest

from lakehouse.core.format.properties import parse_properties, render_properties, table_checksum
from lakehouse.errors import CorruptTableError


def test_entries_are_parsed_with_each_separator_and_continuation() -> None:
    text = b"#c\n! c\n\n a=1\nb : 2\nc 3\nd\ne=x\\\n   y\\\r\n z\n"
    text += b"f\\ g\\==\\ v \\u00e9\\ud83d\\ude00\\t.\nlatin=\xe9\na=last"
    assert parse_properties(text) == {
        "a": "last",
        "b": "2",
        "c": "3",
        "d": "",
        "e": "xyz",
        "f g=": " v \u00e9\U0001f600\t.",
        "latin": "\u00e9",
    }


def test_properties_are_rendered_with_java_escapes_and_sorted_keys() -> None:
    values = {"z": " lead=a:b#c!d\\", "a k": "tab\tnl\n\u00e9\U0001f600"}
    assert render_properties(values, comments=("Updated at t", "two\nlines")) == (
        b"#Updated at t\n#two\n#lines\na\\ k=tab\\tnl\\n\\u00E9\\uD83D\\uDE00\nz=\\ lead\\=a\\:b\\#c\\!d\\\\\n"
    )


def test_a_malformed_escape_is_corrupt() -> None:
    with pytest.raises(CorruptTableError, match="malformed unicode escape"):
        parse_properties(b"a=\\u12G4")


def test_the_checksum_covers_database_and_table_name() -> None:
    assert table_checksum("default", "v9_txns_cow_simple_nometa") == 2616127535
    assert table_checksum(None, "t") == table_checksum("", "t") != table_checksum("default", "t")
