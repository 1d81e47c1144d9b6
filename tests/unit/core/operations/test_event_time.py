"""Event times in commits: their columns, the extra metadata of writes, watermarks, and versions by event time."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from lakehouse.cli.main import main
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.planning.event_time import PAST_KEY, WATERMARKS_KEY
from lakehouse.core.rows.event_time import check_event_time, event_time_range
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.instant import State
from lakehouse.spec.options.parser import parse_options
from tests.support.archived import EAGERLY
from tests.support.tables import SCHEMA, Shape, batch, data_rows, make_env, make_table, row

TIMED = pa.schema([f if f.name != "ts" else pa.field("ts", pa.timestamp("us", "UTC")) for f in SCHEMA])
TRACKED = {"hoodie.payload.event.time.field": "ts"}
MARCH = 1_740_787_200_000
SHAPES = {
    "copy on write": Shape(),
    "merge on read": Shape(type="MERGE_ON_READ"),
    "buckets in logs": Shape(type="MERGE_ON_READ", index="BUCKET", new_buckets="log"),
}


def at(text: str) -> datetime:
    """Return a time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ms(text: str) -> int:
    """Return a time in UTC milliseconds."""
    return int(at(text).timestamp() * 1000)


def tracked(shape: Shape | None = None, **options: str) -> Table:
    """Return an empty table with the event time column `ts`, which also orders versions of a record."""
    return make_table(shape, schema=TIMED).with_options({**TRACKED, **options})


def upsert(table: Table, *events: tuple[str, str | None], verb: str = "upsert", **values: Any) -> Committed:
    """Write rows (id, event time) in one commit."""
    rows = [row(name, ts=None if time is None else at(time), **values) for name, time in events]
    outcome = getattr(table, verb)(batch(rows, TIMED))
    assert isinstance(outcome, Committed)
    return outcome


