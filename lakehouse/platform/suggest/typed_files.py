"""Columns of files that declare their types: Parquet, ORC and Avro."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pyarrow as pa

from lakehouse.core.planning.schema import Promotion, normalise, promotion
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
    names: dict[str, list[pa.DataType]] = {}
    for file in files.sampled:
        for column in typed_columns_of(files.storage, file, format):
            kinds = names.setdefault(column.name, [])
            if column.type not in kinds:
                kinds.append(column.type)
    # Times without a zone are instants in ORC.
    columns = tuple(_column(name, kinds, tables, has_local_times=format != "orc") for name, kinds in names.items())
    is_cut = any(table.num_rows >= part.rows for table in tables)
    return columns, sum(table.num_rows for table in tables), is_cut


def _column(
    name: str, types: Sequence[pa.DataType], tables: Sequence[pa.Table], *, has_local_times: bool
) -> SampledColumn:
    widest = _widest(types)
    kind = sql_type(widest, has_local_times=has_local_times) or f"unsupported ({widest})"
    values: list[Hashable] = []
    for table in tables:
        stored = table.column(name).to_pylist() if name in table.schema.names else [None] * table.num_rows
        values += [value if isinstance(value, Hashable) else str(value) for value in stored]
    notes: tuple[str, ...] = (f"the files have several types: {', '.join(map(str, types))}",) if len(types) > 1 else ()
    if kind == "bigint" and not notes:
        notes = epoch_notes(name, [value for value in values if isinstance(value, int)])
    return SampledColumn(name=name, type=kind, values=values, notes=notes, key_type=kind)


def _widest(types: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type that has the values of all types without a change; string if there is none."""
    present = [kind for kind in types if not pa.types.is_null(kind)]
    if len(present) < 2:
        return (present or types)[0]
    stored = normalise(pa.schema([(str(number), kind) for number, kind in enumerate(present)])).types
    fitting = (wide for wide in stored if all(promotion(narrow, wide) is Promotion.EXACT for narrow in stored))
    return next(fitting, pa.string())
