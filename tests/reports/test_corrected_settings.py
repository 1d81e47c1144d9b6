"""A setting of a spec that differs from the one in the table is refused, by the run, its check and `table drift`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.cli.main import main
from lakehouse.core.env import Env
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.declared_settings import SETTINGS
from lakehouse.platform.catalog.declared_tables import create_declared_table, open_declared_table
from lakehouse.platform.ingest import check as check_module
from lakehouse.platform.ingest.check import check_ingest
from lakehouse.spec.contracts.job import JobStatus
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import TableSpec, parse_spec
from tests.support.ingested import Landing

Write = Callable[[str], TableSpec]

TIMES = "{type: TIMESTAMP, timestamp_type: %s, output_format: %s, output_timezone: %s}"
BUCKETS = "partition_by: day\nindex: {type: bucket, buckets: %s}\n"

#: The setting, the lines of the spec that created the table, and the corrected lines.
CORRECTIONS = [
    ("type", "type: COPY_ON_WRITE\n", "type: MERGE_ON_READ\n"),
    ("record_key", "", "record_key: [id, no]\n"),
    ("partition_by", "partition_by: day\n", "partition_by: region\n"),
    ("partition_by", f"partition_by: {{ts: {TIMES % ('UNIX_TIMESTAMP', 'yyyy', 'UTC')}}}\n", "partition_by: ts\n"),
    ("partition_by", "partition_by: ts\n", "partition_by: 'ts:TIMESTAMP'\n"),
    ("key_generator", "partition_by: day\n", "partition_by: day\nkey_generator: COMPLEX\n"),
    ("ordering", "ordering: ts\n", "ordering: no\n"),
    ("merge_mode", "ordering: ts\n", "ordering: ts\nmerge_mode: COMMIT_TIME_ORDERING\n"),
    ("partial_update", "ordering: ts\n", "ordering: ts\npartial_update: IGNORE_DEFAULTS\n"),
    ("delete_field", "delete_field: op\ndelete_marker: D\n", "delete_field: kind\ndelete_marker: D\n"),
    ("delete_marker", "delete_field: op\ndelete_marker: D\n", "delete_field: op\ndelete_marker: d\n"),
    ("column_groups", "column_groups: {ts: [a, b]}\n", "column_groups: {ts: [a]}\n"),
    ("column_groups", "column_groups: {ts: [a, b]}\n", ""),
]
CORRECTIONS += [
    (name, f"partition_by: {{ts: {before}}}\n", f"partition_by: {{ts: {after}}}\n")
    for name, before, after in (
        ("timestamp_type", TIMES % ("EPOCHMILLISECONDS", "yyyy", "UTC"), TIMES % ("UNIX_TIMESTAMP", "yyyy", "UTC")),
        ("output_format", TIMES % ("UNIX_TIMESTAMP", "yyyy", "UTC"), TIMES % ("UNIX_TIMESTAMP", "yyyy-MM-dd", "UTC")),
        (
            "output_timezone",
            TIMES % ("UNIX_TIMESTAMP", "yyyy", "UTC"),
            TIMES % ("UNIX_TIMESTAMP", "yyyy", "Asia/Tokyo"),
        ),
        (
            "output_format",
            TIMES % ("UNIX_TIMESTAMP", "yyyy", "UTC"),
            "{type: TIMESTAMP, timestamp_type: UNIX_TIMESTAMP}",
        ),
        (
            "scalar_unit",
            "{type: TIMESTAMP, timestamp_type: SCALAR, scalar_unit: hours}",
            "{type: TIMESTAMP, timestamp_type: SCALAR, scalar_unit: days}",
        ),
        (
            "input_formats",
            "{type: TIMESTAMP, timestamp_type: DATE_STRING, input_formats: [yyyy-MM-dd]}",
            "{type: TIMESTAMP, timestamp_type: DATE_STRING, input_formats: [yyyy-dd-MM]}",
        ),
        (
            "input_timezone",
            "{type: TIMESTAMP, timestamp_type: DATE_STRING, input_formats: [yyyy], input_timezone: Asia/Tokyo}",
            "{type: TIMESTAMP, timestamp_type: DATE_STRING, input_formats: [yyyy], input_timezone: UTC}",
        ),
    )
]
CORRECTIONS += [
    ("hoodie.bucket.index.num.buckets", BUCKETS % 4, BUCKETS % 8),
    ("hoodie.bucket.index.hash.field", "record_key: [id, no]\n" + BUCKETS % 4, BUCKETS % "4, hash_field: id"),
    ("hoodie.bucket.index.partition.expressions", BUCKETS % '4, partitions: {"^2026": 8}', BUCKETS % 4),
    ("hoodie.index.type", BUCKETS % 4, "partition_by: day\nindex: global_simple\n"),
    ("hoodie.index.type", "partition_by: day\nindex: simple\n", BUCKETS % 4),
]
CORRECTIONS += [
    (key, f"partition_by: day\noptions: {{{key}: {before}}}\n", f"partition_by: day\noptions: {{{key}: {after}}}\n")
    for key, before, after in (
        ("hoodie.write.table.version", "'9'", "'8'"),
        ("hoodie.datasource.write.hive_style_partitioning", "'false'", "'true'"),
        ("hoodie.datasource.write.partitionpath.urlencode", "'true'", "'false'"),
        ("hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled", "'false'", "'true'"),
        ("hoodie.table.cdc.enabled", "'false'", "'true'"),
    )
]
CDC = "partition_by: day\noptions: {hoodie.table.cdc.enabled: 'true', hoodie.table.cdc.supplemental.logging.mode: %s}\n"
ENGINE = "type: MERGE_ON_READ\n" + BUCKETS % 4 + "options: {hoodie.index.bucket.engine: %s}\n"
ENCODING = "record_key: [id, no]\noptions: {lakehouse.record_key.encoding: %s}\n"
MERGER = "merge_mode: CUSTOM\nmerger: tests.support.mergers:%s\n"
FILLING = "ordering: ts\npartial_update: FILL_UNAVAILABLE\nunavailable_value: %s\n"
CORRECTIONS += [
    ("hoodie.table.cdc.supplemental.logging.mode", CDC % "DATA_BEFORE", CDC % "OP_KEY_ONLY"),
    ("hoodie.index.bucket.engine", ENGINE % "SIMPLE", ENGINE % "CONSISTENT_HASHING"),
    ("lakehouse.record_key.encoding", ENCODING % "checked", ENCODING % "escaped"),
    ("merger", MERGER % "add_up", MERGER % "drops_rows"),
    ("unavailable_value", FILLING % "gone", FILLING % "missing"),
]


@pytest.fixture
def spec_of(tmp_path: Path) -> Write:
    """Return a function that returns the spec of a table with these lines."""
    (tmp_path / "landing").mkdir()

    def parsed(lines: str) -> TableSpec:
        key = "" if "record_key" in lines else "record_key: id\n"
        document = f"table: t\nlocation: {tmp_path}/t\n{key}{lines}ingest: {{path: {tmp_path}/landing}}\n"
        return parse_spec(document, source="t.yaml")

    return parsed


def created(spec: TableSpec) -> Table:
    return create_declared_table(spec, spec.write_options(), Env(storage=LocalStorage(spec.location)))


def checked(spec: TableSpec) -> tuple[str, ...]:
    command = IngestCommand(table="t.yaml")
    return check_ingest(spec, command, environ={}, storage_options={})


@pytest.mark.parametrize(("name", "before", "after"), CORRECTIONS)
def test_corrected_setting_that_the_table_stores_is_refused_with_both_values(
    spec_of: Write, name: str, before: str, after: str
) -> None:
    """The class of apache/hudi#13241 and apache/hudi#8459: a changed value that no writer compares with the table."""
    created(spec_of(before))
    assert checked(spec_of(before)) == ()
    with pytest.raises(UserError, match=r"but the table at .* was created with .* Correct the spec") as refused:
        checked(spec_of(after))
    assert f"{name} [" in refused.value.message


