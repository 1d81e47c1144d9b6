"""Contract of sources, run on every registered source and on an in-memory log that this module defines.

To add a source, write its settings in `lakehouse.spec`, its reader in `lakehouse.platform.sources`, one entry in each
of the two registries, and one `Landing` here.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from importlib import import_module
from itertools import count
from typing import Any, ClassVar, Self

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse.core.env import Env
from lakehouse.core.operations.read.queries import CompletedUpTo, Incremental, ScanRequest
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.system.clock import SystemClock
from lakehouse.core.table.scan import TableScan
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError, UserError
from lakehouse.platform.ingest.run import CHECKPOINT, DEAD_LETTERS, INTERVAL
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.registry import CHECKS, SOURCES, open_source
from lakehouse.platform.sources.source import Batch, Interval, KnownColumns, Source, SourcePlan
from lakehouse.platform.sources.source_context import SourceContext
from lakehouse.platform.sources.tables.table_plan import TablesPlan
from lakehouse.platform.sources.tables.table_source import TablesSource
from lakehouse.spec.contracts.job import JobStatus, interval_text
from lakehouse.spec.function import ALLOWED_FUNCTIONS
from lakehouse.spec.options.schema import SchemaPolicy
from lakehouse.spec.sources.custom_source import CustomSourceSpec
from lakehouse.spec.sources.ingest import SOURCE_SPECS, IngestSpec, ingest_mapping
from lakehouse.spec.sources.kafka_source import KafkaSourceSpec
from lakehouse.spec.sources.mysql_source import MysqlSourceSpec
from lakehouse.spec.sources.postgres_source import PostgresSourceSpec
from lakehouse.spec.sources.source import reader_options
from lakehouse.spec.sources.table_source import TableSourceSpec
from lakehouse.spec.spec_key import SpecKey
from lakehouse.spec.table.table_spec import TableSpec, parse_spec
from lakehouse.spec.yaml_section import Section
from tests.support import custom_log
from tests.support.ingested import BAD
from tests.support.landings import START, AscendingLanding, FilesLanding, Landing, NotifiedLanding, interval
from tests.support.memory_topic import MemoryTopic, kafka_source

KNOWN = KnownColumns(policy=SchemaPolicy())


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpec:
    """Settings of the in-memory log."""

    KIND: ClassVar[str] = "log"
    KEYS: ClassVar[tuple[SpecKey, ...]] = (
        SpecKey(name="topic", type="text", text="Topic of the log.", example="orders", required=True),
        SpecKey(name="by_time", type="boolean", text="Read by data interval.", example="true", default="false"),
        SpecKey(name="options", type="mapping", text="Options of the reader.", example="{a: b}"),
    )

    topic: str
    by_time: bool = False
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_by_interval(self) -> bool:
        """Return whether a run reads the records of its data interval."""
        return self.by_time

    @property
    def declares_types(self) -> bool:
        """Return whether the log declares column types."""
        return True

    @property
    def connections(self) -> tuple[str, ...]:
        """Return no connections."""
        return ()

    @property
    def description(self) -> str:
        """Describe the records that a run reads."""
        return f"records of topic {self.topic}"

    @classmethod
    def parse(cls, section: Section) -> Self:
        """Read the settings from the section."""
        return cls(
            topic=section.required("topic"), by_time=section.boolean("by_time", False), options=reader_options(section)
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as a mapping for YAML."""
        mapping: dict[str, Any] = {"topic": self.topic}
        if self.by_time:
            mapping["by_time"] = True
        return mapping | ({"options": dict(self.options)} if self.options else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan(SourcePlan):
    """The offsets of the records to read."""

    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """An in-memory log of records with a time each. The checkpoint is the next offset."""

    settings: LogSpec
    records: list[tuple[datetime, str]]

    def plan(self, checkpoint: str | None, interval: Interval | None, *, full_refresh: bool) -> LogPlan:
        """Choose offsets by time or from the checkpoint."""
        by_time, first = self.settings.by_time, 0
        if by_time and interval is None:
            raise UserError(f"topic {self.settings.topic!r} is read by data interval, and this run has none")
        if checkpoint is not None and not checkpoint.isdigit():
            raise CorruptTableError(f"the ingest checkpoint {checkpoint!r} is not an offset")
        if checkpoint is not None and not (by_time or full_refresh):
            first = int(checkpoint)
        offsets = tuple(
            offset
            for offset, (moment, _) in enumerate(self.records)
            if offset >= first and (not by_time or interval is None or interval[0] <= moment < interval[1])
        )
        return LogPlan(
            units=len(offsets),
            reason=f"{len(offsets)} of {len(self.records)} records will be ingested",
            fingerprint=f"{offsets[0]}-{offsets[-1]}" if offsets else "",
            checkpoint=str(offsets[-1] + 1) if offsets and not by_time else None,
            metadata={"lakehouse.ingest.offsets": json.dumps(offsets)},
            names=(self.settings.topic,),
            offsets=offsets,
        )

    @contextmanager
    def read(self, plan: LogPlan, *, known: KnownColumns, dead_letters: DeadLetterBox) -> Iterator[Batch | None]:
        """Read the planned offsets."""
        texts = [self.records[offset][1] for offset in plan.offsets]
        frame, columns, bad = records_of(texts, dead_letters)
        yield Batch(frame=frame, rows=frame.num_rows, bad_records=bad, schema=columns)

    def verify(self, plan: LogPlan) -> None:
        """Accept every plan: records of a log do not change."""


def records_of(texts: Sequence[str], dead_letters: DeadLetterBox) -> tuple[Any, Any, int]:
    """Return the rows and columns of records and the number of bad ones, which become dead letters."""
    letters = [text for text in texts if text.startswith(BAD)]
    for number, letter in enumerate(letters):
        path = f"{dead_letters.path_of(dead_letters.attempt)}/part-{number}.json"
        dead_letters.storage.put(path, letter.encode())
    rows = [{"id": text, "p": "p", "ts": 1} for text in texts if text not in letters]
    schema = pa.schema({"id": pa.string(), "p": pa.string(), "ts": pa.int64()})
    return pa.Table.from_pylist(rows, schema), schema, len(letters)


@dataclass
class HourClock(SystemClock):
    """The clock of a writer; each reading is one millisecond later."""

    at_ms: int

    def now_ms(self) -> int:
        """Return the time of day in UTC milliseconds."""
        self.at_ms += 1
        return self.at_ms


@contextmanager
def read_tables(plan: TablesPlan, spec: TableSpec, *, known: object, dead_letters: DeadLetterBox) -> Iterator[Batch]:
    """Read source tables as `open_tables` does, without Spark."""
    texts = []
    for one in plan.ranges:
        query = CompletedUpTo(one.end) if one.begin is None else Incremental(one.begin, one.end)
        scan = TableScan(table=one.loaded, request=ScanRequest(query=query, columns=("number", "text")))
        texts += [row["text"] for row in sorted(scan.to_arrow().to_pylist(), key=lambda row: int(row["number"]))]
    frame, columns, bad = records_of(texts, dead_letters)
    yield Batch(frame=frame, rows=frame.num_rows, bad_records=bad, schema=columns, commits_empty=True)


class TableLanding(Landing):
    """A source table in memory. Each call of `put` is one commit."""

    def __init__(self, by_interval: bool) -> None:
        super().__init__(by_interval)
        self.place, self.written = f"{self.root}/source", count(1)
        self.clock = HourClock(at_ms=0)
        storage = open_storage(self.place)
        self.table = Table.create(
            self.place, name="source", record_key="number", env=Env(storage=storage, clock=self.clock)
        )

    def section(self) -> IngestSpec:
        source = TableSourceSpec(tables={"log": self.place}, deletes="ignore", by_interval=self.by_interval)
        return IngestSpec(source=source, operation="insert", max_bad_records=9)

    def source(self) -> Source[Any]:
        settings = self.section().source
        assert isinstance(settings, TableSourceSpec)
        return TablesSource(
            spec=self.spec(), settings=settings, locations=settings.tables, storage_options={}, reader=read_tables
        )

    def put(self, *records: str, hour: int = 0) -> None:
        begin = int((START + timedelta(hours=hour)).timestamp() * 1000)
        self.clock.at_ms = max(self.clock.at_ms, begin)
        numbers = [f"{next(self.written)}" for _ in records]
        self.table.upsert(pa.table({"number": numbers, "text": list(records)}))


class LogLanding(Landing):
    """The in-memory log."""

    def __init__(self, by_interval: bool) -> None:
        super().__init__(by_interval)
        self.records: list[tuple[datetime, str]] = []

    def section(self) -> IngestSpec:
        return IngestSpec(
            source=LogSpec(topic="orders", by_time=self.by_interval), operation="insert", max_bad_records=9
        )

    def source(self) -> Source[Any]:
        settings = self.section().source
        assert isinstance(settings, LogSpec)
        return LogSource(settings=settings, records=self.records)

    def put(self, *records: str, hour: int = 0) -> None:
        self.records += [(START + timedelta(hours=hour), text) for text in records]


class KafkaLanding(Landing):
    """A topic of two partitions, kept in memory."""

    def __init__(self, by_interval: bool) -> None:
        super().__init__(by_interval)
        self.topic = MemoryTopic("orders", partitions=2)

    def section(self) -> IngestSpec:
        return IngestSpec(
            source=KafkaSourceSpec(topic=self.topic.name, by_time=self.by_interval),
            operation="insert",
            max_bad_records=9,
        )

    def source(self) -> Source[Any]:
        return kafka_source(self.spec(), self.topic)

    def put(self, *records: str, hour: int = 0) -> None:
        for text in records:
            self.topic.append(text, time_ms=int((START + timedelta(hours=hour)).timestamp() * 1000))


@dataclass
class Crashing:
    """A source whose runs crash after the read and before the commit."""

    inner: Source[Any]

    def plan(self, *arguments: Any, **named: Any) -> SourcePlan:
        """Plan as the source does."""
        plan: SourcePlan = self.inner.plan(*arguments, **named)
        return plan

    @contextmanager
    def read(self, plan: Any, **named: Any) -> Iterator[Batch | None]:
        """Read as the source does."""
        with self.inner.read(plan, **named) as batch:
            yield batch

    def verify(self, plan: Any) -> None:
        """Simulate a crash."""
        raise RuntimeError("crash before the commit")


class CustomLanding(Landing):
    """The in-memory log of a class outside of the package, opened by its name."""

    def __init__(self, by_interval: bool) -> None:
        super().__init__(by_interval)
        custom_log.LOGS[self.root] = []

    def section(self) -> IngestSpec:
        source = CustomSourceSpec(class_name=custom_log.NAME, options={"log": self.root}, by_interval=self.by_interval)
        return IngestSpec(source=source, operation="insert", max_bad_records=9)

    def source(self) -> Source[Any]:
        session: Any = None
        environ = {ALLOWED_FUNCTIONS: custom_log.NAME}
        return open_source(SourceContext(session=session, spec=self.spec(), environ=environ, storage_options={}))

    def put(self, *records: str, hour: int = 0) -> None:
        custom_log.LOGS[self.root] += [(START + timedelta(hours=hour), text) for text in records]


def _of_environment() -> dict[str, Callable[[bool], Landing]]:
    """Return the landing of a source outside of this checkout that LAKEHOUSE_TEST_LANDING names; see write-a-source."""
    name = os.environ.get("LAKEHOUSE_TEST_LANDING", "")
    if not name:
        return {}
    module, _, kind = name.partition(":")
    return {"custom landing_of_the_environment": getattr(import_module(module), kind)}


LANDINGS: dict[str, Callable[[bool], Landing]] = {
    "files": FilesLanding,
    "files by names": AscendingLanding,
    "files by notifications": NotifiedLanding,
    "log": LogLanding,
    "table": TableLanding,
    "kafka": KafkaLanding,
    "custom": CustomLanding,
    **_of_environment(),
}
EVERY_SOURCE = pytest.mark.parametrize("kind", LANDINGS)


def test_registered_sources_all_have_settings_and_run_this_suite() -> None:
    # Databases have several tables with one log; tests/databases runs them.
    assert SOURCES.keys() == SOURCE_SPECS.keys() - {MysqlSourceSpec.KIND, PostgresSourceSpec.KIND}
    assert CHECKS.keys() == SOURCE_SPECS.keys()
    assert {name.partition(" ")[0] for name in LANDINGS} - {LogSpec.KIND} == SOURCES.keys()


@EVERY_SOURCE
def test_plan_of_an_empty_source_has_no_units_and_a_reason(kind: str) -> None:
    plan = LANDINGS[kind](False).plan()
    assert (plan.units, plan.checkpoint) == (0, None)
    assert plan.reason


@EVERY_SOURCE
@pytest.mark.parametrize("by_interval", [False, True], ids=["checkpoint", "interval"])
def test_plan_is_equal_for_equal_arguments_and_changes_nothing(kind: str, by_interval: bool) -> None:
    landing = LANDINGS[kind](by_interval)
    landing.put("a", "b")
    landing.put("c")
    plan = landing.plan()
    assert plan.units > 0
    assert landing.plan() == plan
    assert landing.plan().fingerprint == plan.fingerprint
    landing.run()
    assert landing.rows() == Counter(("a", "b", "c"))


@EVERY_SOURCE
def test_plan_of_other_records_has_another_fingerprint(kind: str) -> None:
    landing = LANDINGS[kind](False)
    landing.put("a")
    first = landing.plan()
    landing.put("b")
    second = landing.plan(first.checkpoint)
    assert len({first.fingerprint, second.fingerprint, landing.plan().fingerprint}) == 3


@EVERY_SOURCE
def test_read_returns_only_the_planned_records_if_more_arrive(kind: str) -> None:
    landing = LANDINGS[kind](False)
    landing.put("a", "b")
    plan, source = landing.plan(), landing.source()
    landing.put("c")
    box = DeadLetterBox(storage=open_storage(f"{landing.root}/dead"), folder="run", attempt="1")
    for _ in range(2):
        with source.read(plan, known=KNOWN, dead_letters=box) as batch:
            assert batch is not None
            frame: Any = batch.frame
            assert (frame.column("id").to_pylist(), batch.rows, batch.bad_records) == (["a", "b"], 2, 0)
    source.verify(plan)


@pytest.mark.parametrize("kind", LANDINGS)
@settings(deadline=None, max_examples=20)
@given(steps=st.lists(st.sampled_from(("put", "run", "crash")), max_size=12))
def test_runs_by_checkpoint_write_each_record_once_despite_crashes(kind: str, steps: list[str]) -> None:
    landing = LANDINGS[kind](False)
    names = (f"r{number}" for number in count(1))
    put: list[str] = []
    for step in [*steps, "put", "run"]:
        if step == "put":
            put += (added := [next(names), next(names)])
            landing.put(*added)
        elif step == "run":
            landing.run()
        elif landing.plan(landing.checkpoint()).units:
            with pytest.raises(RuntimeError, match="crash before the commit"):
                landing.run(source=Crashing(inner=landing.source()))
    assert landing.rows() == Counter(put)
    assert landing.run().status is JobStatus.NOTHING_TO_DO


@EVERY_SOURCE
def test_two_concurrent_runs_write_each_record_once(kind: str) -> None:
    landing = LANDINGS[kind](False)
    landing.put("first")
    landing.run()
    landing.put("a", "b")
    rivals = [landing.run]

    class Interrupted(Crashing):
        """A source that lets another run commit between its own read and commit."""

        @contextmanager
        def read(self, plan: Any, **named: Any) -> Iterator[Batch | None]:
            with self.inner.read(plan, **named) as batch:
                if rivals:
                    assert rivals.pop()().status is JobStatus.COMMITTED
                yield batch

        def verify(self, plan: Any) -> None:
            self.inner.verify(plan)

    assert landing.run(source=Interrupted(inner=landing.source())).status is JobStatus.NOTHING_TO_DO
    assert not rivals
    assert landing.rows() == Counter(("first", "a", "b"))


@EVERY_SOURCE
def test_commit_holds_the_checkpoint_and_the_metadata_of_the_plan(kind: str) -> None:
    landing = LANDINGS[kind](False)
    landing.put("a", "b")
    plan = landing.plan()
    landing.run()
    extra = landing.extra()
    assert extra[CHECKPOINT] == plan.checkpoint
    assert plan.metadata
    assert plan.metadata.items() <= extra.items()
    assert landing.plan(plan.checkpoint).units == 0


@EVERY_SOURCE
def test_runs_by_interval_read_their_interval_once_and_have_no_checkpoint(kind: str) -> None:
    landing = LANDINGS[kind](True)
    landing.put("a", hour=0)
    landing.put("b", "c", hour=1)
    report = landing.run(1)
    assert report.rows == 2
    assert landing.rows() == Counter(("b", "c"))
    assert landing.extra()[INTERVAL] == interval_text(interval(1))
    assert CHECKPOINT not in landing.extra()
    assert landing.run(1).status is JobStatus.NOTHING_TO_DO
    assert landing.run(0).rows == 1
    assert landing.run(2).status is JobStatus.NOTHING_TO_DO
    assert landing.rows() == Counter(("a", "b", "c"))


@EVERY_SOURCE
def test_full_refresh_plans_all_records_and_the_same_checkpoint(kind: str) -> None:
    landing = LANDINGS[kind](False)
    landing.put("a", "b")
    first = landing.plan()
    assert landing.plan(first.checkpoint, full_refresh=True) == first
    landing.run()
    assert landing.run(full_refresh=True).rows == 2
    assert landing.rows() == Counter({"a": 2, "b": 2})
    assert landing.run().status is JobStatus.NOTHING_TO_DO


@EVERY_SOURCE
def test_bad_records_are_counted_and_kept_in_the_folder_that_the_commit_names(kind: str) -> None:
    landing = LANDINGS[kind](False)
    landing.put("a", f"{BAD} 1", f"{BAD} 2")
    report = landing.run()
    assert (report.rows, report.bad_records) == (1, 2)
    letters = open_storage(landing.extra()[DEAD_LETTERS])
    assert sorted(letters.get(file.path).decode() for file in letters.list("")) == [f"{BAD} 1", f"{BAD} 2"]


@EVERY_SOURCE
def test_plan_refuses_an_unreadable_checkpoint_with_its_value(kind: str) -> None:
    landing = LANDINGS[kind](False)
    landing.put("a")
    with pytest.raises(CorruptTableError, match=r"checkpoint.*'nonsense'"):
        landing.plan("nonsense")


@EVERY_SOURCE
def test_plan_by_interval_without_an_interval_is_refused_with_the_setting(kind: str) -> None:
    landing = LANDINGS[kind](True)
    value = {"files": r"landing/\{start:", "log": "orders", "table": "/source", "kafka": "orders", "custom": ""}[
        kind.partition(" ")[0]
    ]
    with pytest.raises(UserError, match=f"{value}.* is read by data interval, and this run has none"):
        landing.source().plan(None, None, full_refresh=False)


@EVERY_SOURCE
def test_settings_of_a_source_round_trip_through_yaml(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCE_SPECS, LogSpec.KIND, LogSpec)
    section = LANDINGS[kind](True).section()
    mapping = ingest_mapping(section)
    lines = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in mapping.items())
    spec = parse_spec(f"table: t\nlocation: x\nrecord_key: id\ningest:\n{lines}", source="t.yaml")
    assert spec.ingest == section
    assert mapping.get("source", "files") == kind.partition(" ")[0]


