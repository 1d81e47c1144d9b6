"""What log files say, as one table: the shape that readers of logs give and that merging takes (format: data.md 5.2).

    columns of the table asked for (meta columns too; `_hoodie_record_key` always; null where a row brings none)
    __kind     int8    RECORD, DELETED_RECORD (a data row that says it is a delete), DELETE (an entry of a delete block)
    __default  bool    the entry is a delete without ordering value (null, or the int 0 that stands for it)
    __columns  int32   which columns the row brings: an index into a `ColumnSets`; 0 = all

Rows stand in processing order: a later row is the newer one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

KIND, DEFAULT, COLUMNS = "__kind", "__default", "__columns"
RECORD, DELETED_RECORD, DELETE = 0, 1, 2
CONTROL = pa.schema([(KIND, pa.int8()), (DEFAULT, pa.bool_()), (COLUMNS, pa.int32())])


@dataclass(slots=True)
class ColumnSets:
    """Sets of column names that partial rows bring, numbered; number 0 stands for all columns."""

    sets: list[frozenset[str] | None] = field(default_factory=lambda: [None])

    def number(self, names: frozenset[str] | None) -> int:
        """Return the number of a set, a new one if it was not seen before."""
        if names not in self.sets:
            self.sets.append(names)
        return self.sets.index(names)

    def union(self, first: int, second: int) -> int:
        """Return the number of the union of two sets."""
        one, other = self.sets[first], self.sets[second]
        return self.number(None if one is None or other is None else one | other)
