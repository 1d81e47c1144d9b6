"""Segments of partition paths: escaping, the null partition, and parsing of paths into values (DATA-2.3)."""

from __future__ import annotations

import re

from lakehouse.errors import UserError
from lakehouse.model.keys import KeyConfig, TimestampFormat

# Tables before Hudi 0.12 used `default`. The upgrade to table version 5 renames those partitions, so `default` is an
# ordinary value in the versions that are read here.
DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"

_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")


def escape(value: str) -> str:
    """Return `value` with each character of Hive's set as `%XX`.

    Blanks and non-ASCII characters stay (spec: keys.urlencode).
    """
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", value)


def unescape(segment: str) -> str:
    """Return `segment` with each `%XX` decoded; a `%` without two hex digits stays."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), segment)


def is_timestamp_field(index: int, config: KeyConfig) -> bool:
    """Return whether the partition field at `index` is formatted by the timestamp generator."""
    return index < len(config.partition_types) and config.partition_types[index] == "TIMESTAMP"


def segment(value: str | None, field: str, config: KeyConfig) -> str | None:
    """Return the path segment of one value; None if it would not be a safe directory name.

    Null and empty values go to the default partition. A value with `/` creates directory levels unless it is escaped.
    Levels that are empty, `.` or `..`, or a first level `.hoodie`, would lead out of the partition or into the metadata
    folder of the table.
    """
    text = value or DEFAULT_PARTITION
    if config.url_encode:
        text = escape(text)
    if config.hive_style:
        text = f"{field}={text}"
    levels = text.split("/")
    return None if levels[0] == ".hoodie" or any(level in ("", ".", "..") for level in levels) else text


def parse_partition_path(path: str, config: KeyConfig) -> tuple[str | None, ...]:
    """Return the value of each partition field in `path`, unescaped, without `field=`; None for the default partition.

    The value of a TIMESTAMP field is its formatted string with all directory levels, not the value of the data column.
    Raises UserError if the path does not fit the fields.
    """
    fields = config.partition_fields
    if not fields:
        if path:
            raise UserError(f"partition path {path!r} in a table without partition fields", path=path)
        return ()
    return tuple(_value(text, field, path, config) for text, field in zip(_split(path, config), fields, strict=True))


def _split(path: str, config: KeyConfig) -> list[str]:
    """Divide `path` into one string per partition field."""
    fields = config.partition_fields
    if len(fields) == 1:
        return [path]
    levels = path.split("/")
    widths = [_levels(index, config) for index in range(len(fields))]
    if len(levels) != sum(widths) and config.hive_style:
        widths = _hive_widths(levels, fields)
    if len(levels) != sum(widths) or len(widths) != len(fields):
        raise UserError(
            f"partition path {path!r} has {len(levels)} levels; fields {', '.join(fields)} need {sum(widths)}",
            path=path,
        )
    ends = [sum(widths[: index + 1]) for index in range(len(widths))]
    return ["/".join(levels[end - width : end]) for end, width in zip(ends, widths, strict=True)]


def _levels(index: int, config: KeyConfig) -> int:
    """Return the number of directory levels of the partition field at `index`."""
    if not is_timestamp_field(index, config) or config.url_encode:
        return 1
    return (config.timestamp or TimestampFormat()).output_format.count("/") + 1


def _hive_widths(levels: list[str], fields: tuple[str, ...]) -> list[int]:
    """Return the number of levels per field if unescaped values contain `/`.

    A field ends where the next field name begins.
    """
    starts: list[int] = []
    for index, level in enumerate(levels):
        if len(starts) < len(fields) and level.startswith(f"{fields[len(starts)]}="):
            starts.append(index)
    return [end - start for start, end in zip(starts, [*starts[1:], len(levels)][: len(starts)], strict=True)]


def _value(text: str, field: str, path: str, config: KeyConfig) -> str | None:
    if config.hive_style:
        if not text.startswith(f"{field}="):
            raise UserError(f"partition path {path!r}: expected {field}=... but found {text!r}", path=path, field=field)
        text = text[len(field) + 1 :]
    if text == DEFAULT_PARTITION:
        return None
    return unescape(text) if config.url_encode else text