def event_times(outcome: Committed) -> tuple[int, int] | None:
    """Return the first and last event time of a commit; None if it has none."""
    ranges = [stat.event_time for stat in outcome.metadata.stats if stat.event_time]
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([datetime(2025, 3, 1)], pa.timestamp("us")), (MARCH, MARCH)),
        (pa.array([MARCH - 1, MARCH], pa.timestamp("ms", "Europe/Berlin")), (MARCH - 1, MARCH)),
        (pa.array([MARCH * 10**6 + 999_999], pa.timestamp("ns")), (MARCH, MARCH)),
        (pa.array([-1], pa.timestamp("us")), (-1, -1)),
        (pa.array([MARCH // 1000], pa.timestamp("s")), (MARCH, MARCH)),
        (pa.array([date(2025, 3, 1), date(2025, 3, 2), None]), (MARCH, MARCH + 86_400_000)),
        (pa.array([date(2025, 3, 1)], pa.date64()), (MARCH, MARCH)),
        (pa.array([MARCH // 1000]), (MARCH, MARCH)),
        (pa.array([MARCH + 7]), (MARCH + 7, MARCH + 7)),
        (pa.array([(MARCH + 7) * 1000 + 1]), (MARCH + 7, MARCH + 7)),
        (pa.array([MARCH * 10**6]), (MARCH, MARCH)),
        (pa.array([-5], pa.int32()), (-5_000, -5_000)),
        (pa.array(["2025-03-01T00:00:00Z", "2025-03-01T02:00:00+02:00", None]), (MARCH, MARCH)),
        (pa.array(["2025-03-01", "2025-03-01 00:00:00.007"]), (MARCH, MARCH + 7)),
        (pa.array(["2025-03-01T00:00:00-0100", "", " 2025-03-01T00:00 "]), (MARCH, MARCH + 3_600_000)),
        (pa.array(["2025-03-01"], pa.large_string()), (MARCH, MARCH)),
        (pa.array(["2025-03-01", "2025-03-01"]).dictionary_encode(), (MARCH, MARCH)),
        (pa.array([None], pa.timestamp("us")), None),
        (pa.array([None, ""], pa.string()), None),
        (pa.array([], pa.int64()), None),
    ],
)
def test_event_times_of_every_type_are_stored_in_milliseconds(
    values: pa.Array, expected: tuple[int, int] | None
) -> None:
    rows = pa.table({"t": values})
    check_event_time(rows.schema, "t")
    assert event_time_range(rows, "t") == expected


def test_event_time_may_be_a_field_of_a_struct() -> None:
    rows = pa.table({"event": pa.array([{"at": MARCH}, {"at": MARCH + 5}, None])})
    check_event_time(rows.schema, "event.at")
    assert event_time_range(rows, "event.at") == (MARCH, MARCH + 5)
    with pytest.raises(UserError, match=r"has no field 'when'"):
        check_event_time(rows.schema, "event.when")


def test_columns_and_values_that_are_no_times_are_refused() -> None:
    schema = pa.schema([("updated_at", pa.float64())])
    with pytest.raises(UserError, match=r"'update_at'.*Did you mean 'updated_at'"):
        check_event_time(schema, "update_at")
    with pytest.raises(UserError, match=r"'updated_at'.*double, which cannot contain event times"):
        check_event_time(schema, "updated_at")
    with pytest.raises(UserError, match=r"'t'.*yesterday"):
        event_time_range(pa.table({"t": ["yesterday"]}), "t")
    with pytest.raises(UserError, match=r"outside of the years 1 to 9999"):
        event_time_range(pa.table({"t": pa.array([10**15], pa.timestamp("s"))}), "t")


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_write_method_stores_the_event_times_of_its_rows(shape: Shape) -> None:
    table = tracked(shape)
    first = upsert(table, ("a", "2025-03-01"), ("b", "2025-03-05"), ("n", None))
    assert event_times(first) == (ms("2025-03-01"), ms("2025-03-05"))
    assert event_times(upsert(table, ("a", "2025-03-02"))) == (ms("2025-03-02"), ms("2025-03-02"))
    late = upsert(table, ("b", "2025-02-01"), ("c", "2025-02-02"))
    assert event_times(late) == (ms("2025-02-01"), ms("2025-02-02")), "an event that is not newest counts too"
    assert event_times(upsert(table, ("d", "2025-03-07"), verb="insert")) == (ms("2025-03-07"), ms("2025-03-07"))
    if shape.index != "BUCKET":
        assert event_times(upsert(table, ("e", "2025-03-08"), verb="bulk_insert")) == (
            ms("2025-03-08"),
            ms("2025-03-08"),
        )
    gone = upsert(table, ("a", "2025-03-09"), _hoodie_is_deleted=True)
    assert event_times(gone) == (ms("2025-03-09"), ms("2025-03-09"))
    assert event_times(upsert(table, ("f", None))) is None
    deleted = table.delete(["b"])
    assert isinstance(deleted, Committed) and event_times(deleted) is None
    assert event_times(upsert(table, ("g", "2025-03-10"), verb="insert_overwrite")) == (
        ms("2025-03-10"),
        ms("2025-03-10"),
    )
    assert event_times(upsert(table, ("h", "2025-03-11"), verb="insert_overwrite_table")) == (ms("2025-03-11"),) * 2


@pytest.mark.parametrize("shape", [Shape(), Shape(type="MERGE_ON_READ")], ids=["clustering", "compaction"])
def test_services_store_no_event_times(shape: Shape) -> None:
    table = tracked(shape, **{"hoodie.compact.inline.max.delta.commits": "1"})
    upsert(table, ("a", "2025-03-01"), verb="bulk_insert")
    upsert(table, ("b", "2025-03-02"), verb="bulk_insert")
    upsert(table, ("a", "2025-03-03"))
    services = table.services
    outcome = services.compaction.run() if shape.is_merge_on_read else services.clustering.run(force=True)
    assert isinstance(outcome, Committed)
    assert event_times(outcome) is None
    found = table.version_at("2025-03-04")
    assert (found.instant, found.is_clean) == (outcome.instant, True)


def test_commit_file_stores_event_times_like_hudi() -> None:
    table = tracked()
    outcome = upsert(table, ("a", "2025-03-01"), ("b", "2025-03-05"))
    loaded = table.refresh()
    data = loaded.store.read(outcome.instant, State.COMPLETED)
    assert data is not None
    stat = decode_commit(data).stats[0]
    assert stat.event_time == (ms("2025-03-01"), ms("2025-03-05"))
    (record,) = fastavro.reader(io.BytesIO(data))
    (written,) = record["partitionToWriteStats"]["a"]
    assert (written["minEventTime"], written["maxEventTime"]) == (ms("2025-03-01"), ms("2025-03-05"))
    again = decode_commit(table_layout(9).encode_commit(outcome.metadata, replace=False))
    assert again.stats[0].event_time == stat.event_time
    untracked = upsert(table.with_options({"hoodie.write.track.event.time.watermark": "false"}), ("a", "2025-03-06"))
    assert event_times(untracked) is None
    assert untracked.metadata.extra.keys().isdisjoint({WATERMARKS_KEY, PAST_KEY})


def test_batch_without_event_time_column_is_refused_before_the_write() -> None:
    table = make_table(schema=None).with_options({"hoodie.payload.event.time.field": "when"})
    with pytest.raises(UserError, match=r"'when'.*hoodie.write.track.event.time.watermark=false"):
        table.upsert(batch([row("a")]))
    with pytest.raises(UserError, match=r"'amount'.*cannot contain event times"):
        table.with_options({"hoodie.payload.event.time.field": "amount"}).upsert(batch([row("a")]))
    assert len(table.timeline) == 0


def test_event_time_options_are_checked() -> None:
    with pytest.raises(UserError, match=r"lakehouse\.event_time\.lateness='soon'"):
        parse_options({"lakehouse.event_time.lateness": "soon"})
    with pytest.raises(UserError, match=r"the name is empty"):
        parse_options({"lakehouse.event_time.source": " "})
    assert parse_options(TRACKED).event_time.column == "ts"


def test_watermark_is_the_greatest_event_time_less_lateness_and_never_decreases() -> None:
    table = tracked(**{"lakehouse.event_time.lateness": "1h30m"})
    assert table.watermark().value is None
    upsert(table, ("a", "2025-03-01T12:00"))
    assert table.watermark().value == at("2025-03-01T10:30")
    upsert(table, ("b", "2025-02-01"))
    assert table.watermark().sources == {"default": at("2025-03-01T10:30")}
    upsert(table, ("b", None))
    upsert(table.with_options({"lakehouse.event_time.lateness": "2d"}), ("c", "2025-03-02"))
    table.upsert(batch([], TIMED), allow_empty=True)
    assert table.watermark().value == at("2025-03-01T10:30")
    upsert(table, ("c", "2025-03-02"))
    assert table.watermark().value == at("2025-03-01T22:30")
    newest = table.timeline.writes().by_completion()[-1]
    detail = table.inspection.instant(newest.requested)
    assert detail.watermarks_before == {"default": "2025-03-01T10:30:00.000+00:00"}
    assert detail.watermarks == {"default": "2025-03-01T22:30:00.000+00:00"}


def test_table_watermark_is_the_least_of_its_sources() -> None:
    table = tracked()
    shop, bank = (table.with_options({"lakehouse.event_time.source": name}) for name in ("shop", "bank"))
    both = table.with_options({"lakehouse.event_time.sources": "shop, bank"})
    upsert(shop, ("a", "2025-03-02"))
    assert table.watermark().value == at("2025-03-02")
    assert both.watermark().value is None, "the source bank has no watermark yet"
    upsert(bank, ("b", "2025-03-01"))
    assert both.watermark().value == at("2025-03-01")
    upsert(bank, ("b", "2025-03-05"))
    upsert(table.with_options({"lakehouse.event_time.source": "retired"}), ("b", "2020-01-01"))
    assert both.watermark().value == at("2025-03-02"), "sources that are not awaited are ignored"
    assert table.watermark().value == at("2020-01-01")
    assert table.watermark().sources.keys() == {"shop", "bank", "retired"}


def test_concurrent_writers_each_advance_their_source() -> None:
    env = make_env()
    options = {**TRACKED, "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
    made = make_table(Shape(options=options), env=env, schema=TIMED)
    shop = made.with_options({**options, "lakehouse.event_time.source": "shop"})
    bank = Table.open(env.storage.root, env=env, options={**options, "lakehouse.event_time.source": "bank"})

    def meanwhile() -> Any:
        upsert(bank, ("b", "2025-03-01"), p="b")
        yield from batch([row("a", ts=at("2025-03-02"))], TIMED).to_batches()

    shop.upsert(pa.RecordBatchReader.from_batches(TIMED, meanwhile()))
    newest = shop.commits()[-1][1]
    assert "bank" not in newest.extra[WATERMARKS_KEY], "the other commit completed after the write began"
    assert shop.watermark().sources == {"shop": at("2025-03-02"), "bank": at("2025-03-01")}
    assert newest.extra[WATERMARKS_KEY] != "{}"
    # The write of the shop is requested first and completed last, so it does not contain the watermark of the bank.
    assert data_rows(shop, ["id"], as_of_event_time="2025-03-02") == [{"id": "b"}]
    upsert(shop, ("a", "2025-03-03"))
    assert "bank" in shop.commits()[-1][1].extra[WATERMARKS_KEY]


def test_late_events_change_the_version_of_midnight() -> None:
    table = tracked()
    evening = upsert(table, ("a", "2025-02-28T20:00"), ("b", "2025-02-28T22:00"))
    found = table.version_at("2025-03-01")
    assert (found.instant, found.is_clean, found.first_later) == (evening.instant, True, None)
    night = upsert(table, ("a", "2025-03-01T00:05"))
    found = table.version_at("2025-03-01")
    assert (found.instant, found.is_clean, found.first_later) == (evening.instant, True, night.instant)
    assert [r["id"] for r in data_rows(table, ["id", "ts"], as_of_event_time="2025-03-01")] == ["a", "b"]
    assert data_rows(table, ["ts"], where="id = 'a'", as_of_event_time=at("2025-03-01")) == [
        {"ts": at("2025-02-28T20:00")}
    ]
    late = upsert(table, ("c", "2025-02-28T23:59"))
    found = table.version_at("2025-03-01T02:00+02:00")
    assert (found.instant, found.is_clean, found.first_later) == (late.instant, False, night.instant)
    rows = data_rows(table, ["id", "ts"], as_of_event_time="2025-03-01T00:00")
    assert [(r["id"], r["ts"]) for r in rows] == [
        ("a", at("2025-03-01T00:05")),
        ("b", at("2025-02-28T22:00")),
        ("c", at("2025-02-28T23:59")),
    ]
    assert found.watermark == at("2025-03-01T00:05")


def test_clean_version_has_exactly_the_events_before_its_time() -> None:
    table = tracked(Shape(type="MERGE_ON_READ"))
    for hour in range(5):
        upsert(table, ("a", f"2025-03-01T0{hour}:00"), (f"k{hour}", f"2025-03-01T0{hour}:30"))
    for hour in range(1, 5):
        bound = f"2025-03-01T0{hour}:00"
        assert table.version_at(bound).is_clean
        rows = data_rows(table, ["id", "ts"], as_of_event_time=bound)
        assert {r["id"] for r in rows} == {"a", *(f"k{n}" for n in range(hour))}
        assert max(r["ts"] for r in rows) < at(bound)
    assert data_rows(table, ["id"], as_of_event_time="2025-03-01T00:00") == []
    assert table.version_at("2025-03-01T00:00").instant is None


def test_commit_without_events_belongs_to_the_version_before_it() -> None:
    table = tracked(Shape(type="MERGE_ON_READ", options={"hoodie.compact.inline.max.delta.commits": "1"}))
    upsert(table, ("a", "2025-03-01"), ("b", "2025-03-01"))
    upsert(table, ("a", "2025-03-02"))
    compacted = table.with_options({"hoodie.compact.inline.max.delta.commits": "1"}).services.compaction.run()
    deleted = table.delete(["b"])
    assert isinstance(compacted, Committed) and isinstance(deleted, Committed)
    upsert(table, ("a", "2025-03-05"))
    found = table.version_at("2025-03-05")
    assert (found.instant, found.is_clean) == (deleted.instant, True)
    assert data_rows(table, ["id", "ts"], as_of_event_time="2025-03-05") == [{"id": "a", "ts": at("2025-03-02")}]


def test_version_with_rows_of_unknown_times_is_not_clean() -> None:
    table = tracked()
    upsert(table, ("a", "2025-03-01"))
    silent = upsert(table.with_options({"hoodie.write.track.event.time.watermark": "false"}), ("b", "2025-03-09"))
    upsert(table, ("c", "2025-03-05"))
    assert not table.version_at("2025-03-04").is_clean
    assert table.version_at("2025-03-04").instant == silent.instant
    assert not table.version_at("2025-03-06").is_clean
    assert table.watermark().value == at("2025-03-05")


@pytest.mark.parametrize("shape", [Shape(), Shape(type="MERGE_ON_READ")], ids=["copy on write", "merge on read"])
def test_archived_commits_are_used_for_versions_and_watermarks(shape: Shape) -> None:
    table = tracked(shape, **EAGERLY)
    for day in range(1, 8):
        upsert(table, ("a", f"2025-03-0{day}"), (f"k{day}", f"2025-03-0{day}T12:00"))
    bounds = ["2025-02-01", *(f"2025-03-0{day}" for day in range(1, 10)), "2025-03-03T06:00"]
    before = [table.version_at(time) for time in bounds]
    table.services.archive.run()
    assert len(table.archived()) >= 2
    assert [table.version_at(time) for time in bounds] == before
    assert table.watermark().value == at("2025-03-07T12:00")
    upsert(table, ("late", "2025-03-02T13:00"))
    found = table.version_at("2025-03-03")
    assert (found.instant, found.is_clean) == (table.commits()[-1][0], False)
    assert found.first_later == before[bounds.index("2025-03-03")].first_later


def test_archive_is_not_read_if_the_timeline_is_sufficient(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tracked(**EAGERLY)
    for day in range(1, 8):
        upsert(table, ("a", f"2025-03-0{day}"))
    table.services.archive.run()
    store = type(table.refresh().store)
    monkeypatch.setattr(store, "archived_commits", lambda *args, **kwargs: pytest.fail("the archive was read"))
    assert table.version_at("2025-03-07").is_clean
    upsert(table, ("a", "2025-03-08"))
    assert table.watermark().value == at("2025-03-08")


def test_reads_without_event_times_are_refused_with_a_hint() -> None:
    table = make_table()
    table.upsert(batch([row("a")]))
    with pytest.raises(UserError, match=r"set hoodie.payload.event.time.field"):
        table.scan(as_of_event_time="2025-03-01")
    with pytest.raises(UserError, match=r"give one of them"):
        table.scan(as_of="2025-03-01", as_of_event_time="2025-03-01")
    with pytest.raises(UserError, match=r"'noon' is invalid"):
        table.version_at("noon")
    assert table.watermark().value is None


def test_command_line_reads_by_event_time(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key=["id"], options=TRACKED)
    table.upsert(pa.table({"id": ["a"], "ts": ["2025-03-01T10:00:00Z"]}))
    table.upsert(pa.table({"id": ["b"], "ts": ["2025-03-02T10:00:00Z"]}))
    words = ["table", "read", "--table", table.location, "--columns", "id", "--output", "json"]
    assert main([*words, "--as-of-event-time", "2025-03-02"]) == 0
    assert capsys.readouterr().out.count('"id"') == 1
    assert main([*words, "--as-of-event-time", "2025-03-02", "--as-of", "2025-03-02"]) == 64


def test_version_whose_files_were_cleaned_is_refused() -> None:
    table = tracked(**{"hoodie.clean.commits.retained": "1"})
    for day in range(1, 5):
        upsert(table, ("a", f"2025-03-0{day}"))
    table.services.clean.run()
    with pytest.raises(UserError, match="cannot be read as of"):
        data_rows(table, as_of_event_time="2025-03-02")
    assert data_rows(table, ["ts"], as_of_event_time="2025-03-05") == [{"ts": at("2025-03-04")}]
