"""Compare the metadata table of a table with its files, as the product reads it (MDT-4, MDT-5).

files             the data files of completed actions on storage
column_stats      no rows of other files; those of base files have the bounds and counts of their columns
partition_stats   bounds that contain all rows that a reader sees
record_index      the place of each record that a reader sees, and no other key
bloom_filters     a filter for each base file, which contains its keys
expr_index_*      the bounds or a filter of the results of a function in each base file, and bounds that contain the
                  results of all rows that a reader sees in a partition
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.format.log.blocks import scan_blocks
from lakehouse.core.format.metadata.keys import bloom_keys
from lakehouse.core.format.metadata.statistics import typed_statistics
from lakehouse.core.format.parquet.bloom_filter import BloomFilter
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.read.known_definitions import known_definitions
from lakehouse.core.metadata.read.table import MetadataTable
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.metadata import metadata_of
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.rows.index_functions import index_function
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Action
from lakehouse.model.partition_kind import PartitionKind, partition_kind

KEY, PATH, FILE_NAME = "_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name"
Place = tuple[str, str]


def check_metadata(table: Table) -> None:
    """Assert that each index partition of a table equals what its files contain; a table without one is skipped."""
    loaded = table.refresh()
    if "files" not in loaded.config.raw.get("hoodie.table.metadata.partitions", "").split(","):
        return
    metadata = metadata_of(loaded)
    assert metadata is not None, f"the metadata table is not used: {loaded.metadata.cache.opened}"
    listed = check_files(loaded, metadata)
    newest = {slice_.base.name for slice_ in load_slices(loaded) if slice_.base}
    for partition in metadata.usable:
        assert metadata.records(partition) is not None
    if "column_stats" in metadata.usable:
        check_column_statistics(loaded.env.storage, metadata, listed, newest)
    expressions = [name for name in metadata.usable if partition_kind(name) is PartitionKind.EXPRESSION_INDEX]
    if expressions or {"partition_stats", "record_index"} & set(metadata.usable):
        rows = table.scan().to_arrow()
        for name in expressions:
            check_expression_index(loaded.env.storage, metadata, name, listed, newest)
            check_results_of_partitions(metadata, name, rows)
        if "partition_stats" in metadata.usable:
            check_partition_statistics(metadata, rows)
        if "record_index" in metadata.usable:
            check_locations(metadata, rows)
    if "bloom_filters" in metadata.usable:
        check_filters(loaded.env.storage, metadata, listed, newest)


def check_files(loaded: LoadedTable, metadata: MetadataTable) -> set[Place]:
    """Assert that the listing is that of storage; return it as pairs of partition and file name."""
    pending = {i.requested: i.action for i in loaded.timeline if not i.is_completed}
    stored = {(f.partition, f.name): (f.size_bytes, f.instant) for f in list_data_files(loaded, change_logs=True)}
    committed = {place: size for place, (size, instant) in stored.items() if instant not in pending}
    # While a resize of buckets is pending, writes create logs whose names have the time of the resize.
    dual = {place: size for place, (size, instant) in stored.items() if pending.get(instant) is Action.CLUSTERING}
    rows = metadata.listing().to_pylist()
    listed = {(row["partition"], row["name"]): row["size_bytes"] for row in rows}
    assert len(listed) == len(rows), "a file is listed twice"
    if loaded.config.layout.names_logs_by_slice:
        # The name of a log file has the time of its slice, so its blocks show which writes it has.
        unfinished = _pending_logs(loaded, pending.keys())
        committed = {
            place: size
            for place, (size, instant) in stored.items()
            if ("/".join(place).lstrip("/") not in unfinished if ".log." in place[1] else instant not in pending)
        }
    missing = sorted(committed.keys() - listed.keys())
    extra = sorted(listed.keys() - committed.keys() - dual.keys())
    assert (missing, extra) == ([], []), f"not listed: {missing}; listed, but not committed: {extra}"
    wrong = {place: (size, listed[place]) for place, size in committed.items() if listed[place] != size}
    assert wrong == {}, f"sizes on storage and in the metadata table: {wrong}"
    assert {partition for partition, _ in listed} <= set(metadata.partition_paths().to_pylist())
    return set(listed)


def _pending_logs(loaded: LoadedTable, pending: Collection[str]) -> set[str]:
    """Return the paths of the log files whose blocks are all from pending writes."""
    found = set()
    for file in list_data_files(loaded, change_logs=True) if pending else ():
        if ".log." in file.name:
            with loaded.env.storage.open_input(file.path) as source:
                found |= {file.path} if all(block.instant in pending for block in scan_blocks(source)) else set()
    return found


def check_column_statistics(storage: Storage, metadata: MetadataTable, listed: set[Place], newest: set[str]) -> None:
    """Assert that each newest base file has the statistics of each indexed column, and no other file has wrong ones."""
    columns = known_definitions(metadata)["column_stats"].source_fields
    found = metadata.records("column_stats")
    described = {(row["name"], row["column"]) for row in found.select(["name", "column"]).to_pylist()}
    names = {name for _, name in listed if ".cdc" not in name}
    known = {name for name, _ in described}
    without, unknown = sorted(newest - known), sorted(known - names)
    assert (without, unknown) == ([], []), f"no statistics: {without}; statistics of files that are gone: {unknown}"
    assert {column for _, column in described} <= set(columns)
    for partition, name in sorted(listed):
        if not name.endswith(".parquet") or name not in known:
            continue
        rows = pq.read_table(storage.open_input(f"{partition}/{name}".lstrip("/")))
        own = found.filter(pc.equal(found.column("name"), name))
        for column in columns:
            if (name, column) in described:
                _check_column(own.filter(pc.equal(own.column("column"), column)), rows, column)
            else:
                # A column that the table got later; readers take a missing row as all null.
                # In version 6, Hudi 0.15 writes all meta columns, and Hudi 1.2 three of them.
                assert column in META_COLUMNS or column not in rows.column_names, (
                    f"{name} has no statistics of {column}"
                )


def _check_column(statistics: pa.Table, rows: pa.Table, column: str) -> None:
    values = rows.column(column) if column in rows.column_names else pa.nulls(rows.num_rows, pa.int64())
    (row,) = typed_statistics(statistics, values.type).to_pylist()
    assert (row["value_count"], row["null_count"]) == (rows.num_rows, values.null_count), (column, row)
    bounds = pc.min_max(values).as_py()
    assert (row["min"], row["max"]) == (bounds["min"], bounds["max"]), (column, row, bounds)


def check_partition_statistics(metadata: MetadataTable, rows: pa.Table) -> None:
    """Assert that the bounds of each partition contain the values of its rows."""
    columns = [name for name in metadata.definitions["column_stats"].source_fields if name in rows.column_names]
    found = metadata.partition_ranges(columns)
    for partition in pc.unique(rows.column(PATH)).to_pylist():
        part = rows.filter(pc.equal(rows.column(PATH), partition))
        for column in columns:
            values = part.column(column)
            held = found.filter(pc.and_(pc.equal(found["name"], partition), pc.equal(found["column"], column)))
            bounds = pc.min_max(values).as_py()
            if held.num_rows == 0 and bounds["min"] is None:
                continue  # a column that the table got after the last write to the partition
            (row,) = typed_statistics(held, values.type).to_pylist()
            if bounds["min"] is None:
                assert row["null_count"], (partition, column, row)
            elif row["known"]:
                assert row["min"] <= bounds["min"] and bounds["max"] <= row["max"], (partition, column, row, bounds)


def check_locations(metadata: MetadataTable, rows: pa.Table) -> None:
    """Assert that the record index has each visible record with its file group, and nothing else."""
    expected = _places(rows.column(KEY), rows.column(PATH), rows.column(FILE_NAME))
    found = metadata.records("record_index")
    index = _places(found.column("key"), found.column("partition"), found.column("file_id"))
    if not metadata.is_partitioned_record_index:
        assert len({key for key, _ in index}) == len(index), "a key is in the index twice"
    missing, extra = sorted(expected.keys() - index.keys()), sorted(index.keys() - expected.keys())
    assert (missing, extra) == ([], []), f"not in the index: {missing}; in the index, but not in the table: {extra}"
    wrong = {place: (group, index[place]) for place, group in expected.items() if not _same(group, index[place])}
    assert wrong == {}, f"file groups of records and in the index: {wrong}"
    if expected:
        keys = pa.array(sorted({key for key, _ in expected}))
        assert metadata.locations(keys).num_rows == len(index)


def _places(*columns: Any) -> dict[Place, str]:
    return {(key, path): group for key, path, group in zip(*(c.to_pylist() for c in columns), strict=True)}


def _same(file_name: str, file_id: str) -> bool:
    """Return whether the file name in a row belongs to a file group; rows of logs have the file id alone."""
    return file_name == file_id or file_name.startswith(f"{file_id}_") or file_name.startswith(f".{file_id}_")


def check_filters(storage: Storage, metadata: MetadataTable, listed: set[Place], newest: set[str]) -> None:
    """Assert that each newest base file has a filter, that filters contain the keys, and that no other file has one."""
    bases = sorted(place for place in listed if place[1].endswith(".parquet"))
    if not bases:
        assert metadata.records("bloom_filters").num_rows == 0
        return
    files = pa.table([[place[0] for place in bases], [place[1] for place in bases]], names=["partition", "name"])
    found = metadata.bloom_filters(files).to_pylist()
    assert newest <= {row["name"] for row in found}, "files without filter"
    assert metadata.records("bloom_filters").num_rows == len(found), "filters of files that are gone"
    for row in found:
        path = f"{row['partition']}/{row['name']}".lstrip("/")
        keys = pq.read_table(storage.open_input(path), columns=[KEY]).column(0)
        assert BloomFilter.from_text(row["filter"].decode(), row["type"]).might_contain(keys).all()


def check_expression_index(
    storage: Storage, metadata: MetadataTable, name: str, listed: set[Place], newest: set[str]
) -> None:
    """Assert that each newest base file with rows has the results of the function, and no other file has wrong ones."""
    definition = metadata.definitions[name]
    found = metadata.records(name)
    is_bloom = definition.index_type == "bloom_filters"
    if is_bloom:
        bases = sorted(place for place in listed if place[1].endswith(".parquet"))
        hashed = bloom_keys(pa.array([p for p, _ in bases], pa.string()), pa.array([n for _, n in bases], pa.string()))
        files = dict(zip(hashed.to_pylist(), (file_name for _, file_name in bases), strict=True))
        assert set(found.column("key").to_pylist()) <= files.keys(), "filters of files that are gone"
        described = {files[row["key"]]: row for row in found.to_pylist()}
    else:
        of_files = found.filter(pc.equal(found.column("type"), 3))
        described = {row["name"]: row for row in of_files.to_pylist()}
        assert described.keys() <= {file_name for _, file_name in listed}, "results of files that are gone"
    for partition, file_name in sorted(listed):
        if not file_name.endswith(".parquet"):
            continue
        rows = pq.read_table(storage.open_input(f"{partition}/{file_name}".lstrip("/")))
        if file_name not in described:
            assert file_name not in newest or not rows.num_rows, f"{file_name} has no record in {name}"
            continue
        results = _results(definition, rows)
        row = described[file_name]
        if is_bloom:
            texts = pc.unique(results.drop_null()).cast(pa.string())
            stored = BloomFilter.from_text(row["filter"].decode(), row["type"])
            assert stored.might_contain(pa.chunked_array([texts])).all(), file_name
            continue
        (typed,) = typed_statistics(of_files.filter(pc.equal(of_files["name"], file_name)), results.type).to_pylist()
        bounds = pc.min_max(results).as_py()
        counts = (len(results) - results.null_count, results.null_count)
        assert (row["value_count"], row["null_count"]) == counts, (file_name, row)
        assert (typed["min"], typed["max"]) == (bounds["min"], bounds["max"]), (file_name, row, bounds)


def check_results_of_partitions(metadata: MetadataTable, name: str, rows: pa.Table) -> None:
    """Assert that each partition has a row, whose bounds contain the results of the rows that a reader sees."""
    definition, found = metadata.definitions[name], metadata.records(name)
    if definition.index_type == "bloom_filters":
        return
    found = found.filter(pc.equal(found.column("type"), 6))
    for partition in pc.unique(rows.column(PATH)).to_pylist():
        held = found.filter(pc.equal(found.column("name"), partition))
        assert held.num_rows == 1, f"partition {partition!r} has {held.num_rows} rows in {name}"
        results = _results(definition, rows.filter(pc.equal(rows.column(PATH), partition)))
        bounds, (row,) = pc.min_max(results).as_py(), typed_statistics(held, results.type).to_pylist()
        assert row["null_count"] >= (results.null_count > 0), (partition, row)
        if bounds["min"] is not None:
            assert row["min"] <= bounds["min"] and bounds["max"] <= row["max"], (partition, row, bounds)


def _results(definition: Definition, rows: pa.Table) -> pa.ChunkedArray:
    (column,) = definition.source_fields
    kind = {"length": pa.string(), "upper": pa.string()}.get(definition.function, pa.int64())
    values = rows.column(column) if column in rows.column_names else pa.chunked_array([pa.nulls(rows.num_rows, kind)])
    found = index_function(definition.function, definition.options).of_rows(values)
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])
