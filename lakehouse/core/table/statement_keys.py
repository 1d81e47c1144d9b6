"""Counts rows by key, and refuses statements that a write by key would carry out on other rows, too."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.planning.changed_rows import Statement
from lakehouse.errors import UserError

COUNT = "count_all"


class KeyCounts:
    """Counts the changed rows and the stored rows by key; without columns of a key it counts nothing.

    Attributes:
        identity: The columns of the key.
        places: The string columns with the place of a row.
        placed: Key and place of each row, if there are places, with empty strings for nulls, which never join.
        nbytes: The size of the counts.
    """

    def __init__(self, identity: Sequence[str], places: Sequence[str]) -> None:
        self.identity, self.places = list(identity), list(places)
        self.nbytes = 0
        self.placed: list[pa.Table] = []
        self._changed: list[pa.Table] = []
        self._stored: list[pa.Table] = []

    def add_changed(self, rows: pa.Table) -> None:
        """Count changed rows."""
        self._add(self._changed, rows)

    def add_stored(self, rows: pa.Table) -> None:
        """Count stored rows."""
        self._add(self._stored, rows)

    def changed(self) -> pa.Table:
        """Return the changed keys with their numbers of rows."""
        return self._sum(self._changed)

    def stored(self) -> pa.Table:
        """Return the stored keys with their numbers of rows."""
        return self._sum(self._stored)

    def _add(self, counts: list[pa.Table], rows: pa.Table) -> None:
        if self.identity and rows.num_rows:
            counts.append(rows.select(self.identity).group_by(self.identity).aggregate([([], COUNT)]))
            self.nbytes += counts[-1].nbytes
            if self.places:
                placed = rows.select([*self.identity, *self.places])
                for name in self.places:
                    texts = pc.fill_null(placed.column(name).cast(pa.string()), "")
                    placed = placed.set_column(placed.schema.get_field_index(name), name, texts)
                self.placed.append(placed)
                self.nbytes += placed.nbytes

    def _sum(self, counts: list[pa.Table]) -> pa.Table:
        if not counts:
            return pa.table({})
        summed = pa.concat_tables(counts).group_by(self.identity).aggregate([(COUNT, "sum")])
        columns = [summed.column(name) for name in (*self.identity, f"{COUNT}_sum")]
        return pa.Table.from_arrays(columns, names=[*self.identity, COUNT])


def refuse_partly_changed(statement: Statement, counted: pa.Table, stored: pa.Table) -> None:
    """Raise UserError if a write by key would change other stored rows than `counted`, by key."""
    if not counted.num_rows or not stored.num_rows:
        return
    if not statement.only_deletes:
        refuse_repeated_keys(counted.filter(pc.greater(counted.column(COUNT), 1)))
    both = stored.join(counted, keys=counted.column_names[:-1], join_type="inner", right_suffix="_changed")
    refuse_repeated_keys(both.filter(pc.greater(both[COUNT], both[f"{COUNT}_changed"])))


def refuse_repeated_keys(rows: pa.Table) -> None:
    """Raise UserError for the first key of several rows; it is called with the keys that several rows have."""
    if rows.num_rows:
        key = rows.drop_columns([name for name in rows.column_names if name.startswith(COUNT)]).to_pylist()[0]
        raise UserError(
            f"several rows have the key {key}, and the statement would change all of them alike, because rows are "
            "written by key. Replace their partition by insert_overwrite with unique keys; `upsert`, or an insert with "
            "hoodie.datasource.insert.dup.policy=drop, keeps keys unique",
            key=str(key),
        )


def refuse_other_places(changed: KeyCounts, stored: KeyCounts) -> None:
    """Raise UserError for a changed row that is not among the stored rows at its place."""
    rows = pa.concat_tables(changed.placed)
    indexed = pa.concat_tables([rows.slice(0, 0), *stored.placed])
    others = rows.join(indexed, [*changed.identity, *changed.places], join_type="left anti")
    refuse_repeated_keys(others.select(changed.identity))


def refuse_stored_keys(stored: pa.Table, inserted: pa.Table, identity: Sequence[str]) -> None:
    """Raise UserError if the table has a row with the key of an inserted row, which the insert would replace."""
    columns = list(identity)
    repeated = inserted.select(columns).join(stored.select(columns), keys=columns, join_type="left semi")
    if repeated.num_rows:
        raise UserError(
            f"MERGE inserts the key {repeated.slice(0, 1).to_pylist()[0]}, which is stored in a row that the condition "
            "`on` does not match. Add the record key to `on`, or leave the row out"
        )


def refuse_repeated_inserts(keys: pa.Table) -> None:
    """Raise UserError for the first key that several rows insert."""
    if keys.num_rows:
        key = keys.slice(0, 1).to_pylist()[0]
        raise UserError(f"MERGE: several rows of the source insert the key {key}; remove duplicates")
