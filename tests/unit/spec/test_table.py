"""Table specs: the parsed values, and the error messages of invalid specs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.errors import UserError
from lakehouse.model.index_type import INDEX_TYPES
from lakehouse.model.keys import KeyGeneratorType, TimestampFormat
from lakehouse.spec.sources.file_source import FileSourceSpec
from lakehouse.spec.sources.ingest import IngestSpec
from lakehouse.spec.table.table_spec import (
    IndexSpec,
    PartitionField,
    TableSpec,
    asset_uri,
    load_spec,
    parse_spec,
)
from tests.support.file_ingest import file_ingest

MINIMAL = "table: orders\nlocation: lake/orders\nrecord_key: id\n"


def parse(text: str) -> TableSpec:
    """Parse a spec with the source `orders.yaml`."""
    return parse_spec(text, source="orders.yaml")


def test_spec_with_only_the_required_names_has_defaults() -> None:
    spec = parse(MINIMAL)
    assert spec == TableSpec(table="orders", location="lake/orders", record_key=("id",))
    assert (spec.type, spec.source, spec.ingest) == ("COPY_ON_WRITE", "orders.yaml", None)


@pytest.mark.parametrize("missing", ["table", "location"])
def test_spec_without_a_required_name_is_refused(missing: str) -> None:
    text = "".join(line for line in MINIMAL.splitlines(keepends=True) if not line.startswith(missing))
    with pytest.raises(UserError, match=f"orders.yaml:1: the table spec needs '{missing}'"):
        parse(text)
    with pytest.raises(UserError, match=f"needs '{missing}'"):
        parse(text + f"{missing}:\n")


KEYLESS = "table: orders\nlocation: lake/orders\n"
FILES = "ingest: {source: files, path: in, format: json"


def test_spec_without_record_key_declares_a_table_with_generated_keys() -> None:
    spec = parse(KEYLESS)
    assert spec == TableSpec(table="orders", location="lake/orders")
    assert (spec.record_key, spec.to_mapping()) == ((), {"table": "orders", "location": "lake/orders"})
    assert parse(f"{KEYLESS}{FILES}, operation: insert}}\n").record_key == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("record_key:", "the table spec needs 'record_key'"),
        (FILES + "}", "needs 'record_key': a column, or a list of columns. Without it each row gets a generated key"),
        (FILES + ", operation: insert, deduplicate: {within: 1h, time: at}}", "deduplicate: needs 'keys'"),
    ],
)
def test_spec_without_record_key_is_refused_where_rows_are_found_by_key(line: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(f"{KEYLESS}{line}\n")


def test_every_part_of_a_spec_is_parsed() -> None:
    spec = parse(
        """
table: sales.orders
location: s3://lake/sales/orders
type: merge_on_read
record_key: [order_id, line]
ordering: updated_at
partition_by: [region, "created:TIMESTAMP"]
key_generator: custom
merge_mode: event_time_ordering
index: {type: bucket, buckets: 8, hash_field: [order_id], partitions: {"region=eu": 32, "^region=u": 16}}
schema: {order_id: string, line: int, updated_at: timestamp, region: string, created: bigint}
ingest:
  source: files
  path: s3://landing/{start:%Y/%m/%d}/
  format: CSV
  options: {header: false, nullValue: NA}
  operation: insert
  max_bad_records: 1_000
  replace: true
  schedule: "@hourly"
  start_date: 2026-01-01
  catchup: true
  retries: 0
  retry_delay: 5m
  timeout: 2h
  pool: big
  spark: {spark.executor.memory: 4g}
