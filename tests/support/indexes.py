"""Tables with a metadata table on the local disk, and the content of its index partitions by an independent reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lakehouse.core.table.table import Table
from tests.support.referees import referee
from tests.support.tables import Shape, data_rows, make_env, make_table


def table_with_metadata(folder: Path, *, rebuilt: bool = True, **shape: Any) -> Table:
    """Create a table with a metadata table below `folder`; without `rebuilt` it has the one of new tables."""
    table = make_table(Shape(rows_per_file=3, **shape), env=make_env(str(folder / "t")))
    if rebuilt:
        table.metadata.rebuild()
    return table


def stored_keys(table: Table, partition: str) -> set[str]:
    """Return the keys of an index partition."""
    return set(referee("mdt").read_partition(Path(table.location), partition))


def indexed_values(table: Table, column: str) -> set[str]:
    """Return the keys of a secondary index that follow from the rows of the table."""
    key = referee("mdt").secondary_key
    return {key(row[column], row["id"]) for row in data_rows(table)}
