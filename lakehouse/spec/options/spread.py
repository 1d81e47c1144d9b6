"""Options of spreading: how inserts into hot partitions and for large tenants are distributed over file groups."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.spec.options.option import option

SPREAD_COLUMN = "lakehouse.write.spread.column"
SPREAD_LARGE = "lakehouse.write.spread.large"
SPREAD_MIN_BYTES = "lakehouse.write.spread.min.bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadPolicy:
    """How skewed inserts are distributed over tasks and file groups."""

    column: str = option(
        SPREAD_COLUMN,
        "",
        "Column, such as the tenant, whose large values get file groups of their own in insert and bulk_insert; small "
        "values share file groups. The index must not hash keys.",
    )
    large: str = option(
        SPREAD_LARGE,
        "",
        "Values of that column that are large in any case, comma separated. Others are large if commits have at least "
        f"{SPREAD_MIN_BYTES} of them, which is learnt from earlier commits.",
    )
    min_bytes: int = option(
        SPREAD_MIN_BYTES,
        8 * 1024 * 1024,
        "Inserts of a partition are divided over more file groups than their size needs, up to the number of cores, as "
        "long as each gets so many bytes; 0 = off, and then only declared values of the spread column are large.",
    )

    @property
    def large_values(self) -> frozenset[str]:
        """The column values that are declared as large, such as large tenants."""
        return frozenset(value.strip() for value in self.large.split(",") if value.strip())
