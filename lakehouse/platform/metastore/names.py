"""Partition names as in Hive (`FileUtils.makePartName`), and comparison of locations."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lakehouse.core.rows.partition_path import DEFAULT_PARTITION, escape, unescape

_SCHEMES = {"s3a": "s3", "s3n": "s3", "": "file", "gcs": "gs", "cos": "cosn", "abfs": "abfss"}


def partition_name(columns: Sequence[str], values: Sequence[str]) -> str:
    """Return `column=value/...`, columns in lower case, values escaped; an empty value is the default partition."""
    pairs = zip(columns, values, strict=True)
    return "/".join(f"{escape(column.lower())}={escape(value or DEFAULT_PARTITION)}" for column, value in pairs)


def partition_values(name: str) -> tuple[str, ...]:
    """Return the unescaped values of a partition name, in order.

    partition_values(partition_name(columns, values)) == values, unless one is empty.
    """
    return tuple(unescape(level.partition("=")[2]) for level in name.split("/"))


def same_location(one: str, other: str) -> bool:
    """Return whether two locations are equal: `/a`, `file:/a` and `file:///a/` are, and s3 equals s3a."""
    return plain_location(one) == plain_location(other)


def plain_location(location: str) -> str:
    """Return a location in its normal form."""
    scheme, rest = "", location
    if match := re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*):(?=/)", location):
        scheme, rest = match[1].lower(), location[match.end() :]
    scheme = _SCHEMES.get(scheme, scheme)
    authority, path = "", rest
    if rest.startswith("//"):
        authority, slash, tail = rest[2:].partition("/")
        path = slash + tail
    return f"{scheme}://{authority}{re.sub('/+', '/', path).rstrip('/')}"
