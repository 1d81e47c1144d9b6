"""The index partitions `expr_index_<name>`: results of `function(column)` for the rows of each file (MDT-4.8).

    column_stats    a row for each base file and log file, and for each partition     (see `expression_statistics`)
    bloom_filters   a filter with the distinct results for each base file

Tasks read the column in the new files and evaluate the function before the table lock is taken. A file without a
record is never skipped. Such files are empty files, log files in an index with bloom filters, and files with values
whose result depends on the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.files.base.expression_values import Expression, IndexedFile, distinct_results
from lakehouse.core.format.avro.schema import avro_to_arrow
from lakehouse.core.format.metadata.bounds import has_statistics
from lakehouse.core.format.metadata.groups import metadata_file_id
from lakehouse.core.format.metadata.groups import shards as key_shards
from lakehouse.core.format.metadata.keys import bloom_keys
from lakehouse.core.format.metadata.records import BLOOM_ROWS, encode_blooms
from lakehouse.core.format.metadata.statistics import encode_statistics
from lakehouse.core.format.parquet.bloom_filter import BloomFilter
from lakehouse.core.metadata.partitions.expression_statistics import (
    built_rows,
    deleted_keys,
    measured_files,
    rows_of_commit,
)
from lakehouse.core.metadata.partitions.protocol import ENTRIES, Definition, MetadataCommit, TableFiles, Update
from lakehouse.core.metadata.staged import LogStage, StagedLog, StagedRecordsError, StagedUpdate, Staging
from lakehouse.core.rows.index_functions import IndexFunction, index_function
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import WriteStat
from lakehouse.model.indexing import BLOOM_FILTERS, COLUMN_STATS
from lakehouse.model.partition_kind import PartitionKind
from lakehouse.spec.options.policies import Policies

#: The number of file groups that Hudi gives such an index.
_GROUPS = 2
_PARQUET, _CHANGES = ".parquet", ".cdc"
_THREADS = 4
#: The false-positive rate of filters, as in Hudi, and their minimum number of entries.
_FPP, _MIN_ENTRIES, _CAPACITY_FACTOR = 1e-9, 1_000, 1.25

#: Strings that no function returns. For functions that depend on the time zone, filters contain these strings if the
#: zone is UTC. There are several strings, because a filter of Hudi may contain one of them as a false positive.
_UTC_MARKS = pa.array([f"\0UTC{number}" for number in range(16)])


class ExpressionIndexPartition:
    """The results of a function on one column."""

    kind = PartitionKind.EXPRESSION_INDEX

    def refusal(self, name: str, config: TableConfig, definition: Definition | None) -> str | None:
        """Return why the index cannot be maintained: an unknown function, kind or option, or a type of the column."""
        if definition is None:
            return "the table has no definition of it"
        if definition.index_type not in (COLUMN_STATS, BLOOM_FILTERS) or len(definition.source_fields) != 1:
            return f"its definition has the type {definition.index_type!r} and {len(definition.source_fields)} columns"
        if definition.index_type == COLUMN_STATS and config.is_merge_on_read and config.merge_rule.merger is not None:
            return "the merger of the table may return values that no file has"
        try:
            function = function_of(definition)
        except UserError as error:
            return error.message
        # The type of a column that does not exist yet is checked when its values are read.
        schema = avro_to_arrow(config.create_schema) if config.create_schema else pa.schema([])
        (column,) = definition.source_fields
        if column not in schema.names:
            return None
        return type_refusal(function, definition.index_type, schema.field(column).type, definition.version)

    def wanted(self, policies: Policies, config: TableConfig) -> Sequence[str]:
        """Return no partitions: an expression index needs the columns of the table, so the index service builds it."""
        return ()

    def definition(self, name: str, table: TableFiles) -> Definition | None:
        """Return the definition that the user declared."""
        return table.definitions.get(name)

    def group_ids(self, name: str, table: TableFiles) -> Sequence[str]:
        """Return the file groups, as many as Hudi creates."""
        return tuple(metadata_file_id(name, number) for number in range(_GROUPS))

    def build(self, name: str, table: TableFiles) -> pa.Table:
        """Return the records of the newest files."""
        tables = [entries for _, entries in self.build_groups(name, table, self.group_ids(name, table))]
        return pa.concat_tables([ENTRIES.empty_table(), *(entries.cast(ENTRIES) for entries in tables)])

    def build_groups(self, name: str, table: TableFiles, groups: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
        """Yield file groups with their records; the filters of one group are in memory."""
        if table.schema is None:
            return
        definition = table.definitions[name]
        expression = _expression(table.env.storage, definition, table.schema)
        files = _listed_files(table.newest)
        engine = table.engine or LocalEngine(_THREADS)
        if definition.index_type == COLUMN_STATS:
            statistics = measured_files(expression, files, engine.run)
            entries = encode_statistics(built_rows(definition, statistics)).combine_chunks()
            numbers = key_shards(entries.column("key").combine_chunks(), len(groups))
            for number in np.unique(numbers).tolist():
                yield groups[number], entries.filter(pa.array(numbers == number))
            return
        for number, of_group in _by_group(files, len(groups)):
            parts = engine.run(partial(_filter_of_file, expression), of_group)
            entries = _encoded_filters(of_group, parts, table.instant)
            if entries.num_rows:
                yield groups[number], entries

    def update(self, name: str, commit: MetadataCommit) -> Update:
        """Return the records of the new files, which tasks staged, and the deletes of removed files.

        Raises StagedRecordsError if the records are missing, or were made for another definition.
        """
        definition, staged = commit.definitions[name], commit.change.staged.get(name)
        written = _written(commit.change.stats)
        is_current = staged is not None and (staged.groups, staged.source) == (commit.groups[name], _source(definition))
        if written and not is_current:
            raise StagedRecordsError(
                f"{commit.env.storage.root}: the index {name} was created or changed while {commit.instant} was "
                "written; run the operation again",
                instant=commit.instant,
            )
        if definition.index_type == BLOOM_FILTERS:
            removed = commit.change.removed
            gone = removed.filter(pc.ends_with(removed.column("name"), _PARQUET))
            keys = bloom_keys(gone.column("partition"), gone.column("name")).cast(pa.binary())
            return Update(deletes=keys, staged=() if staged is None else staged.logs)
        statistics = None if staged is None else staged.statistics
        rows, deletes = rows_of_commit(name, commit, written, statistics)
        gone = deleted_keys(definition.source_fields[0], commit.change)
        return Update(entries=encode_statistics(rows), deletes=pa.concat_arrays([gone, deletes]))

    def shards(self, name: str, keys: pa.Array, groups: Sequence[str], definition: Definition | None) -> pa.Array:
        """Return the group of each key."""
        return pa.array(key_shards(keys, len(groups)))


def function_of(definition: Definition) -> IndexFunction:
    """Return the function of an index; raise UserError if it or one of its options is unknown."""
    return index_function(definition.function, definition.options)


def type_refusal(function: IndexFunction, index_type: str, kind: pa.DataType, version: str) -> str | None:
    """Return why an index of this type cannot store results of the function for a column type, or None if it can."""
    why = function.refusal(kind)
    if why is not None:
        return why
    result = function.result_type(kind)
    if index_type == BLOOM_FILTERS and not has_text(result):
        return f"bloom filters take texts, whole numbers and booleans, and {function.name} gives {result}"
    if index_type == COLUMN_STATS and not has_statistics(result, version):
        return f"values of the type {result} have no statistics in an index of version {version}"
    return None


def says_utc(bloom: BloomFilter) -> bool:
    """Return whether this package evaluated the function of a filter, in UTC; see `evaluated_in_utc`."""
    return bool(bloom.might_contain(pa.chunked_array([_UTC_MARKS])).all())


def has_text(kind: pa.DataType) -> bool:
    """Return whether all engines convert values of a type to the same string, so that filters can contain it."""
    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def stage_expression(name: str, definition: Definition, staging: Staging) -> StagedUpdate:
    """Measure the results of the function in the new files, or encode their filters as log files."""
    expression = _expression(staging.storage, definition, staging.read.table)
    files = _written(staging.commit.stats)
    if definition.index_type == COLUMN_STATS:
        statistics = measured_files(expression, files, staging.run)
        return StagedUpdate(groups=staging.groups, statistics=statistics, source=_source(definition))
    encoding = _Encoding(expression=expression, logs=staging.logs(name))
    tasks = list(_by_group(files, len(staging.groups)))
    logs = staging.run(partial(_encode_group, encoding), tasks) if tasks else []
    staged = tuple(log for log in logs if log is not None)
    return StagedUpdate(groups=staging.groups, logs=staged, source=_source(definition))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoding:
    """The settings of the tasks that encode filters."""

    expression: Expression
    logs: LogStage


def _encode_group(encoding: _Encoding, attempt: Attempt, task: tuple[int, list[IndexedFile]]) -> StagedLog | None:
    number, files = task
    parts = [_filter_of_file(encoding.expression, attempt, file) for file in files]
    return encoding.logs.write(attempt, number, _encoded_filters(files, parts, encoding.logs.instant))


def _filter_of_file(expression: Expression, _attempt: Attempt, file: IndexedFile) -> tuple[str, bytes] | None:
    """Task: return the type of a file's filter and the serialized filter, or None if a result depends on the engine."""
    results = distinct_results(expression, file)
    if results is None:
        return None
    entries = max(_MIN_ENTRIES, int(_CAPACITY_FACTOR * len(results)))
    texts = [results.cast(pa.string())]
    if expression.function.depends_on_zone(expression.field.type):
        texts.append(_UTC_MARKS)
    bloom = BloomFilter.build(pa.chunked_array(texts), entries=entries, fpp=_FPP)
    return bloom.type_code, bloom.to_text().encode()


