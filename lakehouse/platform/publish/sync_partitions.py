"""Convert partition paths to the values of a metastore's partition columns, as Hudi's extractor classes do; pure.

    default                                   by the partition columns of the table; values are unescaped
    MultiPartKeysValueExtractor               one value per level: `2025/03/01`, `y=2025/m=03`
    SinglePartPartitionValueExtractor         the whole path is one value; between its levels is `-`
    HiveStylePartitionValueExtractor          one level `column=value`
    SlashEncodedDayPartitionValueExtractor    three levels are one day: `2025/03/01` becomes 2025-03-01
    SlashEncodedHourPartitionValueExtractor   four levels are one hour: `2025/03/01/07` becomes 2025-03-01-07
    NonPartitionedExtractor                   no values: the metastore shows no partitions

Hudi's classes do not unescape values, so the metastore shows `a%3Db` for the value `a=b`. Partitions that Hudi declared
in this way stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from lakehouse.core.rows.partition_path import DEFAULT_PARTITION, parse_partition_path, unescape
from lakehouse.errors import UserError
from lakehouse.model.keys import KeyConfig
from lakehouse.platform.metastore.names import partition_name
from lakehouse.spec.options.sync import DAY, HIVE_STYLE, HOUR, MULTIPLE, SINGLE, UNPARTITIONED, SyncPolicy

_DAY = re.compile(r"\d{4}/\d\d/\d\d(/\d\d)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPartitions:
    """Partitions of a table by name in Hive, each with its values and its path; `skipped` maps paths to reasons.

    `escaped` contains the values as Hudi's classes return them, for paths whose values contain escaped characters.
    """

    by_name: Mapping[str, tuple[tuple[str, ...], str]]
    skipped: Mapping[str, str]
    escaped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def partition_columns(keys: KeyConfig, policy: SyncPolicy) -> tuple[str, ...]:
    """Return the names of the partition columns in the metastore, in the case in which they are declared."""
    return policy.partition_columns or tuple(keys.partition_fields)


def named_partitions(paths: Iterable[str], keys: KeyConfig, policy: SyncPolicy) -> NamedPartitions:
    """Return the partitions with their values; a path that does not fit the partition columns is skipped."""
    columns = [name.lower() for name in partition_columns(keys, policy)]
    by_name: dict[str, tuple[tuple[str, ...], str]] = {}
    skipped: dict[str, str] = {}
    escaped: dict[str, tuple[str, ...]] = {}
    if policy.partition_extractor == UNPARTITIONED:
        reason = f"{UNPARTITIONED} declares no partitions, so engines that need them find no rows"
        return NamedPartitions(by_name={}, skipped={path: reason for path in list(paths)[:1] if path})
    for path in paths if columns else ():
        try:
            values = _values(path, keys, policy, len(columns))
        except UserError as error:
            skipped[path] = error.message
            continue
        name = partition_name(columns, values)
        if name in by_name:
            skipped[path] = f"its name in Hive would be {name}, which is the name of {by_name[name][1]!r}"
            continue
        by_name[name] = (values, path)
        if "%" in path and not policy.partition_extractor:
            raw = _levels(path) if len(columns) > 1 else (path.partition("=")[2] if keys.hive_style else path,)
            if raw != values and len(raw) == len(columns):
                escaped[name] = raw
    return NamedPartitions(by_name=by_name, skipped=skipped, escaped=escaped)


def _values(path: str, keys: KeyConfig, policy: SyncPolicy, count: int) -> tuple[str, ...]:
    """Return one value per partition column; raise UserError for a path with another number of values."""
    if not policy.partition_extractor:
        return _default_values(path, keys, count)
    values = _EXTRACTORS[policy.partition_extractor](path)
    if len(values) != count:
        simple = policy.partition_extractor.rpartition(".")[2]
        raise UserError(f"{simple} returns {len(values)} values for it, and there are {count} partition columns")
    return tuple(map(unescape, values)) if policy.decode_partition else values


def _default_values(path: str, keys: KeyConfig, count: int) -> tuple[str, ...]:
    parsed = tuple(_hive_value(value) for value in parse_partition_path(path, keys))
    if len(parsed) == count:
        return parsed
    levels = _levels(path)
    if len(levels) != count:
        raise UserError(f"it has {len(levels)} levels, and there are {count} partition columns")
    return tuple(map(unescape, levels)) if keys.url_encode else levels


def _hive_value(value: str | None) -> str:
    if not value:
        return DEFAULT_PARTITION
    # The partition path 2025/03/01 is the single value 2025-03-01 in Hive.
    return value.replace("/", "-") if _DAY.fullmatch(value) else value


def _levels(path: str) -> tuple[str, ...]:
    """Return the value of each level; a level may have the form `column=value`."""
    return tuple(_level(level, path) for level in path.split("/"))


def _level(level: str, path: str) -> str:
    if "=" not in level:
        return level
    _, _, value = level.partition("=")
    if not value or "=" in value:
        raise UserError(f"level {level!r} of the path {path!r} is not column=value")
    return value


def _single(path: str) -> tuple[str, ...]:
    return (path.replace("/", "-"),)


def _hive_style(path: str) -> tuple[str, ...]:
    column, equals, value = path.partition("=")
    if not (column and equals and value) or "=" in value:
        raise UserError("HiveStylePartitionValueExtractor expects one level of the form column=value")
    return (value,)


def _day(path: str) -> tuple[str, ...]:
    return (_moment(path, "yyyy/mm/dd", "%Y-%m-%d"),)


def _hour(path: str) -> tuple[str, ...]:
    return (_moment(path, "yyyy/mm/dd/hh", "%Y-%m-%d-%H"),)


def _moment(path: str, form: str, output: str) -> str:
    try:
        numbers = [int(level) for level in _levels(path)]
        if len(numbers) != form.count("/") + 1:
            raise ValueError
        return datetime(*numbers).strftime(output)  # type: ignore[arg-type]
    except ValueError:
        raise UserError(f"the path {path!r} does not have the form {form}") from None


_EXTRACTORS: Mapping[str, Callable[[str], tuple[str, ...]]] = {
    MULTIPLE: _levels,
    SINGLE: _single,
    HIVE_STYLE: _hive_style,
    DAY: _day,
    HOUR: _hour,
}
