"""The form of synced tables under the options of Hudi's sync, with values that Hudi 0.15 and 1.2 stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse import Table
from lakehouse.core.timeline.service_log import read_last_run, record_run
from lakehouse.errors import RetryableError, SettingError, UserError
from lakehouse.model.keys import KeyConfig, KeyGeneratorType
from lakehouse.platform.metastore.memory import MemoryMetastore
from lakehouse.platform.metastore.protocol import Column, Format, HivePartition, HiveTable
from lakehouse.platform.publish.sync import COMPARED, STAMP, plan, sync
from lakehouse.platform.publish.sync_partitions import named_partitions
from lakehouse.platform.publish.sync_plan import LAST_COMMIT, LAST_COMPLETION
from lakehouse.spec.options.sync import SyncPolicy

SYNC = "hoodie.datasource.hive_sync."
EXTRACTOR, FIELDS = f"{SYNC}partition_extractor_class", f"{SYNC}partition_fields"
HIVE = "org.apache.hudi.hive."
URL_ENCODE = "hoodie.datasource.write.partitionpath.urlencode"
READ_OPTIMIZED = "org.apache.hudi.hadoop.HoodieParquetInputFormat"
REAL_TIME = "org.apache.hudi.hadoop.realtime.HoodieParquetRealtimeInputFormat"
OUTPUT = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat"
SERDE = "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"
META = ("commit_time", "commit_seqno", "record_key", "partition_path", "file_name")
META_COLUMNS = tuple(Column(name=f"_hoodie_{name}", type="string") for name in META)


def field(name: str, kind: str = "string") -> str:
    return f'{{"name":"{name}","type":"{kind}","nullable":true,"metadata":{{}}}}'


def struct(*fields: str) -> str:
    return f'{{"type":"struct","fields":[{",".join(fields)}]}}'


#: Partition values that no path escapes.
_VALUES = st.text("ab0-. ü", min_size=1).filter(lambda value: value.strip(".") == value)
META_FIELDS = tuple(field(f"_hoodie_{name}") for name in META)


def rows(*regions: str, **more: Any) -> pa.Table:
    """Return one row per region."""
    columns = {"id": [f"k{n}" for n, _ in enumerate(regions)], "region": list(regions), "fare": [1] * len(regions)}
    return pa.table({**columns, **{name: [value] * len(regions) for name, value in more.items()}})


def make(place: Path, *regions: str, hive_style: bool = True, **declared: Any) -> Table:
    """Return a table with one row per region, and `region` as its partition column."""
    options = {"hoodie.datasource.write.hive_style_partitioning": str(hive_style).lower()}
    options |= declared.pop("options", {})
    table = Table.create(
        str(place / "trips"), name="trips", record_key=["id"], partition_by=["region"], options=options, **declared
    )
    table.insert(rows(*regions))
    return table


def with_options(table: Table, **options: str) -> Table:
    """Return the table with options of its sync, named without their prefix."""
    return Table.open(table.location, options={f"{SYNC}{name}": value for name, value in options.items()})


def stored(metastore: MemoryMetastore, name: str = "trips") -> HiveTable:
    table = metastore.table("default", name)
    assert table is not None
    return table


def partitions(metastore: MemoryMetastore, name: str = "trips") -> dict[str, HivePartition]:
    names = metastore.partition_names("default", name)
    return dict(zip(names, metastore.partitions("default", name, names), strict=True))


@pytest.fixture
def metastore() -> MemoryMetastore:
    return MemoryMetastore()


@pytest.mark.parametrize(
    ("extractor", "columns", "path", "values"),
    [
        ("MultiPartKeysValueExtractor", "y,m,d", "2025/03/01", ("2025", "03", "01")),
        ("MultiPartKeysValueExtractor", "y,m", "y=2025/m=03", ("2025", "03")),
        ("MultiPartKeysValueExtractor", "p,q", "eu/a%3Db", ("eu", "a%3Db")),
        ("MultiPartKeysValueExtractor", "y,m", "2025/03/01", None),
        ("MultiPartKeysValueExtractor", "y,m", "y=2025/m=0=3", None),
        ("SinglePartPartitionValueExtractor", "day", "2025/03/01", ("2025-03-01",)),
        ("SinglePartPartitionValueExtractor", "p", "a/b", ("a-b",)),
        ("HiveStylePartitionValueExtractor", "region", "region=eu", ("eu",)),
        ("HiveStylePartitionValueExtractor", "area", "region=eu", ("eu",)),
        ("HiveStylePartitionValueExtractor", "region", "region=a=b", None),
        ("HiveStylePartitionValueExtractor", "region", "eu", None),
        ("SlashEncodedDayPartitionValueExtractor", "day", "2025/3/1", ("2025-03-01",)),
        ("SlashEncodedDayPartitionValueExtractor", "day", "y=2025/m=03/d=01", ("2025-03-01",)),
        ("SlashEncodedDayPartitionValueExtractor", "day", "2025/03", None),
        ("SlashEncodedDayPartitionValueExtractor", "day", "2025/02/30", None),
        ("SlashEncodedDayPartitionValueExtractor", "day", "__HIVE_DEFAULT_PARTITION__", None),
        ("SlashEncodedHourPartitionValueExtractor", "hour", "2025/03/01/07", ("2025-03-01-07",)),
        ("SlashEncodedHourPartitionValueExtractor", "hour", "2025/03/01", None),
    ],
)
def test_extractor_returns_the_values_of_hudis_class(
    extractor: str, columns: str, path: str, values: tuple[str, ...] | None
) -> None:
    policy = SyncPolicy(partition_extractor=f"{HIVE}{extractor}", partition_fields=columns)
    named = named_partitions(
        [path], KeyConfig(generator=KeyGeneratorType.SIMPLE, record_key_fields=("id",), partition_fields=("p",)), policy
    )
    assert [there for there, _ in named.by_name.values()] == ([] if values is None else [values])
    assert list(named.skipped) == ([path] if values is None else [])


@given(paths=st.lists(st.tuples(_VALUES, _VALUES), unique=True), hive_style=st.booleans())
def test_default_values_equal_the_ones_of_the_extractor_for_plain_values(
    paths: list[tuple[str, str]], hive_style: bool
) -> None:
    keys = KeyConfig(
        generator=KeyGeneratorType.COMPLEX,
        record_key_fields=("id",),
        partition_fields=("p", "q"),
        hive_style=hive_style,
    )
    written = [f"p={p}/q={q}" if hive_style else f"{p}/{q}" for p, q in paths]
    multiple = SyncPolicy(partition_extractor=f"{HIVE}MultiPartKeysValueExtractor")
    named = named_partitions(written, keys, SyncPolicy())
    assert named == named_partitions(written, keys, multiple) and not named.skipped
    assert {there: path for there, path in named.by_name.values()} == dict(zip(paths, written, strict=True))


def test_non_partitioned_extractor_declares_no_partitions_and_warns_once() -> None:
    policy = SyncPolicy(partition_extractor=f"{HIVE}NonPartitionedExtractor")
    keys = KeyConfig(generator=KeyGeneratorType.SIMPLE, record_key_fields=("id",), partition_fields=("region",))
    named = named_partitions(["eu", "us"], keys, policy)
    assert named.by_name == {} and list(named.skipped) == ["eu"] and "no rows" in named.skipped["eu"]


def test_other_partition_columns_are_strings_behind_all_data_columns(
    tmp_path: Path, metastore: MemoryMetastore
) -> None:
    table = make(tmp_path, "2025/03/01", hive_style=False)
    multiple = with_options(
        table, partition_fields="yy,mm,dd", partition_extractor_class=f"{HIVE}MultiPartKeysValueExtractor"
    )
    sync(multiple, metastore)
    declared = stored(metastore)
    assert [(c.name, c.type) for c in declared.partition_columns] == [(c, "string") for c in ("yy", "mm", "dd")]
    assert [c.name for c in declared.columns[5:]] == ["id", "region", "fare"]
    assert declared.parameters["spark.sql.sources.schema.part.0"] == struct(
        *META_FIELDS,
        field("id"),
        field("region"),
        field("fare", "long"),
        *(field(name).replace("true", "false") for name in ("yy", "mm", "dd")),
    )
    assert {key: value for key, value in declared.parameters.items() if "artCol" in key} == {
        "spark.sql.sources.schema.numPartCols": "3",
        "spark.sql.sources.schema.partCol.0": "yy",
        "spark.sql.sources.schema.partCol.1": "mm",
        "spark.sql.sources.schema.partCol.2": "dd",
    }
    (partition,) = partitions(metastore).items()
    assert partition[0] == "yy=2025/mm=03/dd=01" and partition[1].location == f"{table.location}/2025/03/01"
    assert plan(multiple, metastore).is_empty


def test_table_that_hudi_declared_without_spark_properties_is_continued(
    tmp_path: Path, metastore: MemoryMetastore
) -> None:
    table = make(tmp_path, "eu")
    newest = table.timeline.writes().by_completion()[-1]
    format = Format(
        input_format=READ_OPTIMIZED, output_format=OUTPUT, serde=SERDE, serde_properties={"serialization.format": "1"}
    )
    columns = (*META_COLUMNS, Column(name="id", type="string"), Column(name="fare", type="bigint"))
    hudis = HiveTable(
        database="default",
        name="trips",
        columns=columns,
        partition_columns=(Column(name="region", type="string"),),
        location=f"file:{table.location}",
        format=replace(format, serde_properties={"serialization.format": "1", "path": f"file:{table.location}"}),
        parameters={LAST_COMMIT: newest.requested, LAST_COMPLETION: newest.completion, "hudi_writer_version": "1.2.0"},
    )
    metastore.create_table(hudis)
    eu = HivePartition(values=("eu",), location=f"{table.location}/region=eu", format=format, columns=columns)
    metastore.add_partitions("default", "trips", [eu])
    before = stored(metastore), partitions(metastore)
    same = with_options(table, sync_as_datasource="false")
    assert plan(same, metastore).is_empty
    sync(same, metastore)
    assert (stored(metastore), partitions(metastore)) == before
    # New partitions inherit the properties of the table, as in Hudi's sync.
    table.insert(rows("us"))
    sync(same, metastore)
    assert partitions(metastore)["region=us"].format == stored(metastore).format
    assert partitions(metastore)["region=eu"].format == format and plan(same, metastore).is_empty
    table.delete_partitions(["region=us"])
    newest = table.timeline.writes().by_completion()[-1]
    # Another program makes the same table from nothing.
    fresh = MemoryMetastore()
    sync(same, fresh)
    ours = stored(fresh)
    assert (ours.format.serde_properties, ours.parameters) == (
        {"serialization.format": "1", "path": table.location},
        {"EXTERNAL": "TRUE", LAST_COMMIT: newest.requested, LAST_COMPLETION: newest.completion},
    )
    assert partitions(fresh)["region=eu"].format == format


def test_escaped_value_that_hudi_declared_keeps_its_name(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = make(tmp_path, "a/b", "ok", options={URL_ENCODE: "true"})
    escaped = with_options(table, partition_extractor_class=f"{HIVE}HiveStylePartitionValueExtractor")
    sync(escaped, metastore)
    assert [there.values for there in partitions(metastore).values()] == [("a%2Fb",), ("ok",)]
    assert plan(table, metastore).is_empty
    table.insert(rows("c/d"))
    sync(table, metastore)
    assert {there.values for there in partitions(metastore).values()} == {("a%2Fb",), ("ok",), ("c/d",)}
    decoded = MemoryMetastore()
    sync(Table.open(table.location, options={"hoodie.meta.sync.decode_partition": "true"}), decoded)
    assert {there.values for there in partitions(decoded).values()} == {("a/b",), ("ok",), ("c/d",)}


def test_properties_of_the_options_are_stored_and_cannot_replace_hudis(
    tmp_path: Path, metastore: MemoryMetastore
) -> None:
    table = with_options(make(tmp_path, "eu"), table_properties="a=1\n\n b = x y=z ", serde_properties="c=2\npath=zz")
    sync(table, metastore)
    declared = stored(metastore)
    assert (declared.parameters["a"], declared.parameters["b"]) == ("1", "x y=z")
    serde = {"c": "2", "serialization.format": "1", "hoodie.query.as.ro.table": "false", "path": table.location}
    assert declared.format.serde_properties == serde == partitions(metastore)["region=eu"].format.serde_properties
    with pytest.raises(SettingError, match="line 'word' is not key=value"):
        with_options(table, table_properties="a=1\nword")


def test_managed_table_has_no_external_parameter_and_stays_managed(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = make(tmp_path, "eu")
    sync(with_options(table, create_managed_table="true"), metastore)
    declared = stored(metastore)
    assert declared.managed and "EXTERNAL" not in declared.parameters
    table.insert(rows("us", tip=0.5))
    sync(table, metastore)
    changed = stored(metastore)
    assert changed.managed and "EXTERNAL" not in changed.parameters and changed.columns[-1].name == "tip"


def test_metadata_fields_are_omitted_and_long_schemas_are_divided(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = with_options(make(tmp_path, "eu"), omit_metadata_fields="true", schema_string_length_thresh="100")
    sync(table, metastore)
    declared = stored(metastore)
    assert [c.name for c in declared.columns] == ["id", "fare"]
    pieces = [value for key, value in sorted(declared.parameters.items()) if ".schema.part." in key]
    assert [len(piece) for piece in pieces[:-1]] == [100] * (len(pieces) - 1) and len(pieces) == 3
    assert "".join(pieces) == struct(field("id"), field("fare", "long"), field("region"))
    # Pieces of another length have the same meaning.
    assert plan(table.with_options({f"{SYNC}omit_metadata_fields": "true"}), metastore).is_empty


def test_table_of_base_files_has_no_suffix(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = with_options(make(tmp_path, "eu", table_type="MERGE_ON_READ"), skip_ro_suffix="true")
    report = sync(table, metastore)
    assert [synced.table for synced in report.tables] == ["default.trips", "default.trips_rt"]
    assert stored(metastore).format.input_format == READ_OPTIMIZED
    assert stored(metastore, "trips_rt").format.input_format == REAL_TIME
    assert plan(table, metastore).is_empty


def test_table_of_base_files_that_hudi_gave_another_format_is_continued(
    tmp_path: Path, metastore: MemoryMetastore
) -> None:
    table = with_options(make(tmp_path, "eu", table_type="MERGE_ON_READ"), skip_ro_suffix="true")
    sync(table, metastore)
    # Hudi's second sync changes the table, and its partitions keep the format of base files.
    metastore.alter_table(replace(stored(metastore), format=stored(metastore, "trips_rt").format))
    assert plan(table, metastore).is_empty
    table.insert(rows("us"))
    sync(table, metastore)
    assert stored(metastore).format.input_format == REAL_TIME
    assert {p.format.input_format for p in partitions(metastore).values()} == {READ_OPTIMIZED}
    own = "hoodie.meta.sync.sync_snapshot_with_table_name"
    sync(table.with_options({f"{SYNC}skip_ro_suffix": "true", own: "false"}), metastore)
    assert stored(metastore).format.input_format == READ_OPTIMIZED


def test_table_that_hudi_0_15_declared_is_continued(tmp_path: Path, metastore: MemoryMetastore) -> None:
    """Hudi 0.15 declares arrays without nulls, and stores when a commit was completed."""
    table = make(tmp_path, "us", options={"hoodie.write.table.version": "6"})
    by = pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))
    table.insert(rows("eu", tags=["a"]).append_column("by", by))
    sync(table, metastore)
    ours = stored(metastore)
    schema = "spark.sql.sources.schema.part.0"
    theirs = ours.parameters[schema].replace('ontainsNull":true', 'ontainsNull":false')
    assert theirs.count('ontainsNull":false') == 2
    hudis = {**ours.parameters, schema: theirs, LAST_COMPLETION: "20991231235959999"}
    metastore.alter_table(replace(ours, parameters=hudis))
    assert plan(table, metastore).is_empty
    table.upsert(table.scan().to_arrow())
    sync(table, metastore)
    assert stored(metastore).parameters[schema] == theirs
    assert stored(metastore).parameters[LAST_COMPLETION] == stored(metastore).parameters[LAST_COMMIT]
    table.insert(rows("eu", tip=0.5))
    sync(table, metastore)
    assert '"tip"' in stored(metastore).parameters[schema]


def test_conditional_sync_stores_the_commit_with_other_changes_only(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = Table.open(make(tmp_path, "eu").location, options={"hoodie.datasource.meta_sync.condition.sync": "true"})
    sync(table, metastore)
    first = stored(metastore).parameters[LAST_COMMIT]
    table.upsert(rows("eu"))
    sync(table, metastore)
    assert stored(metastore).parameters[LAST_COMMIT] == first
    table.insert(rows("us"))
    sync(table, metastore)
    assert stored(metastore).parameters[LAST_COMMIT] > first


def test_missing_database_is_not_created_without_the_option(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = with_options(make(tmp_path, "eu"), database="sales", auto_create_database="false")
    with pytest.raises(UserError, match=r"sales\.trips cannot be created"):
        sync(table, metastore)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "jdbc"}, "mode='jdbc': must be hms"),
        ({"partition_extractor_class": "com.acme.Extractor"}, "com.acme.Extractor"),
        ({"partition_fields": "a,A"}, "contains a column twice"),
        ({"partition_fields": "a", "partition_extractor_class": f"{HIVE}NonPartitionedExtractor"}, "no values"),
        ({"batch_num": "0"}, "must be at least 1"),
    ],
)
def test_value_without_a_counterpart_is_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        with_options(make(tmp_path, "eu"), **options)


def test_tool_of_another_catalog_is_refused_with_the_supported_tools(tmp_path: Path) -> None:
    tool = "org.apache.hudi.gcp.bigquery.BigQuerySyncTool"
    with pytest.raises(SettingError, match=r"BigQuerySyncTool.*AwsGlueCatalogSyncTool"):
        Table.open(make(tmp_path, "eu").location, options={"hoodie.meta.sync.client.tool.class": tool})


def test_incremental_sync_reads_no_details_and_changes_what_commits_changed(
    tmp_path: Path, metastore: MemoryMetastore
) -> None:
    table = make(tmp_path, "eu", "us")
    sync(table, metastore)
    table.delete_partitions(["region=eu"])
    table.insert(rows("asia", tip=0.5))
    before = len(metastore.requests)
    report = sync(table, metastore)
    assert set(metastore.requests[before:]) == {
        "table",
        "partition_names",
        "alter_table",
        "add_partitions",
        "drop_partitions",
    }
    assert [(synced.changes, synced.added, synced.dropped) for synced in report.tables] == [
        (("columns", "properties"), 1, 1)
    ]
    assert list(partitions(metastore)) == ["region=asia", "region=us"]
    whole = MemoryMetastore()
    sync(table, whole, force=True)
    assert {name: there.columns for name, there in partitions(metastore).items()} == {
        name: there.columns for name, there in partitions(whole).items()
    }


@pytest.mark.parametrize("cause", ["option", "force", "settings", "other sync", "no new write", "old comparison"])
def test_details_are_compared_if_a_sync_cannot_be_incremental(
    tmp_path: Path, metastore: MemoryMetastore, cause: str
) -> None:
    table = make(tmp_path, "eu")
    sync(table, metastore)
    if cause != "no new write":
        table.upsert(rows("eu"))
    if cause == "option":
        table = Table.open(table.location, options={"hoodie.meta.sync.incremental": "false"})
    if cause == "settings":
        table = with_options(table, table_properties="a=1")
    if cause == "other sync":
        there = stored(metastore)
        metastore.alter_table(replace(there, parameters={**there.parameters, LAST_COMMIT: "20200101000000000"}))
    if cause == "old comparison":
        _age(table)
    before = len(metastore.requests)
    sync(table, metastore, force=cause == "force")
    assert "partitions" in metastore.requests[before:]


def _age(table: Table) -> None:
    env = table.refresh().env
    last = read_last_run(env, "sync")
    assert last is not None and last.state[STAMP]
    record_run(env, "sync", state={**last.state, COMPARED: str(last.at_ms - 25 * 3_600_000)})


@pytest.mark.parametrize("moment", ["before", "after"])
def test_next_sync_recovers_from_a_failure_of_an_incremental_sync(tmp_path: Path, moment: str) -> None:
    table = make(tmp_path, "eu", "us")
    first = MemoryMetastore(page=1)
    sync(table, first)
    record = read_last_run(table.refresh().env, "sync")
    assert record is not None
    table.delete_partitions(["region=eu"])
    table.insert(rows("asia", "africa", tip=0.5))
    number, finished = 0, False
    while not finished:
        number += 1
        dying = MemoryMetastore(page=1)
        dying.create_table(stored(first))
        dying.add_partitions("default", "trips", list(partitions(first).values()))
        dying.requests.clear()
        _restore_record(table, record.state)
        setattr(dying, moment, _fails_at(number))
        try:
            sync(table, dying)
            finished = True
        except RetryableError:
            setattr(dying, moment, None)
            sync(table, dying)
        setattr(dying, moment, None)
        newest = table.timeline.writes().by_completion()[-1]
        assert list(partitions(dying)) == ["region=africa", "region=asia", "region=us"]
        assert {there.columns for there in partitions(dying).values()} == {stored(dying).columns}
        assert stored(dying).parameters[LAST_COMMIT] == newest.requested
    assert number > 7


def _restore_record(table: Table, state: Any) -> None:
    record_run(table.refresh().env, "sync", state=state)


def _fails_at(number: int) -> Any:
    def fail(_verb: str, at: int) -> None:
        if at == number:
            raise RetryableError("the metastore is down")

    return fail
