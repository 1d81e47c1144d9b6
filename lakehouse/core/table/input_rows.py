"""Take rows in any form that Python users have, and return them as Arrow data.

    lists and iterators of dicts, dataclasses, pydantic models, named tuples    converted by `rows.python_values`
    pandas                                                                      converted column by column
    anything with `__arrow_c_stream__` or `__arrow_c_array__`, datasets         Arrow, without a copy
    lazy frames of Polars, iterators of record batches                          streamed

Rows of Python and pandas have no declared types: the schema of the table decides them, and each value must fit exactly.
All rows are converted before the write begins, so a wrong value leaves nothing behind. No package is imported for this:
a frame is recognised by the module of its class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, islice
from operator import methodcaller
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from lakehouse.core.engine.frames import ACCEPTED, ARROW_FRAMES
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.rows.absent_columns import LACKS, grouped
from lakehouse.core.rows.python_values import (
    ValueMistake,
    converted,
    exact_cast,
    field_values,
    fitted,
    struct_fields,
    united_kinds,
)
from lakehouse.core.table.polars_batches import polars_batches
from lakehouse.core.table.row_spool import RowSpool
from lakehouse.core.table.source_batch import SourceBatch
from lakehouse.errors import UserError, nearest
from lakehouse.model.display import one_line
from lakehouse.model.drift import BatchColumns
from lakehouse.model.texts import is_encodable
from lakehouse.spec.options.schema import NEW_COLUMN

#: A value with one of these attributes has rows.
_INTERFACES = ("__arrow_c_stream__", "__arrow_c_array__", "scanner", "to_reader", "collect_batches")
_FIRST_ROWS, _MOST_ROWS, _FRAME_ROWS = 1_000, 131_072, 131_072
#: The rows that wait in memory, and one converted batch, are these parts of the memory budget.
_SPOOL_PART, _BATCH_PART = 8, 64
_LEAST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRules:
    """How rows without declared types are converted.

    Attributes:
        schema: The data columns of the table; None if the rows declare them.
        adds_columns: Whether rows may have columns that the table lacks.
        separates_absent: Whether a column that a row lacks differs from null: the stored row keeps its value.
        budget_bytes: The memory budget of the write.
    """

    schema: pa.Schema | None
    adds_columns: bool
    separates_absent: bool
    budget_bytes: int


def input_batch(rows: Any, load_rules: Callable[[], InputRules]) -> SourceBatch:
    """Return rows of any accepted kind as Arrow data.

    Args:
        rows: The rows.
        load_rules: Loads the schema of the table, for rows without declared types.

    Raises:
        UserError: The object has no rows, or a value does not fit its column; the message names row, column and value.
    """
    if isinstance(rows, ARROW_FRAMES):
        return SourceBatch(rows)
    package = type(rows).__module__.partition(".")[0]
    if package == "pandas":
        return _of_pandas(rows, load_rules)
    if package == "polars" and hasattr(rows, "collect_schema"):
        _refuse_objects(rows)
    if package == "polars" and hasattr(rows, "collect_batches"):
        return SourceBatch(_of_lazy_frame(rows))
    if package == "pyarrow" and hasattr(rows, "scanner"):
        return SourceBatch(rows.scanner().to_reader())
    if package == "pyarrow" and hasattr(rows, "to_reader"):
        return SourceBatch(rows.to_reader())
    if hasattr(rows, "__arrow_c_stream__"):
        return SourceBatch(_of_stream(rows))
    if hasattr(rows, "__arrow_c_array__"):
        return SourceBatch(_of_array(rows))
    if isinstance(rows, str | bytes | bytearray | memoryview | PathLike | Mapping) or _as_mapping(rows) is not None:
        raise refused(rows)
    if not isinstance(rows, Iterable):
        raise refused(rows)
    return _of_iterator(rows, load_rules)


def has_rows(value: Any) -> bool:
    """Return whether a value contains rows: a frame, or a list or iterator whose values are rows."""
    if isinstance(value, Mapping | str | bytes) or not isinstance(value, Iterable):
        return any(hasattr(value, name) for name in _INTERFACES)
    if isinstance(value, Sequence | Set):
        return all(isinstance(row, Mapping | pa.RecordBatch | pa.Table) or _as_mapping(row) for row in value)
    return not isinstance(value, pa.Array | pa.ChunkedArray)


def refused(rows: Any) -> UserError:
    """Return the error for an object that has no rows, with the accepted kinds and the way out."""
    package, kind = type(rows).__module__.partition(".")[0], type(rows).__name__
    hint = "convert it to one of these"
    if rows is None:
        hint = "pass the rows to write"
    elif isinstance(rows, Mapping):
        hint = "pass [row] for one row, or pyarrow.table(columns) for columns"
    elif _as_mapping(rows) is not None:
        hint = "pass [row] for one row"
    elif isinstance(rows, str | bytes | bytearray | PathLike):
        hint = "read the file first, such as by pyarrow.csv.read_csv(path) or pyarrow.parquet.read_table(path)"
    elif package in ("pandas", "polars"):
        hint = "pass a frame, such as series.to_frame()"
    return UserError(f"rows are of type {kind}; give {ACCEPTED}. {hint[0].upper()}{hint[1:]}", argument="rows")


def _of_stream(rows: Any) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(rows)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UserError(
            f"rows are of type {type(rows).__name__}, whose Arrow stream has no columns ({error}); give a table",
            argument="rows",
        ) from error


def _of_array(rows: Any) -> pa.RecordBatch:
    try:
        return pa.record_batch(rows)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UserError(
            f"rows are of type {type(rows).__name__}, whose Arrow array has no columns ({error}); give a table",
            argument="rows",
        ) from error


def _refuse_objects(frame: Any) -> None:
    """Raise UserError for a column of Python objects, of which Polars exports the addresses."""
    for name, kind in frame.collect_schema().items():
        if str(kind) == "Object":
            raise UserError(
                f"column {name!r} of the frame has type Object, which a Hudi table cannot store; cast it first, "
                "or pass frame.to_dicts()",
                argument="rows",
                column=name,
            )


def _of_lazy_frame(frame: Any) -> pa.RecordBatchReader:
    """Return the result of a lazy Polars frame as a stream."""
    frames = polars_batches(frame)
    first = next(frames, None)
    if first is None:
        first = frame.head(0).collect()
    schema = first.to_arrow().schema

    def batches() -> Iterator[pa.RecordBatch]:
        for part in chain([first], frames):
            yield from part.to_arrow().cast(schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def _of_batches(batches: Iterator[Any]) -> pa.RecordBatchReader:
    """Return record batches or tables as one stream; all have the schema of the first."""
    first = next(batches)
    schema = first.schema

    def checked() -> Iterator[pa.RecordBatch]:
        for number, part in enumerate(chain([first], batches)):
            if not isinstance(part, pa.RecordBatch | pa.Table):
                raise UserError(f"batch {number} is of type {type(part).__name__}; the batches before are Arrow data")
            if part.schema != schema:
                raise UserError(
                    f"batch {number} has the columns {one_line(str(part.schema), 200)}, but batch 0 has "
                    f"{one_line(str(schema), 200)}; cast all batches to one schema"
                )
            yield from part.to_batches() if isinstance(part, pa.Table) else (part,)

    return pa.RecordBatchReader.from_batches(schema, checked())


def _of_iterator(rows: Iterable[Any], load_rules: Callable[[], InputRules]) -> SourceBatch:
    """Return the rows of a list or an iterator."""
    iterator = iter(rows)
    first = next(iterator, None)
    if first is None:
        if isinstance(rows, Sequence) and len(rows):
            raise UserError("row 0 is None; give a dict, a dataclass or a pydantic model for each row", argument="rows")
        schema = load_rules().schema
        if schema is None:
            raise UserError(
                "there are no rows, and the table has no columns yet; create it with a schema, or write rows"
            )
        return SourceBatch(schema.empty_table())
    everything = chain([first], iterator)
    if isinstance(first, pa.RecordBatch | pa.Table):
        return SourceBatch(_of_batches(everything))
    to_mapping = _as_mapping(first)
    if to_mapping is None and not isinstance(first, Mapping):
        raise _bad_row(0, first)
    conversion = _Conversion(load_rules())
    try:
        conversion.take(everything)
        return conversion.result()
    except BaseException:
        conversion.spool.close()
        raise


def _as_mapping(row: Any) -> Callable[[Any], Mapping[str, Any]] | None:
    """Return the function that returns an object as a mapping; None if it has no named values."""
    if isinstance(row, type):
        return None
    if dataclasses.is_dataclass(row):
        return dataclasses.asdict
    for name in ("model_dump", "_asdict"):
        if callable(getattr(row, name, None)):
            return methodcaller(name)
    return None


def _bad_row(number: int, row: Any) -> UserError:
    return UserError(
        f"row {number} is {one_line(repr(row), 80)}, which is of type {type(row).__name__}; give a dict, a dataclass "
        "or a pydantic model for each row",
        argument="rows",
        row=number,
    )


class _Conversion:
    """Converts rows of Python in batches, and collects their types and the columns that rows lack."""

    def __init__(self, rules: InputRules) -> None:
        self.rules = rules
        self.spool = RowSpool(max(rules.budget_bytes // _SPOOL_PART, _LEAST_BYTES))
        #: The type of each column, by name.
        self.kinds: dict[str, pa.DataType] = {}
        #: The columns that rows have, with the number of rows, and the number of each set in the batches.
        self.patterns: dict[tuple[str, ...], int] = {}
        self.numbers: dict[tuple[str, ...], int] = {}

    def take(self, rows: Iterable[Any]) -> None:
        """Convert all rows."""
        iterator, count = iter(rows), _FIRST_ROWS
        target = max(self.rules.budget_bytes // _BATCH_PART, _LEAST_BYTES)
        while part := list(islice(iterator, count)):
            batch = self._batch(_mappings(part, self.spool.rows))
            self.spool.add(batch)
            count = int(np.clip(target * len(part) // max(batch.nbytes, 1), 1, min(4 * count, _MOST_ROWS)))

    def result(self) -> SourceBatch:
        """Return all rows, in the types that were settled."""
        schema = pa.schema([pa.field(name, kind) for name, kind in self.kinds.items()])
        numbered = len(self.patterns) > 1 and self.rules.schema is not None
        columns, bits = self._absent(schema) if numbered else (None, None)
        if bits is not None:
            schema = schema.append(pa.field(LACKS, pa.int64()))

        def fit(batch: pa.RecordBatch) -> pa.RecordBatch:
            arrays = [self._column(batch, field) for field in schema if field.name != LACKS]
            if bits is not None:
                arrays.append(pa.array(bits[np.asarray(batch.column(batch.num_columns - 1))]))
            return pa.RecordBatch.from_arrays(arrays, schema=schema)

        rows = self.spool.reader(schema, fit) if self.spool.is_spilled else self.spool.table(schema, fit)
        return SourceBatch(rows, columns=columns)

    def _absent(self, schema: pa.Schema) -> tuple[BatchColumns, np.ndarray | None]:
        """Return the columns that rows lack, and the bits of each set of columns."""
        lacking = [frozenset(schema.names).difference(names) for names in self.patterns]
        counts = {
            name: sum(count for count, names in zip(self.patterns.values(), lacking, strict=True) if name in names)
            for name in schema.names
        }
        absent = {name: count for name, count in counts.items() if count}
        if not self.rules.separates_absent:
            return BatchColumns(rows=self.spool.rows, lacking_rows=absent), None
        groups, bits = grouped(lacking)
        return BatchColumns(rows=self.spool.rows, lacks=groups, lacking_rows=absent), np.array(bits, np.int64)

    def _batch(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Convert rows; the last column has the number of each row's column set."""
        start = self.spool.rows
        names = struct_fields(rows)
        arrays, wanted = [], self.rules.schema
        for name in names:
            kind = self._declared(name, rows, start)
            try:
                array = converted(field_values(rows, name), kind)
            except ValueMistake as mistake:
                raise self._mistake(mistake.inside(name, range(start, start + len(rows)))) from None
            if wanted is None or name not in wanted.names:
                self._unite(name, array, field_values(rows, name))
            else:
                self.kinds[name] = array.type
            arrays.append(array)
        arrays.append(pa.array(self._numbers(rows), pa.int32()))
        return pa.RecordBatch.from_arrays(arrays, names=[*names, LACKS])

    def _declared(self, name: Any, rows: Sequence[Mapping[str, Any]], start: int) -> pa.DataType | None:
        """Return the type of a table's column; raise UserError if the table lacks the column."""
        schema = self.rules.schema
        if schema is not None and name in schema.names:
            return schema.field(name).type
        if name in META_COLUMNS:
            return pa.string()
        is_new = isinstance(name, str) and name != LACKS and (schema is None or self.rules.adds_columns)
        if is_new and is_encodable(name):
            return None
        row = next(number for number, mapping in enumerate(rows) if name in mapping)
        reason = (
            f"the table has no column {name!r}.{nearest(str(name), schema.names)}"
            if schema is not None
            else ("a column needs a name that is a string")
        )
        raise UserError(
            f"row {start + row}, column {name!r}, value {one_line(repr(rows[row][name]), 80)}: {reason} "
            f"Correct the name, or add new columns by options={{'{NEW_COLUMN}': 'add'}}",
            row=start + row,
            column=str(name),
        )

    def _numbers(self, rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Return the number of each row's column set."""
        sets = list(map(tuple, rows))
        for names in sets:
            self.patterns[names] = self.patterns.get(names, 0) + 1
        for names in self.patterns:
            self.numbers.setdefault(names, len(self.numbers))
        return np.fromiter(map(self.numbers.__getitem__, sets), np.int32, len(sets))

    def _unite(self, name: str, array: pa.Array, values: Sequence[Any]) -> None:
        """Widen the type of a column that the rows declare."""
        before = self.kinds.get(name, pa.null())
        both = united_kinds(before, array.type)
        if both is None:
            row = next(number for number, value in enumerate(values) if value is not None)
            raise self._mistake(
                ValueMistake(
                    self.spool.rows + row,
                    name,
                    f"{one_line(repr(values[row]), 80)} needs the type {array.type}, but the rows before need {before};"
                    " give all values of a column one type",
                )
            )
        self.kinds[name] = both

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        array = batch.column(field.name)
        try:
            return fitted(array, field.type)
        except pa.ArrowException as error:
            raise UserError(
                f"column {field.name!r}: values of type {array.type} do not fit {field.type} exactly: {error}",
                column=field.name,
            ) from error

    def _mistake(self, mistake: ValueMistake) -> UserError:
        return UserError(
            f"row {mistake.row}, column {mistake.path!r}: {mistake.reason}. Nothing was written",
            row=mistake.row,
            column=mistake.path,
        )


def _mappings(rows: list[Any], start: int) -> list[Any]:
    """Return rows as mappings."""
    kinds = set(map(type, rows))
    if all(issubclass(kind, Mapping) for kind in kinds):
        return rows
    if len(kinds) == 1 and (to_mapping := _as_mapping(rows[0])) is not None:
        return list(map(to_mapping, rows))
    for number, row in enumerate(rows):
        to_mapping = _as_mapping(row)
        if to_mapping is not None:
            rows[number] = to_mapping(row)
        elif not isinstance(row, Mapping):
            raise _bad_row(start + number, row)
    return rows


def _of_pandas(frame: Any, load_rules: Callable[[], InputRules]) -> SourceBatch:
    """Return a frame of pandas; missing values (None, NaN, NaT, NA) become null."""
    if not hasattr(frame, "columns") or not hasattr(frame, "iloc"):
        raise refused(frame)
    names = list(frame.columns)
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None:
        raise UserError(f"column {wrong!r} of the frame has a name that is not a string; rename it", argument="rows")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"the frame has several columns {twice!r}; rename one", argument="rows", column=twice)
    index = [name for name in frame.index.names if name is not None]
    if index:
        raise UserError(
            f"the frame has the index {', '.join(map(str, index))}, which is not a column; pass frame.reset_index(), "
            "or frame.reset_index(drop=True) to leave it out",
            argument="rows",
        )
    conversion = _Conversion(load_rules())
    spool = conversion.spool
    try:
        for start in range(0, max(len(frame), 1), _FRAME_ROWS):
            spool.add(_frame_part(frame.iloc[start : start + _FRAME_ROWS], names, conversion))
        # All rows of a frame have all columns.
        conversion.patterns = {tuple(names): spool.rows}
        return conversion.result()
    except BaseException:
        spool.close()
        raise