def test_corrections_cover_every_setting_that_a_table_stores() -> None:
    """The class of apache/hudi#8459: one list decides which settings a table stores and a writer compares."""
    assert {setting.name for setting in SETTINGS} == {name for name, _, _ in CORRECTIONS}


def test_several_corrected_settings_are_refused_in_one_message(spec_of: Write) -> None:
    """The class of apache/hudi#13241."""
    created(spec_of("partition_by: {ts: %s}\n" % (TIMES % ("UNIX_TIMESTAMP", "yyyy", "UTC"))))
    with pytest.raises(UserError) as refused:
        checked(spec_of("partition_by: {ts: %s}\n" % (TIMES % ("EPOCHMICROSECONDS", "yyyy-MM", "Asia/Tokyo"))))
    for text in ("timestamp_type [EPOCHMICROSECONDS]", "output_format [yyyy-MM]", "output_timezone [Asia/Tokyo]"):
        assert text in refused.value.message
    assert "output_format [yyyy]" in refused.value.message


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("index: simple\n", "index: bloom\n"),
        ("ordering: ts\ndelete_retention: 7d\n", "ordering: ts\ndelete_retention: 3d\n"),
        ("partition_by: {ts: %s}\n" % (TIMES % ("UNIX_TIMESTAMP", "yyyy", "GMT")),) * 2,
        (
            "partition_by: day\noptions: {hoodie.datasource.write.hive_style_partitioning: 'true'}\n",
            "partition_by: day\n",
        ),
    ],
)
def test_setting_that_a_write_may_choose_is_followed(spec_of: Write, before: str, after: str) -> None:
    """The class of apache/hudi#9307, where equal settings in another spelling were refused."""
    created(spec_of(before))
    assert checked(spec_of(after)) == ()
    table = open_declared_table(
        spec_of(after), spec_of(after).write_options(), Env(storage=LocalStorage(spec_of(after).location))
    )
    assert table is not None
    wanted = spec_of(after).index
    assert wanted is None or table.services_as_loaded.policies.index.type == wanted.type


