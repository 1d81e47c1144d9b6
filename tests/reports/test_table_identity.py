"""A location is not an identity: a registered table is compared with the table that stands at its location."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import text

from lakehouse.cli.main import main
from lakehouse.core.env import Env
from lakehouse.core.format.properties import parse_properties, table_checksum
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_properties import PROPERTIES, assign_table_id, update_properties
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.table_identity import TABLE_ID, is_name_of
from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.platform.catalog.declared_tables import create_declared_table
from lakehouse.platform.ingest.check import check_ingest
from lakehouse.platform.services.fleet_pass import PassSettings, run_pass
from lakehouse.platform.services.run import run_tables
from lakehouse.platform.services.service_run import runner
from lakehouse.spec.contracts.job import JobStatus
from lakehouse.spec.job_command import IngestCommand, ServiceCommand
from lakehouse.spec.table.table_spec import TableSpec, parse_spec
from tests.support.tables import make_env

NAME = "sales.orders"
ROWS = pa.table({"id": ["a", "b"], "day": ["2026-01-01", "2026-01-02"], "ts": [1, 1]})
OTHERS = pa.table({"id": ["x"], "day": ["2020-01-01"], "ts": [9]})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the location of the table `sales.orders`, and configure a catalog."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    return tmp_path / "lake" / "orders"


@pytest.fixture
def catalog(place: Path) -> Iterator[Catalog]:
    """Return the catalog with the table `sales.orders`, which has two rows."""
    with load_catalog() as opened:
        opened.create_table(spec_of(place)).insert(ROWS)
        yield opened


def spec_of(place: Path, name: str = NAME, key: str = "id", more: str = "") -> TableSpec:
    document = f"table: {name}\nlocation: {place}\nrecord_key: {key}\npartition_by: day\nordering: ts\n{more}"
    return parse_spec(document, source="test")


def made(place: Path, name: str = NAME, key: str = "id") -> Table:
    """Return a new table with the row of another team."""
    table = Table.create(str(place), name=name, record_key=key, partition_by="day", ordering="ts")
    table.insert(OTHERS)
    return table


def replaced(place: Path, **declared: Any) -> Table:
    """Delete the table at a location, and return one that another team creates there."""
    shutil.rmtree(place)
    return made(place, **declared)


def files_of(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def properties_of(place: Path) -> dict[str, str]:
    return parse_properties((place / PROPERTIES).read_bytes())


def without_id(place: Path) -> None:
    """Remove the id from the properties, as in a table that Hudi or an earlier version created."""
    update_properties(Env(storage=LocalStorage(str(place))), {TABLE_ID: None})


def forget_identities(catalog: Catalog) -> None:
    """Make the entries of a catalog those of an earlier version."""
    with catalog.database.session() as session:
        session.execute(text("UPDATE lakehouse_tables SET identity = NULL, uid = NULL"))


def command(*words: str) -> int:
    return main([*words, "--table", NAME])


DOORS = (
    ("table", "read"),
    ("table", "describe"),
    ("table", "files"),
    ("table", "validate"),
    ("table", "delete", "--where", "ts > 0"),
    ("table", "drop", "--purge"),
    ("timeline", "show"),
    ("ttl", "run", "--force", "--option", "lakehouse.ttl.creation.age=1s"),
    ("ttl", "plan"),
    ("clean", "run", "--force"),
    ("archive", "run", "--force"),
    ("compaction", "run", "--force"),
    ("clustering", "run", "--force"),
    ("clustering", "run", "--check"),
    ("orphans", "run", "--force"),
    ("metadata", "rebuild"),
    ("rollback", "failed"),
    ("savepoint", "create"),
    ("restore", "run", "--to", "20260101000000000"),
    ("publish", "plan"),
    ("ingest", "run"),
    ("ingest", "run", "--check"),
)


@pytest.mark.parametrize("other", [{}, {"name": "crm.customers"}], ids=["same name", "other name"])
def test_registered_table_is_refused_by_every_command_after_it_was_replaced(
    other: dict[str, str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """apache/iceberg#14979 and StarRocks/starrocks#3078: commits go to a recreated table."""
    more = "services: {publish: {database: shown, table: orders}}\ningest: {path: /landing, format: json}\n"
    with load_catalog() as catalog:
        catalog.create_table(spec_of(place, more=more)).insert(ROWS)
        before = properties_of(place)[TABLE_ID]
        now = replaced(place, **other).config.identity
        files = files_of(place)
        for words in DOORS:
            assert command(*words) == 64, words
            shown = "".join(capsys.readouterr())
            assert f"id {before} is recorded, and {now.id} is stored there" in shown, words
            assert ("name 'sales.orders' is recorded, and 'crm.customers' is stored there" in shown) == bool(other)
            assert f"`lakehouse table accept --table {NAME}` registers it" in shown, words
            assert files_of(place) == files, words
        assert catalog.table_exists(NAME)


