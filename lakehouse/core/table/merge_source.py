"""The source of a MERGE: one table in memory, or local files that each fit into their part of the memory budget.

A larger source is divided by the hash of the values that the condition `on` compares, so that all rows of the source
that match one row of the table are in one part. Parts are merged one after another, in one commit:

    source --hash--> file 0 ... file n;  files that fit together are one part
    part 0 + scan of the table --> changed rows;  part 1 + scan of the table --> changed rows;  ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.comparisons import comparable_pair
from lakehouse.core.expressions.evaluate import evaluate
from lakehouse.core.files.log.slice_log_merge import HashSplit
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.index.hash.bucket import bucket_ids
from lakehouse.core.planning.changed_rows import Statement
from lakehouse.core.planning.statement import SOURCE, TARGET, Clause, Join, Names, Verb
from lakehouse.core.rows.absent_columns import LACKS
from lakehouse.core.storage.os_errors import scratch_directory
from lakehouse.errors import UserError

#: The number of files for a stream, whose size is unknown. Small files are merged together.
_MOST_WAYS = 256
_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSource:
    """The rows of a source.

    Attributes:
        schema: The columns.
        rows: The number of rows.
        table: All rows, if they fit into memory.
        division: How the rows were divided otherwise.
        repeats: Whether the rows can be used again after a conflict: they do not depend on what was read before.
    """

    schema: pa.Schema
    rows: int
    table: pa.Table | None = None
    division: Division | None = None
    repeats: bool = True

    def parts(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield the parts with their numbers; only one is in memory. A source without rows has one part."""
        if self.division is None:
            yield 0, self.table
            return
        for number, paths in enumerate(self.division.groups):
            yield number, pa.concat_tables([_read(path) for path in paths]).select(self.schema.names)

    def rows_of_part(self, number: int, target: pa.Table) -> pa.Table:
        """Return the rows of the table that can only match rows of this part."""
        if self.division is None:
            return target
        ways = self.division.ways(target, is_source=False)
        return target.filter(pa.array(self.division.group_of_way[ways] == number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The files of a divided source.

    Attributes:
        names: The columns of both sides.
        join: The condition whose compared values are hashed.
        groups: The files of each part.
        group_of_way: The part of each hash value.
    """

    names: Names
    join: Join
    groups: tuple[tuple[Path, ...], ...] = ()
    group_of_way: np.ndarray

    def ways(self, rows: pa.Table, *, is_source: bool) -> np.ndarray:
        """Return a hash value per row of a side, below the number of files."""
        texts = compared_texts(self.names, self.join, rows, is_source=is_source)
        return ways_of(texts, len(self.group_of_way))


NO_SOURCE = MergeSource(schema=pa.schema([]), rows=0, table=pa.table({}))


def data_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a source without meta columns."""
    return pa.schema([column for column in schema if column.name not in (*META_COLUMNS, LACKS)])


def plain_rows(rows: Any) -> Any:
    """Return Arrow rows without views of strings and without runs, for which Arrow lacks kernels such as `take`.

    A table stays a table, and a stream stays a stream. Polars exports strings as views.
    """
    schema = pa.schema([column.with_type(_plain(column.type)) for column in rows.schema], rows.schema.metadata)
    if schema == rows.schema:
        return rows
    if isinstance(rows, pa.RecordBatchReader):
        return pa.RecordBatchReader.from_batches(schema, (_plain_batch(batch, schema) for batch in rows))
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    return pa.Table.from_batches([_plain_batch(batch, schema) for batch in batches], schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        plain = _plain(kind.value_type)
        return kind if pa.types.is_dictionary(kind) and plain == kind.value_type else plain
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        value = kind.value_field.with_type(_plain(kind.value_type))
        return pa.list_(value) if pa.types.is_list(kind) else pa.large_list(value)
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def _plain_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [_plain_array(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain_array(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind:
        return values
    if pa.types.is_dictionary(values.type):
        return _plain_array(values.dictionary, kind).take(values.indices)
    return pc.run_end_decode(values).cast(kind) if pa.types.is_run_end_encoded(values.type) else values.cast(kind)


def merge_source(rows: Any, names: Names, statement: Statement, limit_bytes: int, stack: ExitStack) -> MergeSource:
    """Read a source: as a table if it fits into `limit_bytes`, otherwise into local files.

    Args:
        rows: A table, a record batch, or a stream of batches, which is read once.
        names: The columns of both sides.
        statement: The statement whose source it is.
        limit_bytes: The maximum size of a part in memory.
        stack: Deletes the files at the end.

    Raises:
        UserError: A source above the limit cannot be divided: the condition compares no columns, a clause inserts a key
            that the condition does not compare, or too many rows have the same compared values.
    """
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    schema, repeats = data_schema(rows.schema), isinstance(rows, pa.Table)
    if repeats and rows.nbytes <= limit_bytes:
        return MergeSource(schema=schema, rows=rows.num_rows, table=rows.select(schema.names))
    batches: Iterator[pa.RecordBatch] = iter(rows.to_batches(_BATCH_ROWS) if repeats else rows)
    collected, size = [], 0
    for batch in batches:
        collected.append(batch.select(schema.names))
        size += collected[-1].nbytes
        if size > limit_bytes:
            break
    else:
        table = pa.Table.from_batches(collected, schema)
        return MergeSource(schema=schema, rows=table.num_rows, table=table, repeats=repeats)
    ways = min(max(4 * rows.nbytes // limit_bytes, 4), _MOST_WAYS) if repeats else _MOST_WAYS
    division = Division(names=names, join=_dividing(statement, limit_bytes), group_of_way=np.zeros(ways, np.int64))
    source = divided_source(_chain(collected, batches), schema, division, limit_bytes, stack)
    return replace(source, repeats=repeats)


# parameters: the rows with their columns, and how and where they are divided
def divided_source(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, division: Division, limit_bytes: int, stack: ExitStack
) -> MergeSource:
    """Write rows into local files by the hash of their compared values.

    Args:
        batches: The rows.
        schema: Their columns.
        division: The division, without files.
        limit_bytes: The maximum size of a part in memory.
        stack: Deletes the files at the end.

    Raises:
        UserError: Too many rows have the same compared values.
    """
    directory = Path(stack.enter_context(scratch_directory("lakehouse-merge-")))
    divided = HashSplit(directory, "source", len(division.group_of_way))
    count = 0
    for batch in batches:
        table = pa.Table.from_batches([batch.select(schema.names)])
        count += table.num_rows
        texts = compared_texts(division.names, division.join, table, is_source=True)
        divided.add(table, texts)
    division = _grouped(division, divided.finish(), limit_bytes)
    return MergeSource(schema=schema, rows=count, division=division)


def compared_texts(names: Names, join: Join, rows: pa.Table, *, is_source: bool) -> pa.Array:
    """Return a string by row of a side that is equal for rows that match.

    Args:
        names: The columns of both sides.
        join: The condition.
        rows: Rows of a side.
        is_source: Whether it is the source.
    """
    prefix, empty = SOURCE if is_source else TARGET, names.schema().empty_table()
    bound, texts = rows.rename_columns([prefix + name for name in rows.column_names]), []
    for target, source in join.pairs:
        sides = (empty, bound) if is_source else (bound, empty)
        texts.append(comparable_pair(evaluate(target, sides[0]), evaluate(source, sides[1]))[int(is_source)])
    return joined_texts(texts, rows.num_rows)


def joined_texts(columns: Sequence[pa.Array | pa.ChunkedArray], size: int) -> pa.Array:
    """Return a string for each of `size` rows that is equal for rows with equal values; binary values are left out."""
    texts = [pc.fill_null(values.cast(pa.string()), "") for values in columns if not _is_binary(values.type)]
    joined = pc.binary_join_element_wise(pa.repeat(pa.scalar(""), size), *texts, "\0")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def ways_of(texts: pa.Array, count: int) -> np.ndarray:
    """Return the hash of each string, from 0 to `count` - 1."""
    return bucket_ids(texts, key_fields=("",), hash_fields=("",), buckets=count)


def _dividing(statement: Statement, limit_bytes: int) -> Join:
    """Return the condition by whose columns the source is divided; raise UserError if that is not possible."""
    join = statement.join
    way_out = "Raise lakehouse.write.memory.budget, or merge the source in parts"
    problem = f"merge: the source has more than {limit_bytes:,} bytes, a quarter of the memory budget, and "
    if join is None or not join.pairs:
        raise UserError(f"{problem}`on` has no equality of columns by which it can be divided. {way_out}")
    if not all(_inserts_in_its_part(clause, statement, join) for clause in statement.clauses):
        raise UserError(
            f"{problem}a clause inserts rows, but `on` compares other columns than the record key, so a key could be "
            f"inserted twice. Compare {', '.join(statement.keys)} in `on`. {way_out}"
        )
    return join


def _inserts_in_its_part(clause: Clause, statement: Statement, join: Join) -> bool:
    """Return whether rows that insert the same key are in one part."""
    if clause.verb is not Verb.INSERT or statement.generates_keys:
        return True
    compared, values = join.equal_columns(), dict(clause.values)
    is_key = set(compared) <= {*statement.keys, *statement.partitions} and len(compared) == len(join.pairs)
    return is_key and all(values.get(name) == source for name, source in compared.items())


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _grouped(division: Division, files: Sequence[Path | None], limit_bytes: int) -> Division:
    """Return the division with the files in groups that fit into memory."""
    groups: list[list[Path]] = [[]]
    group_of_way, total = np.zeros(len(files), np.int64), 0
    for way, path in enumerate(files):
        size = 0 if path is None else path.stat().st_size
        if size > limit_bytes:
            raise _same_values(size, limit_bytes)
        if total + size > limit_bytes:
            groups.append([])
            total = 0
        if path is not None:
            groups[-1].append(path)
        group_of_way[way] = len(groups) - 1
        total += size
    return replace(division, groups=tuple(map(tuple, groups)), group_of_way=group_of_way)


def _same_values(size: int, limit_bytes: int) -> UserError:
    return UserError(
        f"merge: {size:,} bytes of the source have too few distinct values in the columns that `on` compares to be "
        f"divided into parts of {limit_bytes:,} bytes, a quarter of the memory budget. Raise "
        "lakehouse.write.memory.budget, or remove duplicates from the source",
        size=size,
    )


def _read(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_stream(file).read_all()


def _chain(collected: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while collected:
        yield collected.pop(0)
    yield from rest


def repeated_rows(table: pa.Table, identity: Sequence[str]) -> dict[str, Any] | None:
    """Return the key that most rows have, with the number of rows as `count_all`; None if keys are unique."""
    counts = table.group_by(list(identity)).aggregate([([], "count_all")])
    if counts.num_rows == table.num_rows:
        return None
    first = int(np.argmax(counts.column("count_all").to_numpy()))
    row: dict[str, Any] = counts.slice(first, 1).to_pylist()[0]
    return row
