"""Turn rows that are marked as deletes into rows with null columns, for sources that fill some columns of a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakehouse.core.rows.absent_columns import LACKS
from lakehouse.core.rows.record_merge import DELETED_COLUMN
from lakehouse.spark.sources import Frame


# parameters: the delete settings of the table spec, and columns of the rows
def clear_deleted(
    frame: Frame,
    *,
    keep: Collection[str],
    absent: Mapping[str, DataType],
    group: int,
    delete_field: str | None,
    delete_marker: str | None,
) -> Frame:
    """Return the rows; rows that are marked as deletes get null in all columns except `keep`.

    A row is marked by the boolean column `_hoodie_is_deleted`, which the result does not contain, or by the value
    `delete_marker` of the column `delete_field`.

    Args:
        frame: The rows.
        keep: The columns whose values stay.
        absent: Columns that no row provides. The marked rows get null in these columns. The other rows lack them, which
            the column `core.rows.absent_columns.LACKS` records.
        group: The number of the group for `absent` in that column.
        delete_field: The column that marks deletes, or None.
        delete_marker: Its value in deletes.
    """
    marked = F.lit(False)
    if DELETED_COLUMN in frame.columns:
        marked = marked | F.coalesce(F.col(DELETED_COLUMN), F.lit(False))
    if delete_field is not None and delete_field in frame.columns:
        marked = marked | F.coalesce(F.col(f"`{delete_field}`").cast("string") == F.lit(delete_marker), F.lit(False))
    columns = [
        F.col(f"`{name}`") if name in keep else F.when(~marked, F.col(f"`{name}`")).alias(name)
        for name in frame.columns
        if name not in (DELETED_COLUMN, LACKS)
    ]
    columns += [F.lit(None).cast(kind).alias(name) for name, kind in absent.items()]
    if absent or LACKS in frame.columns:
        lacks = F.coalesce(F.col(LACKS), F.lit(0)) if LACKS in frame.columns else F.lit(0)
        lacks = lacks.bitwiseOR(F.lit(1 << group if absent else 0)).cast("long")
        columns.append(F.when(marked, F.lit(0).cast("long")).otherwise(lacks).alias(LACKS))
    return frame.select(*columns)
