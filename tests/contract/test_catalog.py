"""Contract of the catalog on SQLite and PostgreSQL: tables, specs, policies, leases and the history of runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from lakehouse import load_catalog
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError, UserError
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.catalog.run_history import Decision, RunOutcome, RunState
from lakehouse.platform.catalog.spec_sync import SpecState, synchronise
from lakehouse.spec.table.folder import read_specs
from lakehouse.spec.table.table_spec import TableSpec, parse_spec

_numbers = itertools.count()


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_760_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000

    def sleep(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)


@pytest.fixture(params=("sqlite", "postgresql"))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of an empty SQLite or PostgreSQL database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/catalog.db"
        return
    server = make_url(request.getfixturevalue("postgresql_url"))
    name = f"catalog_{next(_numbers)}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    mine = server.set(database=name).render_as_string(hide_password=False)
    with pytest.raises(UserError, match="lakehouse catalog upgrade"):
        Database(mine)
    from lakehouse.platform.catalog.connect import upgrade

    engine = create_engine(mine)
    upgrade(engine)
    engine.dispose()
    yield mine
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def catalog(url: str, clock: Clock) -> Iterator[Catalog]:
    with load_catalog(url, clock=clock) as opened:
        yield opened


def spec(location: Path, name: str = "sales.orders", **more: object) -> TableSpec:
    document = f"table: {name}\nlocation: {location}\nrecord_key: id\npartition_by: day\nordering: ts\n"
    document += "".join(f"{key}: {value}\n" for key, value in more.items())
    return parse_spec(document, source="test")


ROWS = pa.table({"id": ["a", "b"], "day": ["1", "2"], "ts": [1, 1], "v": [10, 20]})


def test_table_can_be_created_listed_loaded_and_dropped(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.create_table(spec(tmp_path / "orders"))
    table.upsert(ROWS)
    assert catalog.list_namespaces() == ("sales",)
    assert [entry.identifier for entry in catalog.list_tables()] == ["sales.orders"]
    assert catalog.load_table("sales.orders").scan().count() == 2
    catalog.drop_table("sales.orders")
    assert catalog.list_tables() == ()
    assert Table.open(str(tmp_path / "orders")).scan().count() == 2
    catalog.register_table("sales.orders", str(tmp_path / "orders"))
    catalog.drop_table("sales.orders", purge=True)
    assert not (tmp_path / "orders").exists() or not list((tmp_path / "orders").rglob("*.parquet"))


def test_existing_table_is_registered_with_a_spec_from_its_properties(catalog: Catalog, tmp_path: Path) -> None:
    options = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}
    Table.create(
        str(tmp_path / "t"),
        name="t",
        record_key=["id"],
        partition_by=["day"],
        ordering="ts",
        table_type="MERGE_ON_READ",
        options=options,
    ).upsert(ROWS)
    assert catalog.register_table("default.t", str(tmp_path / "t")).scan().count() == 2
    found = catalog.entry("t").spec
    assert found.record_key == ("id",) and found.ordering == ("ts",) and found.type == "MERGE_ON_READ"
    assert found.index is not None and found.index.buckets == 3
    with pytest.raises(UserError, match=r"is already in this catalog, as default\.t"):
        catalog.register_table("default.other", str(tmp_path / "t"))
    with pytest.raises(UserError, match="already"):
        catalog.register_table("default.t", str(tmp_path / "u"))


def test_unknown_and_invalid_names_raise_user_error_with_the_nearest_name(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_table(spec(tmp_path / "orders"))
    with pytest.raises(UserError, match=r"no table sales\.order in this catalog\. Did you mean 'sales\.orders'"):
        catalog.load_table("sales.order")
    with pytest.raises(UserError, match="drop them first"):
        catalog.drop_namespace("sales")
    with pytest.raises(UserError, match="letters, digits"):
        catalog.create_namespace("a b")
    with pytest.raises(UserError, match="already"):
        catalog.create_namespace("sales")


def test_update_spec_keeps_all_versions_and_applies_the_last_one(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_table(spec(tmp_path / "orders"))
    changed = spec(tmp_path / "orders", services="{compaction: {max_delta_commits: 3}}")
    assert catalog.update_spec(changed, author="ada") == 2
    assert catalog.update_spec(changed) == 2
    assert [version for version, _ in catalog.specs("sales.orders")] == [1, 2]
    assert catalog.settings("sales.orders", "compaction").options == {"hoodie.compact.inline.max.delta.commits": "3"}
    with pytest.raises(UserError, match="is at"):
        catalog.update_spec(spec(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match="record_key"):
        catalog.update_spec(parse_spec(f"table: sales.orders\nlocation: {tmp_path}/orders\nrecord_key: ts", source="x"))


def test_concurrent_registrations_create_one_entry(catalog: Catalog, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        entries = list(pool.map(lambda _: catalog.ensure_table(spec(tmp_path / "orders")), range(4)))
    assert len({entry.id for entry in entries}) == 1
    assert catalog.ensure_table(spec(tmp_path / "orders", type="COPY_ON_WRITE")).spec_version == 1
    changed = spec(tmp_path / "orders", services="{compaction: {max_delta_commits: 3}}")
    assert catalog.ensure_table(changed).spec_version == 2


def test_settings_are_inherited_from_namespace_to_table_to_partitions(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_table(spec(tmp_path / "orders"))
    catalog.set_policy("sales", "compaction", {"max_delta_commits": 9, "trigger": "NUM_OR_TIME"})
    catalog.set_policy("sales.orders", "compaction", {"max_delta_commits": 4})
    catalog.set_policy("sales.orders", "compaction", {"enabled": False}, pattern="day=2026-.*")
    settings = catalog.settings("sales.orders", "compaction")
    assert settings.options == {
        "hoodie.compact.inline.max.delta.commits": "4",
        "hoodie.compact.inline.trigger.strategy": "NUM_OR_TIME",
    }
    assert settings.enabled
    assert not catalog.settings("sales.orders", "compaction", partition="day=2026-01-31").enabled
    assert catalog.settings("sales.orders", "compaction", partition="day=2025-01-31").enabled
    assert catalog.remove_policy("sales.orders", "compaction")
    assert not catalog.remove_policy("sales.orders", "compaction")
    assert catalog.settings("sales.orders", "compaction").options["hoodie.compact.inline.max.delta.commits"] == "9"
    loaded = catalog.load_table("sales.orders", options={"hoodie.compact.inline.max.delta.commits": "2"})
    assert loaded.services.policies.compaction.max_delta_commits == 2
    assert loaded.services.policies.compaction.trigger == "NUM_OR_TIME"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_delta_comits": 3}, "unknown setting 'max_delta_comits'. Did you mean 'max_delta_commits'"),
        ({"deadline": "soon"}, "'soon' is not a duration"),
        ({"enabled": "maybe"}, "neither true nor false"),
        ({"max_delta_commits": "many"}, "many"),
    ],
)
def test_policy_with_an_unknown_setting_or_scope_is_refused(
    catalog: Catalog, settings: dict[str, object], message: str
) -> None:
    catalog.create_namespace("sales")
    with pytest.raises(UserError, match=message):
        catalog.set_policy("sales", "compaction", settings)
    with pytest.raises(UserError, match="neither a namespace nor"):
        catalog.set_policy("sale", "compaction", {})
    with pytest.raises(UserError, match="needs a table"):
        catalog.set_policy("sales", "compaction", {}, pattern="a")


def test_lease_has_one_holder_and_fencing_tokens_grow(catalog: Catalog, clock: Clock) -> None:
    leases = catalog.leases
    with ThreadPoolExecutor(8) as pool:
        acquired = [lease for lease in pool.map(lambda n: leases.acquire("k", f"run{n}", 1000), range(8)) if lease]
    assert len(acquired) == 1
    (first,) = acquired
    clock.ms += 900
    assert leases.renew(first, 1000).expires_ms == clock.ms + 1000
    clock.ms += 999
    assert leases.acquire("k", "other", 1000) is None
    clock.ms += 1
    second = leases.acquire("k", "other", 1000)
    assert second is not None and second.token > first.token
    with pytest.raises(RetryableError, match="other took over the lease"):
        leases.renew(first, 1000)
    leases.release(first)
    assert leases.holder("k") == second
    again = leases.acquire("k", "other", 1000)
    assert again is not None and again.token > second.token, (
        "a retry of the same run must acquire the lease with a new token"
    )
    leases.release(again)
    assert leases.holder("k") is None
    third = leases.acquire("k", "third", 1000)
    assert third is not None and third.token > again.token


def test_requests_are_closed_by_a_started_run_and_reopened_if_it_fails(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_table(spec(tmp_path / "orders"))
    table, history = catalog.entry("sales.orders").id, catalog.history
    history.request(table, "clustering", {"partitions": ["1"]}, requested_by="ada")
    (request,) = history.open_requests(table, "clustering")
    assert request.parameters == {"partitions": ["1"]} and request.requested_by == "ada"
    assert history.start("run-1", table, "clustering", {"bytes": 100}) == 1
    assert history.open_requests(table, "clustering") == ()
    assert history.running("clustering") == ((table, "clustering"),)
    history.end("run-1", table, "clustering", RunOutcome(state=RunState.FAILED, error="disk full"))
    assert len(history.open_requests(table, "clustering")) == 1
    assert history.start("run-1", table, "clustering", {"bytes": 100}) == 2
    committed = RunOutcome(state=RunState.COMMITTED, instant="20260101", actual={"bytes": 90})
    history.end("run-1", table, "clustering", committed)
    (run,) = history.runs(table, "clustering")
    assert (run.state, run.tries, run.actual, run.predicted) == (RunState.COMMITTED, 2, {"bytes": 90}, {"bytes": 100})
    assert history.open_requests(table, "clustering") == () and history.running() == ()
    assert history.bytes_since(["clustering", "clean"], 0) == {"clustering": 90, "clean": 0}


def test_run_stays_committed_if_a_later_try_has_nothing_to_do(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_table(spec(tmp_path / "orders"))
    table, history = catalog.entry("sales.orders").id, catalog.history
    history.start("run-1", table, "compaction", {})
    committed = RunOutcome(state=RunState.COMMITTED, instant="20260101", actual={"bytes": 90})
    history.end("run-1", table, "compaction", committed, try_number=1)
    assert history.start("run-1", table, "compaction", {}) == 2
    nothing = RunOutcome(state=RunState.NOTHING_TO_DO, actual={"bytes": 0})
    history.end("run-1", table, "compaction", nothing, try_number=2)
    (run,) = history.runs(table, "compaction")
    assert (run.state, run.instant) == (RunState.COMMITTED, "20260101")


def test_history_keeps_the_newest_decisions(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_table(spec(tmp_path / "orders"))
    table = catalog.entry("sales.orders").id
    for number in range(60):
        decision = Decision(due=bool(number % 2), chosen=False, reason=f"{number}", inputs={"n": number})
        catalog.history.decide({(table, "clean"): decision})
    found = catalog.history.decisions(table, "clean", limit=100)
    assert [decision.reason for decision in found] == [str(n) for n in range(59, 9, -1)]
    assert found[0].inputs == {"n": 59} and found[0].due


def test_concurrent_edits_of_one_policy_are_all_kept(catalog: Catalog) -> None:
    catalog.create_namespace("sales")
    names = ("max_delta_commits", "max_delta_seconds", "target_io_mb", "target_partitions")
    catalog.set_policy("sales", "compaction", {"priority": 2})
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: catalog.set_policy("sales", "compaction", {name: 7}), names))
    catalog.create_namespace("x", exist_ok=True)
    with catalog.database.session() as session:
        stored = session.execute(text("SELECT settings, version FROM lakehouse_policies")).one()
    assert stored.version == 5
    for name in names:
        assert name in str(stored.settings)


def test_concurrent_synchronisations_store_each_version_once(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    text = f"table: sales.orders\nlocation: {tmp_path}/orders\nrecord_key: id\nservices: {{clean: {{priority: %s}}}}\n"
    for number, rounds in enumerate((SpecState.ENTERED, SpecState.CHANGED), 1):
        path.write_text(text % number)
        folder = read_specs([path])
        once = partial(synchronise, catalog, folder, author="ada", enter=True)
        with ThreadPoolExecutor(4) as pool:
            found = [status for (status,) in pool.map(lambda run: run(), [once] * 4)]
        assert {status.version for status in found} == {number}
        assert {status.state for status in found} <= {rounds, SpecState.IN_FORCE}
    assert [(version.version, version.source) for version in catalog.spec_history("sales.orders")] == [
        (1, str(path)),
        (2, str(path)),
    ]


def test_migrated_schema_equals_the_models(catalog: Catalog) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from lakehouse.platform.catalog.models import Base

    with catalog.database.engine.connect() as connection:
        mine = [
            change
            for change in compare_metadata(MigrationContext.configure(connection), Base.metadata)
            if "lakehouse_" in str(change)
        ]
    assert mine == []
    assert catalog.database.upgrade() == "0007"