services: {compaction: {max_delta_commits: 5}, clean: {}}
options: {hoodie.parquet.max.file.size: 1000000}
"""
    )
    assert (spec.type, spec.record_key, spec.ordering) == ("MERGE_ON_READ", ("order_id", "line"), ("updated_at",))
    assert spec.partition_by == (PartitionField(name="region"), PartitionField(name="created", type="TIMESTAMP"))
    assert (spec.key_generator, spec.merge_mode) == (KeyGeneratorType.CUSTOM, "EVENT_TIME_ORDERING")
    assert spec.index == IndexSpec(
        type="BUCKET",
        buckets=8,
        hash_fields=("order_id",),
        partitions=(("region=eu", 32), ("^region=u", 16)),
    )
    assert list(spec.schema) == ["order_id", "line", "updated_at", "region", "created"]
    assert spec.ingest == file_ingest(
        path="s3://landing/{start:%Y/%m/%d}/",
        format="csv",
        options={"header": "false", "nullValue": "NA"},
        operation="insert",
        max_bad_records=1000,
        replace=True,
        schedule="@hourly",
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=True,
        retries=0,
        retry_delay_s=300,
        timeout_s=7200,
        pool="big",
        spark={"spark.executor.memory": "4g"},
    )
    assert spec.services == {"compaction": {"max_delta_commits": 5}, "clean": {}}
    assert spec.write_options() == {
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": "8",
        "hoodie.bucket.index.hash.field": "order_id",
        "hoodie.bucket.index.partition.expressions": "region=eu,32;^region=u,16",
        "hoodie.parquet.max.file.size": "1000000",
    }


def test_event_time_of_an_ingestion_becomes_options_of_all_writes() -> None:
    spec = parse(f"{MINIMAL}ingest: {{path: landing, event_time: updated_at, lateness: 10m}}\n")
    assert spec.ingest == file_ingest(path="landing", event_time="updated_at", lateness_s=600)
    expected = {
        "hoodie.payload.event.time.field": "updated_at",
        "lakehouse.event_time.lateness": "600s",
        "lakehouse.event_time.source": spec.table,
    }
    assert spec.write_options() == expected
    assert parse(yaml.safe_dump(spec.to_mapping())) == spec
    named = parse(f"{MINIMAL}ingest: {{path: landing, event_time: updated_at, source_name: shop}}\n")
    assert named.write_options()["lakehouse.event_time.source"] == "shop"
    by_option = parse(f"{MINIMAL}ingest: {{path: landing}}\noptions: {{hoodie.payload.event.time.field: at}}\n")
    assert by_option.write_options()["lakehouse.event_time.source"] == spec.table
    assert parse(f"{MINIMAL}ingest: {{path: landing}}\n").write_options() == {}


def test_merge_settings_are_parsed_and_round_trip() -> None:
    own = parse(f"{MINIMAL}merge_mode: custom\nmerger: mergers.retention:merge\n")
    assert (own.merge_mode, own.merger) == ("CUSTOM", "mergers.retention:merge")
    assert parse(f"{MINIMAL}merger: own:merge\n").merge_mode is None
    groups = parse(f"{MINIMAL}column_groups: {{paid_at: [amount, currency], rider_at: rider}}\n")
    assert groups.column_groups == {"paid_at": ("amount", "currency"), "rider_at": ("rider",)}
    postgres = parse(
        f"{MINIMAL}ordering: _event_lsn\npartial_update: fill_unavailable\nunavailable_value: '?'\n"
        "delete_field: _change_operation_type\ndelete_marker: d\n"
    )
    assert (postgres.partial_update, postgres.unavailable_value) == ("FILL_UNAVAILABLE", "?")
    assert (postgres.delete_field, postgres.delete_marker) == ("_change_operation_type", "d")
    for spec in (own, postgres):
        assert parse(yaml.safe_dump(spec.to_mapping())) == spec


def test_columns_can_be_a_comma_separated_text_and_keep_their_spelling() -> None:
    spec = parse("table: t\nlocation: l\nrecord_key: a, no\nordering: [1.50]\n")
    assert (spec.record_key, spec.ordering) == (("a", "no"), ("1.50",))


def test_timestamp_partition_accepts_input_and_output_formats() -> None:
    detail = "{type: TIMESTAMP, timestamp_type: DATE_STRING, input_formats: ['yyyy-MM-dd, HH'], output_format: yyyy/MM}"
    expected = PartitionField(
        name="at",
        type="TIMESTAMP",
        timestamp=TimestampFormat(type="DATE_STRING", input_formats=("yyyy-MM-dd, HH",), output_format="yyyy/MM"),
    )
    assert parse(f"{MINIMAL}partition_by: {{at: {detail}}}").partition_by == (expected,)
    mixed = parse(f"{MINIMAL}partition_by:\n  - region\n  - at: {detail}\n").partition_by
    assert mixed == (PartitionField(name="region"), expected)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("recrod_key: id", "orders.yaml:4: unknown name 'recrod_key' in the table spec. Did you mean 'record_key'?"),
        ("ingest: {path: p, formt: csv}", "4: unknown name 'formt' in ingest. Did you mean 'format'?"),
        (
            "ingest: {path: p, format: cvs}",
            "debezium_avro. Did you mean 'csv'?",
        ),
        ("ingest:\n  format: csv", "5: ingest needs 'path'"),
        ("ingest:\n  path: p\n  retries: -1", "6: retries: '-1' is not a whole number"),
        ("ingest: {path: p, retry_delay: soon}", "retry_delay: 'soon' is not a duration"),
        ("ingest: {path: p, timeout: 0}", "timeout: must be longer than 0"),
        ("ingest: {path: p, lateness: 5m}", "the column whose delay it limits"),
        ("ingest: {path: p, replace: maybe}", "replace: 'maybe' is not one of true, false"),
        ("ingest: {path: p, catchup: true}", "catchup needs 'schedule' and 'start_date'"),
        ("ingest: {path: p, start_date: 2026-31-01}", "start_date: '2026-31-01' is not a date"),
        ("ingest: {path: 'a/{strat:%Y}'}", "unknown placeholder '{strat:%Y}'. Did you mean 'start'?"),
        ("ingest: {path: 'a/{start}'}", "'{start}' needs a date format"),
        ("ingest: files", "4: ingest: expected a mapping"),
        ("services: {compactoin: {}}", "unknown name 'compactoin' in services. Did you mean 'compaction'?"),
        ("services: {compaction: 3}", "services.compaction: 3 is not a mapping of settings"),
        ("services: {compaction: {max_delta_comits: 3}}", "Did you mean 'max_delta_commits'?"),
        ("services: {compaction: {deadline: soon}}", "services.compaction.deadline='soon' is not a duration"),
        ("options: {hodie.index.type: BUCKET}", "unknown option 'hodie.index.type'. Did you mean 'hoodie.index.type'?"),
        ("options: {hoodie.parquet.block.size: big}", "option hoodie.parquet.block.size='big': expected int"),
        ("type: COPY", "type: 'COPY' is not one of COPY_ON_WRITE, MERGE_ON_READ"),
        ("merge_mode: EVENT_TIME_ORDERING", "needs 'ordering'"),
        ("merge_mode: CUSTOM", "orders.yaml:4: merge_mode: CUSTOM needs 'merger'"),
        (
            "merger: a.b:c\nmerge_mode: commit_time_ordering",
            "4: merger: merge_mode COMMIT_TIME_ORDERING never calls a merger",
        ),
        ("merger: a.b.c", "merger: 'a.b.c' is not of the form package.module:function"),
        ("merger: 'a.b:c()'", "is not of the form"),
        ("column_groups: {at: v}\nordering: w", "5: ordering: 'column_groups' decides"),
        ("column_groups: {at: [v, v]}", "4: column_groups: column 'v' is named twice"),
        ("column_groups: {at: []}", "the group of 'at' has no columns"),
        ("merger: a:b\npartial_update: IGNORE_DEFAULTS", "5: partial_update: a merger fills gaps itself"),
        ("partial_update: IGNORE_DEFAULT", "Did you mean 'IGNORE_DEFAULTS'?"),
        ("unavailable_value: x", "unavailable_value: needs 'partial_update: FILL_UNAVAILABLE'"),
        ("delete_field: op", "orders.yaml:4: delete_field and delete_marker belong together"),
        ("delete_marker: d", "belong together"),
        ("schema: {id: int}\ndelete_field: op\ndelete_marker: d", "column 'op' is not in 'schema'"),
        ("ordering: [a, b, a]", "ordering: column 'a' is listed twice"),
        ("index: bucket", "the bucket index needs 'buckets'"),
        ("index: {type: simple, buckets: 3}", "for 'type: bucket' only"),
        ("index: {type: simple, partitions: {a: 3}}", "for 'type: bucket' only"),
        ("index: {type: bucket, partitions: {a: 3}}", "the bucket index needs 'buckets'"),
        ("index: {type: bucket, buckets: 2, partitions: {a: 3}}", "'partitions' needs 'partition_by'"),
        ("index: {type: bucket, buckets: 2, partitions: {a: 0}}", "pattern 'a' requests 0 buckets"),
        ("index: {type: bucket, buckets: 2, partitions: {a: x}}", "'x' is not a whole number"),
        ("index: {type: bucket, buckets: 2, partitions: {'a(': 3}}", "'a(' is not a regular expression"),
        ("index: {type: bucket, buckets: 2, partitions: {'a,b': 3}}", "pattern 'a,b' cannot be used"),
        ("index: simple\noptions: {hoodie.index.type: SIMPLE}", "the index is declared twice"),
        ("partition_by: [a, a]", "column 'a' is listed twice"),
        ("partition_by: ['a:DATE']", "'a:DATE' is neither a column nor 'column:TIMESTAMP'"),
        ("partition_by: {a: {output_format: yyyy}}", "'output_format' is for 'type: TIMESTAMP' only"),
        ("partition_by: {a: {type: TIMESTAMP, outputformat: yyyy}}", "Did you mean 'output_format'?"),
        ("schema: {id: }", "column 'id' needs a Spark SQL type"),
        ("schema: {key: string}", "column 'id' is not in 'schema'"),
        ("ordering: []", "needs 'ordering'"),
        ("ordering: {a: b}", "4: ordering: expected a string, found a mapping"),
        ("location: twice", "4: 'location' is on line 2 already"),
        ("ordering: [", "not valid YAML"),
    ],
)
def test_invalid_spec_is_refused_with_file_line_and_hint(lines: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        parse(f"{MINIMAL}{lines}\n")
    assert raised.value.message.startswith("orders.yaml:")
    assert message in raised.value.message
    assert raised.value.facts["file"] == "orders.yaml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "orders.yaml:1: the file is empty"),
        ("- a\n", "expected a mapping of names to values"),
        ("a: b\n---\nc: d\n", "not valid YAML"),
        ("table: a\tb\x00", "not valid YAML"),
        (MINIMAL.replace("orders\nloc", "../orders\nloc"), "'../orders' is not a name"),
        ("? [a]\n: b\n", "expected a string, found a list"),
    ],
)
def test_file_that_is_not_a_spec_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(UserError, match=r"orders\.yaml:") as raised:
        parse(text)
    assert message in raised.value.message


def test_partition_column_can_be_computed_by_select_without_being_in_the_schema() -> None:
    ingest = "ingest: {path: p, select: ['*', 'to_date(at) as day']}"
    spec = parse(f"{MINIMAL}schema: {{id: int, at: timestamp}}\npartition_by: day\n{ingest}\n")
    assert spec.ingest is not None
    assert spec.ingest.select == ("*", "to_date(at) as day")


def test_only_placeholders_of_dates_make_a_path_read_by_interval() -> None:
    paths = {"a/{start:%Y}.csv": True, "a/*.csv": False, "${start}/x": False, "{a,b}/x": False}
    specs = {path: parse(f"{MINIMAL}ingest: {{path: '{path}'}}").ingest for path in paths}
    assert {path: spec.is_by_interval for path, spec in specs.items() if spec is not None} == paths


def test_spec_is_loaded_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text(MINIMAL, encoding="utf-8")
    assert load_spec(path).source == str(path)
    with pytest.raises(UserError, match=r"cannot read the table spec .*missing.yaml: No such file"):
        load_spec(tmp_path / "missing.yaml")
    path.write_bytes(b"table: \xff\n")
    with pytest.raises(UserError, match="cannot read the table spec"):
        load_spec(path)


def test_asset_uri_contains_the_table_name_and_not_the_location() -> None:
    assert asset_uri(parse(MINIMAL).table) == "lakehouse://orders"


def test_specs_of_the_repository_are_valid() -> None:
    paths = sorted((Path(__file__).resolve().parents[3] / "dags").rglob("*.yaml"))
    assert [load_spec(path).table for path in paths] == [path.stem for path in paths]
    assert len(paths) >= 3


names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
columns = st.lists(names, min_size=1, max_size=3, unique=True).map(tuple)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
settings = st.dictionaries(texts, texts, max_size=3)
timestamps = st.builds(TimestampFormat, type=names, input_formats=st.lists(texts, max_size=2).map(tuple))
partitions = st.builds(PartitionField, name=names, type=st.sampled_from(("SIMPLE", "TIMESTAMP"))) | st.builds(
    PartitionField, name=names, type=st.just("TIMESTAMP"), timestamp=timestamps
)
ingests = st.builds(
    IngestSpec,
    source=st.builds(FileSourceSpec, path=names, format=st.sampled_from(("json", "csv", "parquet")), options=settings),
    select=st.lists(texts, max_size=2).map(tuple),
    max_bad_records=st.integers(0, 10**9),
    replace=st.booleans(),
    schedule=st.none() | names,
    start_date=st.none() | st.datetimes(timezones=st.just(UTC)),
    retries=st.integers(0, 9),
    retry_delay_s=st.integers(0, 10**6),
    spark=settings,
)


def test_bucket_rules_keep_their_order_in_a_round_trip() -> None:
    spec = parse(MINIMAL + "partition_by: p\nindex: {type: bucket, buckets: 2, partitions: {z: 9, a: 3}}\n")
    assert spec.index == IndexSpec(type="BUCKET", buckets=2, partitions=(("z", 9), ("a", 3)))
    assert parse(yaml.safe_dump(spec.to_mapping(), sort_keys=False)) == spec


def indexes() -> st.SearchStrategy[IndexSpec]:
    """Return a strategy for index specs of all types."""
    plain = st.builds(
        IndexSpec, type=st.sampled_from([name for name, index in INDEX_TYPES.items() if not index.hashes_keys])
    )
    return plain | st.builds(IndexSpec, type=st.just("BUCKET"), buckets=st.integers(1, 99), hash_fields=columns)


scheduling = {"enabled": st.booleans(), "priority": st.integers(0, 9), "deadline": st.sampled_from(("90m", "2d"))}
compaction = {"max_delta_commits": st.integers(1, 99), "strategy": st.sampled_from(("UnBounded", "BoundedIO"))}
services = st.fixed_dictionaries(
    {},
    optional={
        "compaction": st.fixed_dictionaries({}, optional={**scheduling, **compaction}),
        "publish": st.fixed_dictionaries(
            {"database": st.just("sales")}, optional={"schedule": st.just("@hourly"), "success_file": st.booleans()}
        ),
    },
)

specs = st.builds(
    TableSpec,
    table=names,
    location=texts.map(lambda text: f"s3://{text.strip()}"),
    record_key=columns,
    type=st.sampled_from(("COPY_ON_WRITE", "MERGE_ON_READ")),
    ordering=columns,
    partition_by=st.lists(partitions, max_size=3, unique_by=lambda column: column.name).map(tuple),
    key_generator=st.none() | st.sampled_from(KeyGeneratorType),
    merge_mode=st.none() | st.sampled_from(("COMMIT_TIME_ORDERING", "EVENT_TIME_ORDERING")),
    partial_update=st.none() | st.just("IGNORE_DEFAULTS"),
    index=st.none() | indexes(),
    ingest=st.none() | ingests,
    services=services,
    options=st.fixed_dictionaries(
        {},
        optional={
            "hoodie.parquet.max.file.size": st.integers(0, 1 << 40).map(str),
            "hoodie.parquet.compression.codec": st.sampled_from(["zstd", "snappy"]),
            "hoodie.write.table.version": st.just("8"),
        },
    ),
)


@given(spec=specs)
def test_spec_round_trips_through_yaml(spec: TableSpec) -> None:
    text: Any = yaml.safe_dump(spec.to_mapping(), sort_keys=False, allow_unicode=True)
    assert parse(text) == spec
