"""Options of the index service: which indexes of the metadata table a table has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lakehouse.errors import SettingError
from lakehouse.model.indexing import (
    ARGUMENTS,
    COLUMN_STATS,
    FORMAT_ARGUMENT,
    IDENTITY,
    SECONDARY_INDEX,
    DeclaredIndex,
)
from lakehouse.model.partition_kind import PartitionKind, partition_kind
from lakehouse.spec.options.option import option

RECORD_INDEX_ENABLE = "hoodie.metadata.global.record.level.index.enable"
PARTITIONED_RECORD_INDEX_ENABLE = "hoodie.metadata.record.level.index.enable"
BLOOM_FILTERS_ENABLE = "hoodie.metadata.index.bloom.filter.enable"
TRUSTED_KEYS = "lakehouse.index.trusts.keys"
SECONDARY_KEY = "lakehouse.index.secondary"
EXPRESSIONS_KEY = "lakehouse.index.expressions"
_NAME = re.compile(r"[A-Za-z0-9_]+")
_EXPRESSION = re.compile(
    r"\s*(?P<name>\w+)\s*=\s*(?:(?P<kind>column_stats|bloom_filters)\s*:)?\s*(?P<function>\w+)\s*"
    r"\(\s*(?P<column>[\w.]+)\s*(?:,\s*(?P<arguments>(?:'(?:[^']|'')*'|[^)'])*?)\s*)?\)\s*(?:[,;]|$)",
    re.ASCII,
)
_ARGUMENT = re.compile(r"""\s*((?:'(?:[^']|'')*'|"[^"]*"|[^,'"])+)""")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexingPolicy:
    """The declared indexes of the metadata table, and how long a build waits for writers."""

    record_index: bool = option(
        RECORD_INDEX_ENABLE,
        False,
        "The table has a record index: the file group of each record key, which is unique in the table.",
        aliases=("hoodie.metadata.record.index.enable",),
    )
    partitioned_record_index: bool = option(
        PARTITIONED_RECORD_INDEX_ENABLE,
        False,
        "The table has a record index for each partition; a record key may occur in several partitions.",
    )
    trusts_keys: bool = option(
        TRUSTED_KEYS,
        False,
        "Other programs that write the table insert no key twice, so reads skip files by the record index after their "
        "commits, too.",
    )
    min_groups: int = option(
        "hoodie.metadata.global.record.level.index.min.filegroup.count",
        10,
        "Minimum number of file groups of the table's record index.",
        aliases=("hoodie.metadata.record.index.min.filegroup.count",),
    )
    max_groups: int = option(
        "hoodie.metadata.global.record.level.index.max.filegroup.count",
        10_000,
        "Maximum number of file groups of the table's record index.",
        aliases=("hoodie.metadata.record.index.max.filegroup.count",),
    )
    min_groups_per_partition: int = option(
        "hoodie.metadata.record.level.index.min.filegroup.count",
        1,
        "Minimum number of file groups of a partition's record index.",
    )
    max_groups_per_partition: int = option(
        "hoodie.metadata.record.level.index.max.filegroup.count",
        10,
        "Maximum number of file groups of a partition's record index.",
    )
    bloom_groups: int = option(
        "hoodie.metadata.index.bloom.filter.file.group.count", 4, "Number of file groups of the bloom filters."
    )
    bloom_filters: bool = option(
        BLOOM_FILTERS_ENABLE, False, "The metadata table contains the bloom filters of base files."
    )
    secondary: str = option(
        SECONDARY_KEY,
        "",
        "Columns with a secondary index, separated by commas, each as `column` or `name:column`.",
    )
    expressions: str = option(
        EXPRESSIONS_KEY,
        "",
        "Indexes on expressions, separated by semicolons, each as `name=function(column)`, such as "
        "`by_day=from_unixtime(ts, yyyy-MM-dd)`, or as `name=bloom_filters:function(column)`.",
    )

    def __post_init__(self) -> None:
        """Raise SettingError if both kinds of record index are declared, or if a declaration does not parse."""
        if self.record_index and self.partitioned_record_index:
            raise SettingError(
                f"options {RECORD_INDEX_ENABLE}=true and {PARTITIONED_RECORD_INDEX_ENABLE}=true contradict: a table "
                "has one record index; remove one of them",
                setting=PARTITIONED_RECORD_INDEX_ENABLE,
                related=(RECORD_INDEX_ENABLE,),
            )
        _ = self.declared

    @property
    def declared(self) -> tuple[DeclaredIndex, ...]:
        """The declared secondary indexes and indexes on expressions, in the order of their declaration."""
        indexes = (*_secondary(self.secondary), *_expressions(self.expressions))
        names = [index.partition for index in indexes]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            is_secondary = partition_kind(twice) is PartitionKind.SECONDARY_INDEX
            key = SECONDARY_KEY if is_secondary else EXPRESSIONS_KEY
            raise SettingError(f"option {key}: the index {twice} is declared twice; name each index once", setting=key)
        return indexes