def _encoded_filters(
    files: Sequence[IndexedFile], filters: Sequence[tuple[str, bytes] | None], instant: str
) -> pa.Table:
    encoded = [(file, *made) for file, made in zip(files, filters, strict=True) if made is not None]
    keys = bloom_keys(
        pa.array([file.partition for file, _, _ in encoded], pa.string()),
        pa.array([file.name for file, _, _ in encoded], pa.string()),
    )
    columns = [
        keys,
        pa.array([kind for _, kind, _ in encoded], pa.string()),
        pa.array([instant] * len(encoded), pa.string()),
        pa.array([text for _, _, text in encoded], pa.binary()),
    ]
    return encode_blooms(pa.table(columns, schema=BLOOM_ROWS))


def _by_group(files: Iterable[IndexedFile], groups: int) -> Iterator[tuple[int, list[IndexedFile]]]:
    """Yield the number of each index file group with the base files whose filters it contains."""
    bases = [file for file in files if not file.is_log]
    keys = bloom_keys(
        pa.array([file.partition for file in bases], pa.string()), pa.array([file.name for file in bases], pa.string())
    )
    numbers = key_shards(keys, groups)
    for number in np.unique(numbers).tolist():
        yield number, [bases[position] for position in np.flatnonzero(numbers == number).tolist()]


