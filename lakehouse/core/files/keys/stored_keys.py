"""Check that the stored key and partition path of rows equal the values computed from their columns.

If the type of a column has changed, the same value may have a different string form, so that writers no longer match
the row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.rows.keys import partition_paths, record_keys, required_columns
from lakehouse.core.rows.log_entries import COLUMNS, KIND, RECORD
from lakehouse.errors import UserError
from lakehouse.model.keys import KeyConfig

_, _, KEY, PATH, _ = META_COLUMNS


@dataclass(slots=True)
class KeyValues:
    """Counts rows whose stored key (`keys`) or partition path (`paths`) differs from the value of their columns."""

    config: KeyConfig
    compares_paths: bool = True
    keys: int = 0
    paths: int = 0
    example: str = ""

    def add(self, rows: pa.Table) -> None:
        """Compare rows with meta columns. Of log entries, only records that provide all columns are compared."""
        if KIND in rows.column_names:
            whole = pc.and_(pc.equal(rows.column(KIND), RECORD), pc.equal(rows.column(COLUMNS), 0))
            rows = rows.filter(whole)
        rows = rows.filter(pc.is_valid(rows.column(KEY)))
        if not rows.num_rows or not set(required_columns(self.config)) <= set(rows.column_names):
            return
        if self.config.record_key_fields:
            self.keys += self._differing(rows, KEY)
        if self.compares_paths and PATH in rows.column_names:
            self.paths += self._differing(rows, PATH)

    def _differing(self, rows: pa.Table, name: str) -> int:
        try:
            made = self._made(rows, name)
        except UserError as error:
            # Values that produce no key, such as null, cannot have produced the stored key.
            self.example = self.example or error.message
            return 1
        stored = rows.column(name)
        differs = np.logical_and.reduce([np.asarray(pc.not_equal(stored, one).fill_null(True)) for one in made])
        if differs.any() and not self.example:
            first = int(np.flatnonzero(differs)[0])
            self.example = f"{stored[first].as_py()!r} is stored, the columns produce {made[0][first].as_py()!r}"
        return int(differs.sum())

    def _made(self, rows: pa.Table, name: str) -> list[pa.ChunkedArray]:
        if name == PATH:
            return [pa.chunked_array([partition_paths(rows, self.config).cast(pa.string())])]
        # Releases of Hudi differ in the form of a complex key with one field (DATA-2.1).
        forms = (True, False) if self.config.field_prefix is not None else (self.config.field_prefix,)
        return [record_keys(rows, replace(self.config, field_prefix=form)).cast(pa.string()) for form in forms]