def test_services_skip_a_replaced_table_and_work_on_others(catalog: Catalog, place: Path) -> None:
    """apache/iceberg-python#2890: a maintenance job acts on the table that was created again under the name."""
    catalog.create_table(spec_of(place.parent / "riders", "sales.riders")).insert(ROWS)
    now, files = replaced(place).config.identity, files_of(place)
    job = ServiceCommand(service="clean", table=NAME, force=True)
    failed, done = run_tables(catalog, [NAME, "sales.riders"], job, runner("clean"))
    assert failed.status is JobStatus.FAILED and failed.error is not None
    assert now.id in failed.error.message and not failed.error.retryable
    assert done.status is not JobStatus.FAILED
    result = run_pass(catalog, PassSettings())
    choices = [choice for choice in result.choices if choice.assessed.table == NAME]
    assert choices and not any(choice.chosen for choice in choices)
    state = catalog.states.of([catalog.entry(NAME).id])[catalog.entry(NAME).id]
    assert state.error is not None and now.id in state.error
    assert files_of(place) == files


def test_catalog_from_a_backup_refuses_tables_that_took_their_locations_since(
    catalog: Catalog, place: Path, tmp_path: Path
) -> None:
    """apache/iceberg#10779: a drop with purge deletes the files of another table at the location."""
    with sqlite3.connect(tmp_path / "home" / "catalog.db") as source, sqlite3.connect(tmp_path / "old.db") as backup:
        source.backup(backup)
    catalog.drop_table(NAME, purge=True)
    other = made(place, name="crm.customers")
    with load_catalog(f"sqlite:///{tmp_path}/old.db") as restored:
        with pytest.raises(UserError, match=other.config.identity.id):
            restored.load_table(NAME)
        with pytest.raises(UserError, match="is not the one that the catalog registered"):
            restored.drop_table(NAME, purge=True)
        with pytest.raises(UserError, match="is not the one that the catalog registered"):
            restored.ensure_table(spec_of(place))
        assert other.scan().count() == 1
        assert restored.drop_table(NAME) == ()
    assert Table.open(str(place)).scan().count() == 1


def test_table_from_a_backup_of_the_storage_is_accepted_at_its_location(catalog: Catalog, place: Path) -> None:
    """apache/iceberg#264: the id identifies a table, and does not change once it is assigned."""
    backup = shutil.copytree(place, place.parent / "backup")
    catalog.load_table(NAME).insert(OTHERS)
    shutil.rmtree(place)
    backup.rename(place)
    assert catalog.load_table(NAME).scan().count() == 2
    assert catalog.ensure_table(spec_of(place)).spec_version == 1


