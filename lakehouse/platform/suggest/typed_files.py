"""Columns of files that declare their types: Parquet, ORC and Avro."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pyarrow as pa

from lakehouse.platform.suggest.arrow_types import sql_type
from lakehouse.platform.suggest.file_samples import SampledFiles, share, typed_columns_of, typed_rows
from lakehouse.platform.suggest.sample import Limits, SampledColumn
from lakehouse.platform.suggest.text_columns import epoch_notes


def typed_sample_columns(
    files: SampledFiles, format: str, limits: Limits
) -> tuple[tuple[SampledColumn, ...], int, bool]:
    """Return the columns of the sampled files, the number of sampled rows, and whether a file may have more."""
    part = share(limits, files.sampled)
    tables = [typed_rows(files.storage, file, format, part.rows) for file in files.sampled]
    names: dict[str, list[str]] = {}
    for file in files.sampled:
        for column in typed_columns_of(files.storage, file, format):
            # Times without a zone are instants in ORC.
            kind = sql_type(column.type, has_local_times=format != "orc") or f"unsupported ({column.type})"
            kinds = names.setdefault(column.name, [])
            if kind not in kinds:
                kinds.append(kind)
    columns = tuple(_column(name, kinds, tables) for name, kinds in names.items())
    is_cut = any(table.num_rows >= part.rows for table in tables)
    return columns, sum(table.num_rows for table in tables), is_cut


def _column(name: str, kinds: Sequence[str], tables: Sequence[pa.Table]) -> SampledColumn:
    values: list[Hashable] = []
    for table in tables:
        stored = table.column(name).to_pylist() if name in table.schema.names else [None] * table.num_rows
        values += [value if isinstance(value, Hashable) else str(value) for value in stored]
    notes: tuple[str, ...] = (f"the files have several types: {', '.join(kinds)}",) if len(kinds) > 1 else ()
    if kinds == ["bigint"]:
        notes = epoch_notes(name, [value for value in values if isinstance(value, int)])
    return SampledColumn(name=name, type=kinds[0], values=values, notes=notes, key_type=kinds[0])
