"""Scan plans: the files that a query reads, and the condition that is applied to rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakehouse.core.planning.predicate import parse_predicate
from lakehouse.core.planning.scan import ScanPlan, plan_scan
from lakehouse.errors import UserError
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.model.keys import KeyConfig, KeyGeneratorType, TimestampFormat
from lakehouse.model.predicate import And, In

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("year", pa.int32()), ("at", pa.int64())])
SIMPLE = KeyConfig(
    generator=KeyGeneratorType.SIMPLE,
    record_key_fields=("id",),
    partition_fields=("p",),
    partition_types=("SIMPLE",),
)


def slices(*partitions: str) -> list[FileSlice]:
    """Return one slice per partition, and a slice of log files only, which copy-on-write reads skip."""
    found = [FileSlice(partition="", file_id="log", base_instant="1")]
    for number, partition in enumerate(partitions):
        base = BaseFile(partition=partition, file_id=f"g{number}", write_token="0-0-0", instant="1")
        found.append(FileSlice(partition=partition, file_id=base.file_id, base_instant="1", base=base))
    return found


def plan(found: list[FileSlice], where: str | None = None, keys: KeyConfig = SIMPLE, **kwargs) -> ScanPlan:
    """Return a scan plan; by default commits have no column ranges."""
    condition = None if where is None else parse_predicate(where)
    return plan_scan(found, SCHEMA, keys, **{"columns": None, "where": condition, "ranges": {}, **kwargs})


def read(planned: ScanPlan) -> list[str]:
    """Return the partitions of the files to read."""
    return [file.partition for file in planned.files]


def test_scan_without_condition_reads_all_base_files() -> None:
    planned = plan(slices("a", "b"))
    assert (read(planned), planned.skipped, planned.residual) == (["a", "b"], 0, None)
    assert planned.schema.names[:5] == [
        "_hoodie_commit_time",
        "_hoodie_commit_seqno",
        "_hoodie_record_key",
        "_hoodie_partition_path",
        "_hoodie_file_name",
    ]


def test_condition_on_the_partition_column_skips_partitions() -> None:
    planned = plan(slices("a", "b", "__HIVE_DEFAULT_PARTITION__"), "p = 'b'")
    assert (read(planned), planned.skipped) == (["b", "__HIVE_DEFAULT_PARTITION__"], 1)
    assert planned.residual == parse_predicate("p = 'b'")
    assert read(plan(slices("a", "b"), "_hoodie_partition_path LIKE 'a%'")) == ["a"]


def test_partition_values_of_paths_are_decoded_and_typed() -> None:
    hive = KeyConfig(
        generator=KeyGeneratorType.COMPLEX,
        record_key_fields=("id",),
        partition_fields=("year", "p"),
        partition_types=("SIMPLE", "SIMPLE"),
        hive_style=True,
        url_encode=True,
    )
    found = slices("year=2025/p=x%2Fy", "year=2026/p=x%2Fy", "year=900/p=z")
    assert read(plan(found, "year > 1000 AND p = 'x/y'", hive)) == found_partitions(found)[:2]
    assert read(plan(found, "year = 900", hive)) == ["year=900/p=z"]


def found_partitions(found: list[FileSlice]) -> list[str]:
    """Return the partitions of the slices with base files."""
    return [file_slice.partition for file_slice in found if file_slice.base]


def test_formatted_partition_times_do_not_skip_partitions() -> None:
    timed = KeyConfig(
        generator=KeyGeneratorType.TIMESTAMP,
        record_key_fields=("id",),
        partition_fields=("at",),
        partition_types=("TIMESTAMP",),
        timestamp=TimestampFormat(),
    )
    assert read(plan(slices("1970-01-01", "2026-01-01"), "at = 0", timed)) == ["1970-01-01", "2026-01-01"]


def test_partition_path_with_extra_levels_is_not_skipped() -> None:
    plain = KeyConfig(
        generator=KeyGeneratorType.COMPLEX,
        record_key_fields=("id",),
        partition_fields=("p", "year"),
        partition_types=("SIMPLE", "SIMPLE"),
    )
    assert read(plan(slices("x/y/2026"), "p = 'x/y'", plain)) == ["x/y/2026"]


def test_column_ranges_skip_files_and_override_partition_values() -> None:
    found = slices("a", "b")
    paths = [file_slice.base.path for file_slice in found if file_slice.base]
    ranges = {paths[0]: {"year": (2000, 2010, 0), "p": ("a", "c", 0)}, paths[1]: {"year": (2010, 2020, 0)}}
    assert read(plan(found, "year > 2010", ranges=ranges)) == ["b"]
    # With a global index, a file in partition a may contain a row whose column value is c.
    assert read(plan(found, "p = 'c'", ranges=ranges)) == ["a"]


def test_selected_columns_keep_their_order_and_must_exist() -> None:
    assert plan(slices("a"), columns=["year", "_hoodie_record_key"]).schema.names == ["year", "_hoodie_record_key"]
    with pytest.raises(UserError, match="'yaer' is not in the table"):
        plan(slices("a"), columns=["yaer"])


def test_incremental_scan_filters_rows_by_commit_time() -> None:
    only = In("_hoodie_commit_time", ("1", "2"))
    assert plan(slices("a"), commit_times=frozenset({"2", "1"})).residual == only
    both = plan(slices("a"), "year = 1", commit_times=frozenset({"2", "1"})).residual
    assert both == And((only, parse_predicate("year = 1")))