def test_accepted_table_takes_the_entry_and_loses_the_requests_for_the_table_before(
    catalog: Catalog, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """apache/iceberg#12228: a registration that may replace the table must be asked for."""
    entry = catalog.entry(NAME)
    catalog.set_policy(NAME, "clean", {"commits_retained": 7})
    catalog.history.request(entry.id, "ttl", {"partitions": ["2026-01-01"]}, requested_by="ada")
    other = replaced(place).config.identity
    assert command("table", "accept", "--output", "json") == 0
    assert json.loads(capsys.readouterr().out)["table_id"] == other.id
    assert catalog.load_table(NAME).scan().count() == 1
    assert catalog.history.open_requests(entry.id, "ttl") == ()
    assert catalog.settings(NAME, "clean").options == {"hoodie.clean.commits.retained": "7"}
    assert (catalog.entry(NAME).id, catalog.entry(NAME).identity) == (entry.id, other)
    assert command("clean", "run", "--force") == 0
    assert command("table", "accept") == 0


def test_accept_refuses_a_table_with_other_keys_and_names_a_way_that_works(
    catalog: Catalog, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """apache/iceberg#12228: the table that replaces another one may have another schema."""
    replaced(place, key="ts")
    assert command("table", "accept") == 64
    assert f"`lakehouse table register --table {NAME} --location {place}`" in capsys.readouterr().err
    assert command("table", "drop") == 0
    assert command("table", "register", "--location", str(place)) == 0
    assert catalog.load_table(NAME).scan().count() == 1


def test_renamed_table_is_refused_until_it_is_accepted(catalog: Catalog, place: Path) -> None:
    """apache/hudi#4668: ALTER TABLE RENAME changes the stored name, and jobs with the name before fail."""
    changes = {"hoodie.table.name": "invoices", "hoodie.table.checksum": str(table_checksum("default", "invoices"))}
    update_properties(Env(storage=LocalStorage(str(place))), changes)
    with pytest.raises(UserError, match=r"name 'sales\.orders' is recorded, and 'invoices' is stored there"):
        catalog.load_table(NAME)
    assert catalog.accept_table(NAME).scan().count() == 2
    assert catalog.ensure_table(spec_of(place)).spec_version == 1
    assert command("table", "read") == 0


def test_copy_of_a_registered_table_is_refused_unless_it_gets_an_id_of_its_own(
    catalog: Catalog, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """apache/iceberg#12228: a second registration of one table must be requested."""
    copy = shutil.copytree(place, place.parent / "copy")
    words = ["table", "register", "--table", "test.orders", "--location", str(copy)]
    assert main(words) == 64
    message = capsys.readouterr().err
    assert f"has the id {properties_of(place)[TABLE_ID]} of {NAME} at {place}" in message and "--new-id" in message
    with pytest.raises(UserError, match="it is a copy of that table"):
        catalog.ensure_table(spec_of(copy, "orders"))
    assert main([*words, "--new-id"]) == 0
    assert properties_of(copy)[TABLE_ID] != properties_of(place)[TABLE_ID]
    assert {**properties_of(copy), TABLE_ID: ""} == {**properties_of(place), TABLE_ID: ""}
    assert catalog.load_table("test.orders").scan().count() == catalog.load_table(NAME).scan().count() == 2


def test_copy_in_place_of_a_registered_table_is_accepted_with_an_id_of_its_own(catalog: Catalog, place: Path) -> None:
    """apache/iceberg#12228: a copy of one registered table took the location of another one."""
    riders = place.parent / "riders"
    catalog.create_table(spec_of(riders, "sales.riders"))
    shutil.rmtree(riders)
    shutil.copytree(place, riders)
    with pytest.raises(UserError, match="it is a copy of that table"):
        catalog.accept_table("sales.riders")
    assert catalog.accept_table("sales.riders", new_id=True).scan().count() == 2
    assert catalog.load_table(NAME).scan().count() == 2


def test_moved_table_is_registered_at_its_new_location_after_its_entry_was_dropped(
    catalog: Catalog, place: Path
) -> None:
    """apache/hudi#4668: a table is moved and its jobs continue."""
    moved = place.parent / "moved"
    place.rename(moved)
    with pytest.raises(UserError, match=r"drop sales\.orders first, without --purge"):
        catalog.register_table("sales.moved", str(moved))
    catalog.drop_table(NAME)
    assert catalog.register_table(NAME, str(moved)).scan().count() == 2


def test_table_is_not_registered_twice_by_another_path_to_its_location(catalog: Catalog, place: Path) -> None:
    """apache/iceberg#10779: two entries with one location."""
    (place.parent / "link").symlink_to(place)
    with pytest.raises(UserError, match=r"of sales\.orders at"):
        catalog.register_table("sales.again", str(place.parent / "link"))


def test_id_stays_through_schema_changes_indexes_and_services(catalog: Catalog, place: Path) -> None:
    """delta-io/delta-rs#3274: a schema change gives the table a new id, and streams take it for another table."""
    recorded, table = catalog.entry(NAME).identity, catalog.load_table(NAME)
    table.insert(OTHERS.append_column("added", pa.array(["x"])))
    table.services.create_index("ts", name="by_ts")
    table.services.index.run(force=True)
    table.metadata.rebuild()
    first = table.timeline.instants[0].requested
    table.savepoint(first)
    table.restore(first)
    assert catalog.load_table(NAME).config.identity == recorded


@pytest.mark.parametrize("stored", [True, False], ids=["table with id", "table without id"])
@pytest.mark.parametrize("write", ["service run", "spec"])
def test_entry_of_an_earlier_version_adopts_the_identity_with_its_next_write(
    stored: bool, write: str, catalog: Catalog, place: Path
) -> None:
    """apache/iceberg#652: tables from before the ids must stay usable."""
    forget_identities(catalog)
    if not stored:
        without_id(place)
    before = properties_of(place)
    assert catalog.load_table(NAME).scan().count() == 2
    assert catalog.entry(NAME).identity is None and properties_of(place) == before
    if write == "spec":
        catalog.ensure_table(spec_of(place))
    else:
        assert command("clean", "run") == 0
    adopted = catalog.entry(NAME).identity
    assert adopted is not None and adopted.id == properties_of(place)[TABLE_ID]
    assert {**before, TABLE_ID: adopted.id} == properties_of(place)
    replaced(place)
    with pytest.raises(UserError, match=adopted.id):
        catalog.load_table(NAME)


@pytest.mark.parametrize("other", [{"name": "crm.customers"}, {"name": "crm.orders"}, {"key": "ts"}], ids=str)
@pytest.mark.parametrize("door", ["load", "adopt", "purge"])
def test_entry_of_an_earlier_version_refuses_another_name_or_key(
    other: dict[str, str], door: str, catalog: Catalog, place: Path
) -> None:
    """apache/iceberg#652: a missing id must not turn the comparison off."""
    forget_identities(catalog)
    replaced(place, **other)
    doors: dict[str, Callable[[], object]] = {
        "load": lambda: catalog.load_table(NAME),
        "adopt": lambda: catalog.ensure_table(spec_of(place)),
        "purge": lambda: catalog.drop_table(NAME, purge=True),
    }
    with pytest.raises(UserError, match=r"is not the one|record_key"):
        doors[door]()
    assert catalog.entry(NAME).identity is None
    assert Table.open(str(place)).scan().count() == 1


def test_table_that_was_registered_under_another_name_by_an_earlier_version_stays_usable(
    place: Path, tmp_path: Path
) -> None:
    """apache/hudi#4668: the name in the catalog and the stored name differ."""
    made(place, name="orders_2019")
    with load_catalog() as catalog:
        catalog.register_table(NAME, str(place))
        forget_identities(catalog)
        assert catalog.load_table(NAME).scan().count() == 1
        assert command("clean", "run") == 0
        identity = catalog.entry(NAME).identity
        assert identity is not None and (identity.name, identity.id) == ("orders_2019", properties_of(place)[TABLE_ID])
        assert catalog.ensure_table(spec_of(place)).identity == identity


def test_registration_assigns_one_id_to_a_table_of_hudi_and_changes_nothing_else(place: Path) -> None:
    """apache/iceberg#652: two processes assign an id to a table without one."""
    made(place, name="orders")
    without_id(place)
    before, files = properties_of(place), files_of(place)

    # The schema is upgraded first: Alembic is not thread-safe.
    catalogs = [load_catalog(f"sqlite:///{place.parent}/catalog-{number}.db") for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda catalog: catalog.register_table(NAME, str(place)), catalogs))
    identities = {catalog.entry(NAME).identity for catalog in catalogs}
    (assigned,) = {identity.id for identity in identities if identity is not None}
    assert properties_of(place) == {**before, TABLE_ID: assigned}
    assert properties_of(place)["hoodie.table.checksum"] == str(table_checksum("default", "orders"))
    assert {**files_of(place), PROPERTIES: b""} == {**files, PROPERTIES: b""}
    assert Table.create(str(place), name="orders", record_key="id", exist_ok=True).config.identity.id == assigned


class InterleavedStorage(MemoryStorage):
    """A store in which another writer acts between the read and the replacement of a file."""

    def __init__(self, act: Callable[[Storage, int], None]) -> None:
        super().__init__()
        self.act, self.calls = act, 0

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Let the other writer act first."""
        self.calls += 1
        self.act(self, self.calls)
        return super().replace_if(path, data, tag)


def interleaved(act: Callable[[Storage, int], None]) -> Env:
    env = make_env(storage=InterleavedStorage(act))
    env.storage.put(PROPERTIES, b"hoodie.table.name=orders\nhoodie.table.version=9\n")
    return env


def test_assigned_id_loses_no_concurrent_change_of_another_property() -> None:
    """apache/iceberg#652: the table is written by a concurrent writer while its id is assigned."""

    def act(storage: Storage, call: int) -> None:
        if call == 1:
            update_properties(make_env(storage=storage), {"hoodie.table.metadata.partitions": "files"})

    env = interleaved(act)
    assigned = assign_table_id(env)
    stored = parse_properties(env.storage.get(PROPERTIES))
    assert stored[TABLE_ID] == assigned and stored["hoodie.table.metadata.partitions"] == "files"


def test_assigned_id_is_that_of_the_concurrent_call_that_stored_one_first() -> None:
    """apache/iceberg#652: the table gets an id from a concurrent writer after it was loaded."""
    first: list[str] = []

    def act(storage: Storage, call: int) -> None:
        if call == 1:
            update_properties(make_env(storage=storage), {TABLE_ID: "first"})
            first.append("first")

    env = interleaved(act)
    assert [assign_table_id(env)] == first
    assert assign_table_id(env, replaces="older") == "first"
    assert assign_table_id(env, replaces="first") not in ("first", "")


def test_assignment_of_an_id_waits_for_hudi_which_deletes_and_writes_the_properties() -> None:
    """apache/hudi#8462: the properties are absent for a moment while Hudi changes them."""
    env = interleaved(lambda storage, call: None)
    data = env.storage.get(PROPERTIES)
    env.storage.delete(PROPERTIES)
    with pytest.raises(RetryableError, match="run the command again"):
        assign_table_id(env)
    env.storage.put(PROPERTIES, data)
    assert parse_properties(env.storage.get(PROPERTIES)).get(TABLE_ID) is None
    assert assign_table_id(env) == parse_properties(env.storage.get(PROPERTIES))[TABLE_ID]


def test_table_that_cannot_be_written_is_registered_without_id(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apache/iceberg#652: a table without id that only others may write."""
    made(place)
    without_id(place)

    def refused(self: object, path: str, data: bytes, tag: str | None) -> str | None:
        raise UserError(f"cannot access {path!r}")

    with load_catalog() as catalog:
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "replace_if", refused)
            catalog.register_table(NAME, str(place))
            with pytest.raises(UserError, match="cannot access"):
                catalog.accept_table(NAME, new_id=True)
        identity = catalog.entry(NAME).identity
        assert identity is not None and (identity.name, identity.id) == (NAME, "")
        assert TABLE_ID not in properties_of(place)
        assert command("clean", "run") == 0
        assert catalog.entry(NAME).identity == Table.open(str(place)).config.identity


def test_id_that_the_catalog_cannot_store_is_refused_and_replaced_by_a_new_one(place: Path) -> None:
    """apache/iceberg#264: the id is a stored text, which another writer may have set."""
    made(place)
    update_properties(Env(storage=LocalStorage(str(place))), {TABLE_ID: "x" * 1000})
    with load_catalog() as catalog:
        with pytest.raises(UserError, match="an id of 1000 characters"):
            catalog.register_table(NAME, str(place))
        assert catalog.register_table(NAME, str(place), new_id=True).scan().count() == 1


def test_version_6_table_is_registered_by_name_and_key_and_its_properties_stay(place: Path) -> None:
    """apache/iceberg#652: a table without id that is read and not written, because of its change logs."""
    stored = {"hoodie.table.version": "6", "hoodie.timeline.layout.version": "1", TABLE_ID: None}
    stored |= {"hoodie.table.cdc.enabled": "true", "hoodie.table.type": "MERGE_ON_READ"}
    made(place)
    update_properties(Env(storage=LocalStorage(str(place))), stored)
    data = (place / PROPERTIES).read_bytes()
    with load_catalog() as catalog:
        assert catalog.register_table(NAME, str(place)).config.version == 6
        with pytest.raises(UserError, match="do not have change logs of merge-on-read tables"):
            catalog.accept_table(NAME, new_id=True)
        assert (place / PROPERTIES).read_bytes() == data
        replaced(place, name="crm.customers")
        with pytest.raises(UserError, match=r"crm\.customers"):
            catalog.load_table(NAME)


def test_open_through_the_catalog_needs_no_more_requests_than_the_table(
    catalog: Catalog, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apache/paimon#4147: a check of the identity must be cheap."""
    counting = CountingStorage(LocalStorage(str(place)))
    Table.open(str(place), env=Env(storage=counting))
    alone = counting.counts()
    through = CountingStorage(LocalStorage(str(place)))
    monkeypatch.setattr("lakehouse.core.table.table.open_storage", lambda *_: through)
    catalog.load_table(NAME)
    assert through.counts() == alone


def test_open_table_refuses_the_table_that_replaced_it(place: Path) -> None:
    """apache/iceberg-python#2890: a table is dropped and created again while an operation on it runs."""
    mine = made(place)
    replaced(place)
    with pytest.raises(UserError, match="contains another table since this one was opened"):
        mine.insert(ROWS)
    assert Table.open(str(place)).scan().count() == 1


def test_lost_table_is_created_again_with_the_id_of_its_entry(catalog: Catalog, place: Path) -> None:
    """StarRocks/starrocks#3078: the table of an entry is created again."""
    recorded = catalog.entry(NAME).identity
    shutil.rmtree(place)
    assert catalog.ensure_table(spec_of(place)).identity == recorded
    assert catalog.load_table(NAME).config.identity == recorded
    shutil.rmtree(place)
    placed = replace(spec_of(place), identities=catalog.identities(spec_of(place)))
    table = create_declared_table(placed, {}, Env(storage=LocalStorage(str(place))), exist_ok=True)
    assert table.config.identity == recorded


@pytest.mark.parametrize("words", [("table", "read"), ("clean", "run"), ("table", "delete", "--where", "ts > 0")])
def test_spec_is_refused_at_the_location_of_a_table_with_another_name_or_id(
    words: tuple[str, ...], place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """apache/hudi#1580: a write with the name of another table goes to the table at the path."""
    file = tmp_path / "orders.yaml"
    file.write_text(f"table: {NAME}\nlocation: {place}\nrecord_key: id\npartition_by: day\nordering: ts\n")
    made(place, name="crm.customers")
    files = files_of(place)
    assert main([*words, "--table", str(file)]) == 64
    shown = "".join(capsys.readouterr())
    assert "has the name 'crm.customers', but the spec declares table 'sales.orders'" in shown
    with load_catalog() as catalog:
        catalog.register_table(NAME, str(place))
        assert main([*words[:1], "describe" if words[0] == "table" else "plan", "--table", str(file)]) == 0
        replaced(place, name="crm.customers")
        assert main([*words, "--table", str(file)]) == 64
        assert "is not the one that the catalog registered" in "".join(capsys.readouterr())
    assert files.keys() != files_of(place).keys() and Table.open(str(place)).scan().count() == 1


def test_ingestion_without_catalog_refuses_the_location_of_a_table_with_another_name(
    place: Path, tmp_path: Path
) -> None:
    """apache/hudi#1580: an ingestion appends to the table at its path, whatever its name is."""
    (tmp_path / "landing").mkdir()
    spec = spec_of(place, more=f"ingest: {{path: {tmp_path}/landing, format: json}}\n")
    made(place, name="crm.customers")
    job = IngestCommand(table="orders.yaml")
    with pytest.raises(UserError, match=r"`table: crm\.customers`"):
        check_ingest(spec, job, environ={}, storage_options={})
    named = spec_of(place, "crm.customers", more=f"ingest: {{path: {tmp_path}/landing, format: json}}\n")
    assert check_ingest(named, job, environ={}, storage_options={}) == ()


@pytest.mark.parametrize(
    ("declared", "stored", "same"),
    [
        ("sales.orders", "sales.orders", True),
        ("sales.orders", "orders", True),
        ("orders", "sales.orders", True),
        ("Sales.Orders", "orders", True),
        ("sales.orders", "crm.orders", False),
        ("sales.orders", "orders_2", False),
        ("sales.orders", "", False),
    ],
)
def test_stored_name_matches_a_declared_name_with_or_without_namespace(declared: str, stored: str, same: bool) -> None:
    """apache/hudi#1580: names are compared as Spark SQL stores them, in lower case and without database."""
    assert is_name_of(declared, stored) is same


def test_tables_that_are_created_at_one_location_at_once_share_one_id(place: Path) -> None:
    """apache/iceberg#264: the id is assigned by the process that creates the table."""
    with ThreadPoolExecutor(4) as pool:
        tables = list(
            pool.map(lambda _: Table.create(str(place), name="orders", record_key="id", exist_ok=True), range(4))
        )
    assert {table.config.identity.id for table in tables} == {properties_of(place)[TABLE_ID]}
