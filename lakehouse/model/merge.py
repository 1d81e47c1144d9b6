"""Merge modes and merge rules: how versions of a record are merged (DATA-5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha1

from lakehouse.errors import UnsupportedError
from lakehouse.model.column_groups import ColumnGroups

UNAVAILABLE = "__debezium_unavailable_value"
MERGER_PROPERTY = "hoodie.record.merge.property.lakehouse.merger"
#: The merger of tables with column groups; it runs without permission.
GROUP_MERGER = "lakehouse.core.rows.column_groups:merge_groups"


class MergeMode(StrEnum):
    """The record merge mode of a table."""

    COMMIT_TIME_ORDERING = "COMMIT_TIME_ORDERING"
    EVENT_TIME_ORDERING = "EVENT_TIME_ORDERING"
    CUSTOM = "CUSTOM"


#: The strategy ids of Hudi's mergers, and the id for merging by the payload class.
STRATEGIES = {
    "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5": MergeMode.EVENT_TIME_ORDERING,
    "ce9acb64-bde0-424c-9b91-f6ebba25356d": MergeMode.COMMIT_TIME_ORDERING,
}
BY_PAYLOAD = "00000000-0000-0000-0000-000000000000"


class PartialMode(StrEnum):
    """The values in the newer version that the older version's values replace (DATA-5.3)."""

    NONE = "NONE"
    IGNORE_DEFAULTS = "IGNORE_DEFAULTS"
    FILL_UNAVAILABLE = "FILL_UNAVAILABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRule:
    """The rule by which versions of a record are merged; picklable.

    Attributes:
        mode: The record merge mode.
        ordering: The ordering columns, compared as a tuple.
        partial: The partial update mode.
        unavailable: The value that FILL_UNAVAILABLE replaces.
        delete_field: The column whose value `delete_marker` marks a delete.
        delete_marker: The value that marks a delete.
        merger: The function `package.module:function` that merges rows in mode CUSTOM.
        merger_allowed: Whether the caller or the deployment allows the merger. A table may name any function, so it is
            not called otherwise.
        groups: The column groups, which `GROUP_MERGER` merges.
        by_parts: Whether the ordering column contains strings `<file>.<position>`, whose two numbers are compared.
        combines_whole: Whether rows of one key in one batch are not mixed: the row with the greatest ordering value
            is merged with the stored row.
        foreign: A description of the table's merger if it cannot run here; the rule then merges nothing (see
            `require_runnable`).
    """

    mode: MergeMode
    ordering: tuple[str, ...] = ()
    partial: PartialMode = PartialMode.NONE
    unavailable: str = UNAVAILABLE
    delete_field: str | None = None
    delete_marker: str | None = None
    merger: str | None = None
    merger_allowed: bool = False
    groups: ColumnGroups = ()
    by_parts: bool = False
    combines_whole: bool = False
    foreign: str = ""

    @property
    def compared(self) -> tuple[str, ...]:
        """The ordering columns that are compared; none if the commit time decides."""
        return () if self.mode is MergeMode.COMMIT_TIME_ORDERING else self.ordering

    @property
    def mixes(self) -> bool:
        """Whether a merged row may combine values from both versions."""
        return self.partial is not PartialMode.NONE or self.merger is not None

    def columns(self) -> tuple[str, ...]:
        """Return the columns that a merge needs in addition to the query's columns (see `needs_all_columns`)."""
        deletes = (self.delete_field,) if self.delete_field else ()
        return tuple(dict.fromkeys((*self.compared, *deletes, *(group.ordering for group in self.groups))))

    @property
    def needs_all_columns(self) -> bool:
        """Whether a merge needs all columns of the table, because any of them may influence its result."""
        return self.merger is not None and not self.groups


def require_runnable(rule: MergeRule) -> None:
    """Raise UnsupportedError with the declaration of the table if `rule` cannot merge records here."""
    if rule.mode is MergeMode.CUSTOM and not rule.merger:
        raise UnsupportedError(
            f"records of this table are merged by {rule.foreign or 'record merge mode CUSTOM'}, which cannot be run "
            f"here. Name a merger in Python ({MERGER_PROPERTY}=package.module:function), or read base files only "
            "(hoodie.datasource.query.type=read_optimized)",
            declared=rule.foreign,
        )
    if rule.merger and not rule.merger_allowed:
        raise UnsupportedError(
            f"records of this table are merged by the function {rule.merger!r}, which the table names. It was not "
            "loaded, because a table may name any code. If you trust it, allow it: as `merger` in the "
            f"table's spec, by Table.open(..., allowed_functions=[{rule.merger!r}]), by the option allowed_functions "
            f"of Spark's format, or for the deployment by LAKEHOUSE_ALLOWED_FUNCTIONS={rule.merger}",
            merger=rule.merger,
        )


def merge_strategy_id(merger: str) -> str:
    """Return the merge strategy id of a merger `package.module:function`: a UUID that is derived from the name.

    Other readers do not know the strategy, so they refuse the table instead of merging records in another way.
    """
    digest = bytearray(sha1(b"lakehouse.merger:" + merger.encode(), usedforsecurity=False).digest()[:16])
    digest[6], digest[8] = digest[6] & 0x0F | 0x50, digest[8] & 0x3F | 0x80
    text = digest.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
