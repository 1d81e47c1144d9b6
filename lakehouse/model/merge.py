"""How versions of a record meet: the merge modes of a table and all else that decides (DATA-5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha1

from lakehouse.errors import UnsupportedError

UNAVAILABLE = "__debezium_unavailable_value"
MERGER_PROPERTY = "hoodie.record.merge.property.lakehouse.merger"


class MergeMode(StrEnum):
    """How a newer version of a record meets an older one."""

    COMMIT_TIME_ORDERING = "COMMIT_TIME_ORDERING"
    EVENT_TIME_ORDERING = "EVENT_TIME_ORDERING"
    CUSTOM = "CUSTOM"


class PartialMode(StrEnum):
    """Which values of the surviving version give way to those of the other one (DATA-5.3)."""

    NONE = "NONE"
    IGNORE_DEFAULTS = "IGNORE_DEFAULTS"
    FILL_UNAVAILABLE = "FILL_UNAVAILABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRule:
    """All that decides how versions of a record meet; picklable.

    `ordering` names the ordering columns, compared as a tuple; with `by_parts` the one column holds strings
    `<file>.<position>` whose two numbers are compared. Rows whose `delete_field` reads `delete_marker` are deletes.
    `merger` names a function `package.module:function` that merges rows in mode CUSTOM; it is called only where
    `merger_allowed` says that the caller or the deployment allows it, since a table may name any function. `foreign`
    says in words what a table declares that cannot be run here: such a rule merges nothing (`require_runnable`).
    """

    mode: MergeMode
    ordering: tuple[str, ...] = ()
    partial: PartialMode = PartialMode.NONE
    unavailable: str = UNAVAILABLE
    delete_field: str | None = None
    delete_marker: str | None = None
    merger: str | None = None
    merger_allowed: bool = False
    by_parts: bool = False
    foreign: str = ""

    @property
    def compared(self) -> tuple[str, ...]:
        """The ordering columns, where values of them decide anything: not by commit time."""
        return () if self.mode is MergeMode.COMMIT_TIME_ORDERING else self.ordering

    @property
    def mixes(self) -> bool:
        """Whether a merged row may hold values of both versions, and is not simply the one that survives."""
        return self.partial is not PartialMode.NONE or self.merger is not None

    def columns(self) -> tuple[str, ...]:
        """Return the columns that merging must read beside those asked for; with a `merger`, it wants all of them."""
        return tuple(dict.fromkeys((*self.compared, *((self.delete_field,) if self.delete_field else ()))))


def require_runnable(rule: MergeRule) -> None:
    """Raise UnsupportedError naming what the table declares, if `rule` cannot merge versions of records here."""
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
            "loaded, because code that a table names could be anybody's. If you trust it, allow it: as `merger` in the "
            f"table's spec, by Table.open(..., allowed_functions=[{rule.merger!r}]), by the option allowed_functions "
            f"of Spark's format, or for the deployment by LAKEHOUSE_ALLOWED_FUNCTIONS={rule.merger}",
            merger=rule.merger,
        )


def merge_strategy_id(merger: str) -> str:
    """Return the merge strategy id of a merger named `package.module:function`: a UUID that its name alone decides.

    Other readers find a strategy they do not know and refuse the table, instead of merging it in their own way.
    """
    digest = bytearray(sha1(b"lakehouse.merger:" + merger.encode(), usedforsecurity=False).digest()[:16])
    digest[6], digest[8] = digest[6] & 0x0F | 0x50, digest[8] & 0x3F | 0x80
    text = digest.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