def _frame_part(part: Any, names: list[str], conversion: _Conversion) -> pa.RecordBatch:
    start, rules, arrays = conversion.spool.rows, conversion.rules, []
    for name in names:
        series = _dense(part[name])
        is_declared = rules.schema is not None and name in rules.schema.names
        kind = rules.schema.field(name).type if is_declared and rules.schema is not None else None
        if series.dtype == object:
            values = series.where(series.notna(), None).tolist()
            try:
                array = converted(values, kind)
            except ValueMistake as mistake:
                rows = range(start, start + len(values))
                raise conversion._mistake(mistake.inside(name, rows)) from None
        else:
            array = _typed(_arrow(series, name), kind, name, start)
            values = series
        if kind is None:
            conversion._unite(name, array, values)
        else:
            conversion.kinds[name] = array.type
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _dense(series: Any) -> Any:
    """Return a column of pandas with all its values: Arrow has no sparse columns."""
    return series.sparse.to_dense() if str(series.dtype).startswith("Sparse") else series


def _arrow(series: Any, name: str) -> Any:
    try:
        return pa.array(series, from_pandas=True)
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise UserError(
            f"column {name!r} of the frame has the type {series.dtype}, which Arrow cannot store ({error}); "
            "convert it, for example with astype(float) or astype(str)",
            argument="rows",
            column=name,
        ) from error


def _typed(array: Any, kind: pa.DataType | None, name: str, start: int) -> pa.Array:
    """Return a typed column of a frame in the type of the table, if there is an exact conversion."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kind is None and pa.types.is_timestamp(array.type):
        kind = pa.timestamp("us", array.type.tz)  # the type of times in a table
    if kind is None or pa.types.is_nested(array.type):
        return array
    if len(array) == array.null_count:
        return pa.nulls(len(array), kind)
    try:
        return exact_cast(array, kind)
    except pa.ArrowException as error:
        row = _first_wrong(array, kind)
        raise UserError(
            f"row {start + row}, column {name!r}: {array[row].as_py()!r} of type {array.type} does not fit the type "
            f"{kind} exactly ({str(error).splitlines()[0]}). Nothing was written",
            row=start + row,
            column=name,
        ) from error


def _first_wrong(array: pa.Array, kind: pa.DataType) -> int:
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            exact_cast(array.slice(low, middle - low), kind)
            low = middle
        except pa.ArrowException:
            high = middle
    return low
