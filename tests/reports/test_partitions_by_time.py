"""A date or a timestamp column is partitioned by day: the type of the column decides how its numbers are read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.cli import ingest_runs
from lakehouse.core.env import Env
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.keys import TimestampFormat
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.declared_tables import create_declared_table
from lakehouse.platform.ingest.check import check_ingest
from lakehouse.platform.services.look import LookRequest, look
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import TableSpec, parse_spec

Write = Callable[..., TableSpec]
DAILY = "{type: TIMESTAMP, output_format: yyyy-MM-dd}"
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
#: Values of a column with their type, and the properties by which Hudi reads them.
COLUMNS = [
    (pa.array([date(2026, 5, 4)], pa.date32()), ("SCALAR", "days")),
    (pa.array([NOON], pa.timestamp("us", "UTC")), ("EPOCHMICROSECONDS", "")),
    (pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us")), ("EPOCHMICROSECONDS", "")),
    (pa.array([NOON], pa.timestamp("ms", "UTC")), ("EPOCHMICROSECONDS", "")),
    (pa.array([round(NOON.timestamp() * 1000)], pa.int64()), ("EPOCHMILLISECONDS", "")),
]


@pytest.fixture
def spec_of(tmp_path: Path) -> Write:
    """Return a function that returns the spec of a table with this partition column and these lines."""
    (tmp_path / "landing").mkdir()

    def parsed(partition: str = DAILY, lines: str = "") -> TableSpec:
        document = f"table: t\nlocation: {tmp_path}/t\nrecord_key: id\npartition_by: {{at: {partition}}}\n{lines}"
        return parse_spec(f"{document}ingest: {{path: {tmp_path}/landing}}\n", source="t.yaml")

    return parsed


def created(spec: TableSpec, rows: pa.Table | None = None) -> Table:
    columns = None if rows is None else rows.schema
    env = Env(storage=LocalStorage(spec.location))
    return create_declared_table(spec, spec.write_options(), env, exist_ok=True, columns=columns)


def checked(spec: TableSpec) -> tuple[str, ...]:
    return check_ingest(spec, IngestCommand(table="t"), environ={}, storage_options={})


@pytest.mark.parametrize(("values", "properties"), COLUMNS)
def test_column_of_times_is_partitioned_by_day_with_the_unit_of_its_type(
    spec_of: Write, values: pa.Array, properties: tuple[str, str]
) -> None:
    """The class of apache/hudi#8343 and apache/hudi#8031: the unit is left to the user, and a wrong one is accepted.

    Hudi's TimestampBasedAvroKeyGenerator reads a date as its day, and a timestamp as its number.
    """
    rows = pa.table({"id": ["a"], "at": values})
    table = created(spec_of(), rows)
    table.upsert(rows)
    assert table.partitions() == ("2026-05-04",)
    raw = Table.open(table.location).config.raw
    stored = [raw.get(f"hoodie.keygen.timebased.{key}", "") for key in ("timestamp.type", "timestamp.scalar.time.unit")]
    assert tuple(stored) == properties
    # The spec agrees with the table that it created.
    assert checked(spec_of()) == ()
    assert created(spec_of(), rows).scan().count() == 1


@pytest.mark.parametrize(("kind", "wrong"), [("date", "EPOCHMILLISECONDS"), ("timestamp", "UNIX_TIMESTAMP")])
def test_check_refuses_a_unit_that_does_not_fit_the_declared_column(spec_of: Write, kind: str, wrong: str) -> None:
    """The class of apache/hudi#8343."""
    schema = f"schema: {{id: string, at: {kind}}}\n"
    with pytest.raises(UserError, match=rf"'at' is of type .*{wrong}.*leave timestamp_type out"):
        checked(spec_of(f"{{type: TIMESTAMP, timestamp_type: {wrong}}}", schema))
    assert checked(spec_of(DAILY, schema)) != ()
    with pytest.raises(UserError, match="Declare the formats of the strings"):
        checked(spec_of(DAILY, "schema: {id: string, at: string}\n"))


def test_first_rows_with_another_unit_are_refused_and_create_no_table(spec_of: Write) -> None:
    """The class of apache/hudi#8343: without declared types the first rows show the type of the column."""
    rows = pa.table({"id": ["a"], "at": [date(2026, 5, 4)]})
    with pytest.raises(UserError, match="'at' is of type date32"):
        created(spec_of("{type: TIMESTAMP, timestamp_type: EPOCHMILLISECONDS}"), rows)
    with pytest.raises(UserError, match="decides how its times are read"):
        created(spec_of())
    assert not (Path(spec_of().location) / ".hoodie").exists()


def test_first_write_of_a_table_refuses_dates_in_another_unit_than_days(tmp_path: Path) -> None:
    """The class of apache/hudi#8031: the API of tables has no spec that could be checked."""
    table = Table.create(
        tmp_path / "t", name="t", record_key="id", partition_by="at:TIMESTAMP", timestamp=TimestampFormat()
    )
    with pytest.raises(UserError, match="Use timestamp type SCALAR with scalar_unit days"):
        table.upsert(pa.table({"id": ["a"], "at": [date(2026, 5, 4)]}))
    assert not table.timeline.writes()


def test_spec_without_timestamp_type_is_compared_by_the_stored_column(tmp_path: Path, spec_of: Write) -> None:
    """The class of apache/hudi#13241: rows in 1970 stay there, so the corrected unit is refused, not ignored."""
    milliseconds = TimestampFormat(output_format="yyyy-MM-dd")
    table = Table.create(tmp_path / "t", name="t", record_key="id", partition_by="at:TIMESTAMP", timestamp=milliseconds)
    table.upsert(pa.table({"id": ["a"], "at": pa.array([1_780_000_000_000])}))
    assert checked(spec_of()) == ()
    with pytest.raises(UserError, match=r"timestamp_type \[SCALAR\].* was created with .*EPOCHMILLISECONDS"):
        checked(spec_of(DAILY, "schema: {id: string, at: date}\n"))


def test_ingestion_without_rows_registers_the_table_and_does_not_create_it(
    tmp_path: Path, spec_of: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class of apache/hudi#8459: what a first run stores is fixed, so a corrected spec would be refused."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    rows = pa.table({"id": ["a"], "at": [date(2026, 5, 4)]})
    source = tmp_path / "t.yaml"
    finished = IngestReport(status=JobStatus.NOTHING_TO_DO, table="t")

    def run(spec: TableSpec, report: IngestReport) -> None:
        catalog, table_id, begun = ingest_runs.begin(spec, "run")
        assert catalog is not None
        if report.status is JobStatus.COMMITTED:
            created(begun, rows).upsert(rows)
        ingest_runs.adopt(catalog, begun, report)
        ingest_runs.end(catalog, table_id, "run", report)

    wrong = spec_of("{type: TIMESTAMP, output_format: yyyy-MM}")
    run(wrong, finished)
    assert not (tmp_path / "t").exists()
    with load_catalog() as catalog:
        entry = catalog.entry("default.t")
        seen = look(entry, catalog.policies("default"), LookRequest(services=["clean"], now_ms=1))
    assert entry.identity is None and seen.error is None and not seen.services["clean"].assessment.due
    run(spec_of(), IngestReport(status=JobStatus.COMMITTED, table="t"))
    with load_catalog() as catalog:
        entry = catalog.entry("default.t")
        assert entry.spec_version == 2 and entry.identity is not None and entry.identity.id
        assert catalog.load_table("default.t").partitions() == ("2026-05-04",)
    assert not source.exists()