def secondary_index(column: str, name: str = "") -> DeclaredIndex:
    """Return the secondary index of a column; raise SettingError for a name that Hudi's file names cannot contain."""
    return DeclaredIndex(name=_checked_name(name or column, SECONDARY_KEY), kind=SECONDARY_INDEX, column=column)


def expression_index(text: str) -> DeclaredIndex:
    """Return the index of one declaration `name=function(column)`; raise SettingError if it does not parse."""
    indexes = tuple(_expressions(text))
    if len(indexes) != 1:
        raise SettingError(f"{text!r} declares {len(indexes)} indexes; expected one", setting=EXPRESSIONS_KEY)
    return indexes[0]


def _secondary(text: str) -> Iterable[DeclaredIndex]:
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, separator, column = part.partition(":")
        if separator and not (name.strip() and column.strip()):
            raise SettingError(
                f"option {SECONDARY_KEY}: {part!r} is neither `column` nor `name:column`", setting=SECONDARY_KEY
            )
        yield secondary_index((column if separator else name).strip(), name.strip())


def _expressions(text: str) -> Iterable[DeclaredIndex]:
    position, text = 0, text.strip().rstrip(",;")
    while position < len(text):
        match = _EXPRESSION.match(text, position)
        if match is None:
            raise SettingError(
                f"option {EXPRESSIONS_KEY}: {text[position:].strip()!r} is not of the form name=function(column)",
                setting=EXPRESSIONS_KEY,
            )
        options = {"expr": match["function"].lower()}
        names = ARGUMENTS.get(options["expr"], FORMAT_ARGUMENT)
        # The last argument, such as a time format, may contain unquoted commas.
        given = _ARGUMENT.findall(match["arguments"] or "") if len(names) > 1 else [match["arguments"] or ""]
        if len(given) > len(names):
            raise SettingError(
                f"option {EXPRESSIONS_KEY}: {match['function']} takes {', '.join(names)} behind the column; found "
                f"{len(given)} arguments",
                setting=EXPRESSIONS_KEY,
            )
        options |= {name: _unquoted(text) for name, text in zip(names, given, strict=False) if text}
        yield DeclaredIndex(
            name=_checked_name(match["name"], EXPRESSIONS_KEY),
            kind=match["kind"] or COLUMN_STATS,
            column=match["column"],
            function=match["function"].lower() or IDENTITY,
            options=options,
        )
        position = match.end()


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1].replace("''", "'") if text[0] == "'" else text[1:-1]
    return text


def _checked_name(name: str, key: str) -> str:
    if not _NAME.fullmatch(name):
        raise SettingError(
            f"option {key}: {name!r} is not the name of an index; letters, digits and underscores are allowed. Declare "
            "it as name:column",
            setting=key,
        )
    return name