def test_bucket_count_of_a_resized_table_is_accepted_as_declared_and_as_it_is(spec_of: Write) -> None:
    """The class of apache/hudi#13241: the present number of buckets is in the rule file, not in the properties."""
    table = created(spec_of("type: MERGE_ON_READ\n" + BUCKETS % 2))
    table.upsert(pa.table({"id": [f"k{i}" for i in range(20)], "day": ["2026-01-01"] * 20}))
    done = table.with_options({"lakehouse.clustering.buckets": "4"}).services.clustering.run(force=True)
    assert done.metadata.stats
    rule = '{"^2026-01-01$": 4}'
    for lines in (BUCKETS % 2, BUCKETS % f"2, partitions: {rule}"):
        assert checked(spec_of("type: MERGE_ON_READ\n" + lines)) == ()


def test_check_of_a_database_compares_the_settings_of_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class of apache/hudi#13241, for a source that knows the columns."""
    text = f"table: t\nlocation: {tmp_path}/t\nrecord_key: id\nindex: global_simple\npartition_by: %s\n"
    source = "ingest: {source: mysql, connection: shop, tables: shop.t}\n"
    monkeypatch.setitem(check_module.CHECKS, "mysql", lambda *arguments: None)
    created(parse_spec(text % "day" + source, source="t.yaml"))
    assert checked(parse_spec(text % "day" + source, source="t.yaml")) == ()
    with pytest.raises(UserError, match=r"partition_by \[region\]"):
        checked(parse_spec(text % "region" + source, source="t.yaml"))


def test_run_refuses_a_corrected_setting_and_writes_nothing() -> None:
    """The class of apache/hudi#13241: the write succeeded, and the table was wrong."""
    landing = Landing("corrected-settings", options={"hoodie.datasource.write.hive_style_partitioning": "false"})
    landing.land("a", 2, 0)
    assert landing.run().status is JobStatus.COMMITTED
    landing.options = {"hoodie.datasource.write.hive_style_partitioning": "true"}
    landing.land("b", 2, 0)
    with pytest.raises(UserError, match="hive_style_partitioning"):
        landing.run(run_id="second")
    assert landing.table.scan().count() == 2


def test_table_drift_reports_a_spec_whose_table_stores_another_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The class of apache/hudi#6158: catalog and table have different values, and every check is content."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    specs = tmp_path / "specs"
    specs.mkdir()
    times = "{type: TIMESTAMP, timestamp_type: UNIX_TIMESTAMP, output_format: %s}"
    text = "table: t\nlocation: %s\nrecord_key: id\npartition_by: {ts: " + times + "}\n"

    def drift() -> Any:
        capsys.readouterr()
        assert main(["table", "drift", "--specs", str(specs), "--output", "json"]) == 0
        return json.loads(capsys.readouterr().out)["specs"][0]

    (specs / "t.yaml").write_text(text % (tmp_path / "t", "yyyy"))
    with load_catalog() as catalog:
        catalog.create_table(parse_spec(text % (tmp_path / "t", "yyyy"), source=str(specs / "t.yaml")))
    assert drift()["state"] == "in_force"
    (specs / "t.yaml").write_text(text % (tmp_path / "t", "yyyy-MM"))
    found = drift()
    assert found["state"] == "refused" and "output_format [yyyy-MM]" in found["problem"]