def _expression(storage: Storage, definition: Definition, schema: pa.Schema) -> Expression:
    """Return the expression of an index; raise UnsupportedError if it cannot be evaluated on the column."""
    (column,) = definition.source_fields
    function = function_of(definition)
    why = "it is not in the table"
    if column in schema.names:
        field = schema.field(column)
        refused = type_refusal(function, definition.index_type, field.type, definition.version)
        if refused is None:
            return Expression(storage=storage, function=function, field=field)
        why = refused
    raise UnsupportedError(
        f"{storage.root}: the index on {function.name}({column}) cannot be maintained: {why}. Drop it with `lakehouse "
        "index drop`",
        column=column,
    )


def _source(definition: Definition) -> str:
    options = sorted(definition.options.items())
    return repr((definition.index_type, definition.function, tuple(definition.source_fields), options))


def _written(stats: Iterable[WriteStat]) -> list[IndexedFile]:
    """Return the files in write statistics."""
    return [
        IndexedFile(partition=stat.partition, name=stat.path.rpartition("/")[2], size_bytes=stat.size_bytes)
        for stat in stats
        if stat.path
    ]


def _listed_files(files: pa.Table) -> list[IndexedFile]:
    columns = (files.column(name).to_pylist() for name in ("partition", "name", "size_bytes"))
    rows = zip(*columns, strict=True)
    return [
        IndexedFile(partition=partition, name=name, size_bytes=size)
        for partition, name, size in rows
        if not name.endswith(_CHANGES)
    ]