def test_spec_accepts_only_the_setting_names_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCE_SPECS, LogSpec.KIND, LogSpec)
    head = "table: t\nlocation: x\nrecord_key: id\ningest:\n"
    spec = parse_spec(f"{head}  source: log\n  topic: orders\n", source="t.yaml")
    assert spec.ingest == IngestSpec(source=LogSpec(topic="orders"))
    with pytest.raises(UserError, match=r"t\.yaml:6: unknown name 'path' in ingest"):
        parse_spec(f"{head}  source: log\n  path: landing\n", source="t.yaml")
    with pytest.raises(UserError, match=r"t\.yaml:5: unknown name 'topic' in ingest"):
        parse_spec(f"{head}  topic: orders\n", source="t.yaml")
    with pytest.raises(UserError, match=r"ingest needs 'path'"):
        parse_spec(f"{head}  operation: insert\n", source="t.yaml")
    with pytest.raises(
        UserError, match=r"t\.yaml:5: source: 'logs' is not one of files, table, kafka, mysql, postgres, custom, log"
    ):
        parse_spec(f"{head}  source: logs\n", source="t.yaml")


def test_open_source_chooses_the_source_by_the_kind_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    landing = LogLanding(False)
    monkeypatch.setitem(SOURCES, LogSpec.KIND, lambda context: landing.source())
    session: Any = None
    context = SourceContext(session=session, spec=landing.spec(), environ={}, storage_options={})
    assert open_source(context) == landing.source()
    with pytest.raises(UserError, match="table t declares no ingestion"):
        open_source(replace(context, spec=replace(landing.spec(), ingest=None)))
