"""Change logs beside base files: their contents, their write stats, and their removal after failed writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.env import Env
from lakehouse.core.format.avro.decode import decode_avro_rows
from lakehouse.core.format.avro.schema import arrow_to_avro
from lakehouse.core.format.log.blocks import BlockType, LogBlock, scan_blocks
from lakehouse.core.format.log.cdc import CdcMode, cdc_avro_schema, image, image_type, rows_of
from lakehouse.core.operations.create.declare import TableDeclaration, declared_properties
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.undo.rollback import roll_back_failed_writes
from lakehouse.core.state.table_config import parse_table_config
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.protocol import OutputFile, Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.commit import WriteStat
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.tables import DELETED, Shape, batch, make_env, row

MODES = [mode.value for mode in CdcMode]
FULL = CdcMode.DATA_BEFORE_AFTER.value


def make(mode: str, *, env: Env | None = None, shape: Shape | None = None, **declared: Any) -> Table:
    env = env or make_env()
    return Table.create(
        env.storage.root,
        name="events",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts",
        cdc=mode,
        options=(shape or Shape(rows_per_file=100)).table_options(),
        env=env,
        **declared,
    )


def change_logs(storage: Storage) -> list[str]:
    return [file.path for file in storage.list("") if file.path.endswith(".cdc")]


def blocks(storage: Storage, path: str) -> Iterator[tuple[LogBlock, list[dict[str, Any]]]]:
    with storage.open_input(path) as source:
        for block in scan_blocks(source):
            source.seek(block.offset)
            assert block.schema is not None
            yield block, decode_avro_rows(source.read(block.length), block.schema).to_pylist()


def logged(table: Table) -> list[dict[str, Any]]:
    """Return the records of the only change log of the newest commit."""
    storage = table.refresh().env.storage
    (stat,) = last_stats(table)
    (path,) = stat.cdc_files
    return [record for _, records in blocks(storage, path) for record in records]


def last_stats(table: Table) -> tuple[WriteStat, ...]:
    return table.commits()[-1][1].stats


def full(id: str, **values: Any) -> dict[str, Any]:
    return row(id, **values)


def upserted(mode: str, **declared: Any) -> Table:
    """Return a table after an update, an update with an older version, a delete and an insert."""
    table = make(mode, **declared)
    table.upsert(batch([row(f"k{i}", v=str(i)) for i in range(4)]))
    delete = row("k2", ts=5) | {DELETED: True}
    table.upsert(batch([row("k0", ts=2, v="new"), row("k1", ts=0, v="too old"), delete, row("k9", v="ins")]))
    return table


def test_full_change_log_has_both_images() -> None:
    table = upserted(FULL)
    time = table.commits()[-1][0].requested
    assert logged(table) == [
        {"op": "u", "ts_ms": time, "before": full("k0", v="0"), "after": full("k0", ts=2, v="new")},
        {"op": "d", "ts_ms": time, "before": full("k2", v="2"), "after": None},
        {"op": "i", "ts_ms": time, "before": None, "after": full("k9", v="ins")},
    ]


def test_change_log_with_before_images_has_keys_and_old_rows() -> None:
    assert logged(upserted("DATA_BEFORE")) == [
        {"op": "u", "record_key": "k0", "before": full("k0", v="0")},
        {"op": "d", "record_key": "k2", "before": full("k2", v="2")},
        {"op": "i", "record_key": "k9", "before": None},
    ]


def test_change_log_with_keys_has_only_keys() -> None:
    assert logged(upserted("OP_KEY_ONLY")) == [
        {"op": "u", "record_key": "k0"},
        {"op": "d", "record_key": "k2"},
        {"op": "i", "record_key": "k9"},
    ]


@pytest.mark.parametrize("mode", MODES)
def test_deletes_by_key_and_partial_updates_are_logged(mode: str) -> None:
    table = upserted(mode)
    table.delete(["k3", "unknown"])
    assert [(r["op"], r.get("record_key", "k3")) for r in logged(table)] == [("d", "k3")]
    table.upsert(pa.table({"id": ["k0"], "p": ["a"], "ts": [9]}), options={"lakehouse.write.partial.update": "true"})
    (change,) = logged(table)
    assert change["op"] == "u"
    if mode == FULL:
        # The batch says nothing about deletes, so its row is not deleted.
        assert change["after"] == full("k0", ts=9, v="new", **{DELETED: False})


def test_write_stat_names_the_change_log_and_new_groups_have_none() -> None:
    table = upserted(FULL)
    storage = table.refresh().env.storage
    first, second = (metadata.stats for _, metadata in table.commits())
    assert [dict(stat.cdc_files) for stat in first] == [{}]
    (stat,) = second
    sizes = {file.path: file.size_bytes for file in storage.list("") if file.path.endswith(".cdc")}
    assert dict(stat.cdc_files) == sizes
    (path,) = sizes
    assert path == f"a/.{stat.file_id}_{table.commits()[-1][0].requested}.log.1_{stat.path.split('_')[1]}.cdc"
    block, _ = next(blocks(storage, path))
    assert block.kind is BlockType.CDC_DATA
    assert block.instant == table.commits()[-1][0].requested
    assert not [file for file in storage.list(".hoodie/.temp")]


def test_rewrite_without_changes_has_an_empty_change_log() -> None:
    table = upserted(FULL)
    table.upsert(batch([row("k1", ts=0, v="too old")]))
    assert logged(table) == []
    assert len(last_stats(table)[0].cdc_files) == 1


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_inserts_into_small_files_are_logged_and_log_files_need_no_change_log(table_type: str) -> None:
    table = make(FULL, table_type=table_type)
    table.upsert(batch([row("a")]))
    table.insert(batch([row("b")]))
    assert [(r["op"], r["after"]["id"]) for r in logged(table)] == [("i", "b")]
    table.upsert(batch([row("a", ts=2)]))
    (stat,) = last_stats(table)
    assert len(stat.cdc_files) == (1 if table_type == "COPY_ON_WRITE" else 0)


def test_row_that_moves_is_a_delete_and_an_insert() -> None:
    table = make(FULL, shape=Shape(index="GLOBAL_SIMPLE", rows_per_file=100))
    table.upsert(batch([row("x"), row("y", p="b")]))
    table.upsert(batch([row("x", p="b", ts=2)]))
    storage = table.refresh().env.storage
    found = [(path[0], r["op"]) for path in change_logs(storage) for _, rs in blocks(storage, path) for r in rs]
    assert found == [("a", "d"), ("b", "i")]


def test_long_change_log_is_divided_into_blocks_and_files() -> None:
    rows = [row(f"k{i:04}", v="x" * 100) for i in range(2_000)]
    small = Shape(rows_per_file=5_000, budget=2_000, options={"hoodie.logfile.max.size": "200000"})
    table = make(FULL, shape=small)
    table.upsert(batch(rows))
    table.upsert(batch([r | {"ts": 2} for r in rows]))
    storage = table.refresh().env.storage
    (stat,) = last_stats(table)
    paths = sorted(stat.cdc_files)
    assert [path.split(".log.")[1][0] for path in paths] == [str(n) for n in range(1, len(paths) + 1)]
    assert len(paths) >= 3
    sizes = [len(records) for path in paths for _, records in blocks(storage, path)]
    assert len(sizes) > len(paths) and sum(sizes) == len(rows)
    assert max(stat.cdc_files.values()) < 300_000


def test_tables_without_change_data_have_no_change_logs() -> None:
    env = make_env()
    table = Table.create(env.storage.root, name="events", record_key=["id"], ordering="ts", env=env)
    table.upsert(batch([row("a")]))
    table.upsert(batch([row("a", ts=2)]))
    assert change_logs(env.storage) == []
    assert table.config.cdc is None


class BrokenWriteError(Exception):
    """The failure that the tests inject into writes."""


def test_rollback_deletes_the_change_logs_of_a_failed_write(monkeypatch: pytest.MonkeyPatch) -> None:
    table = upserted(FULL)
    before = change_logs(table.refresh().env.storage)
    seen: list[list[str]] = []

    def fail(*_: Any, **__: Any) -> None:
        seen.append(change_logs(table.refresh().env.storage))
        raise BrokenWriteError("died before the commit")

    monkeypatch.setattr(LocalEngine, "runs_once", False)
    monkeypatch.setattr("lakehouse.core.operations.write.write.delete_unreported", fail)
    with pytest.raises(BrokenWriteError):
        table.upsert(batch([row("k0", ts=7)]))
    assert len(seen[0]) == len(before) + 1
    assert change_logs(table.refresh().env.storage) == before


def test_rollback_deletes_change_logs_of_an_expired_write_without_markers() -> None:
    table = upserted(FULL)
    loaded = table.refresh()
    storage = loaded.env.storage
    kept = change_logs(storage)
    instant = loaded.store.request(loaded.timeline, table.commits()[-1][0].action, b"")
    loaded.store.start(instant, b"")
    stray = f"a/.g-0_{instant.requested}.log.1_0-1-0.cdc"
    storage.put(stray, b"half")
    assert stray in [file.path for file in list_data_files(loaded, change_logs=True)]
    assert stray not in [file.path for file in list_data_files(loaded)]
    later = loaded.env.clock.now_ms() + 3_600_000
    loaded.env.clock.sleep((later - loaded.env.clock.now_ms()) / 1000)
    roll_back_failed_writes(table.refresh(), TransactionPolicy())
    assert change_logs(storage) == kept


@pytest.mark.parametrize("markers", ["TIMELINE_SERVER_BASED", "DIRECT"])
def test_change_log_of_a_repeated_task_is_deleted_before_the_commit(
    markers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalEngine, "runs_once", False)
    env = make_env()
    table = make(FULL, env=env)
    table.upsert(batch([row("a")]))
    storage = env.storage
    strays: list[str] = []

    class Repeating(FaultyStorage):
        """Adds the change log and the marker of a second attempt beside the first."""

        def open_output(self, path: str) -> OutputFile:
            if path.endswith(".cdc") and not strays:
                strays.append(path.replace("_0-", "_7-"))
                storage.put(strays[0], b"an attempt that is not committed")
                directory = f".hoodie/.temp/{table.refresh().timeline.latest_time()}"
                if markers == "DIRECT":
                    storage.put(f"{directory}/{strays[0]}.marker.CREATE", b"")
                else:
                    storage.put(f"{directory}/MARKERS77", f"{strays[0]}.marker.CREATE\n".encode())
            return super().open_output(path)

    repeated = Table.open(
        env.storage.root,
        options={"hoodie.write.markers.type": markers},
        env=Env(storage=Repeating(storage), clock=env.clock, ids=env.ids),
    )
    repeated.upsert(batch([row("a", ts=2)]))
    assert len(strays) == 1 and strays[0] not in change_logs(storage)
    assert change_logs(storage) == [path for stat in last_stats(table) for path in stat.cdc_files]
    assert storage.list(".hoodie/.temp") == []


DECLARED: Mapping[str, tuple[str | None, dict[str, str]]] = {
    "by name": ("DATA_BEFORE", {}),
    "in small letters": ("data_before", {}),
    "by options": (
        None,
        {"hoodie.table.cdc.enabled": "true", "hoodie.table.cdc.supplemental.logging.mode": "data_before"},
    ),
    "by both": ("DATA_BEFORE", {"hoodie.table.cdc.enabled": "true"}),
}


@pytest.mark.parametrize("name", DECLARED)
def test_change_data_is_declared_by_name_or_by_options(name: str) -> None:
    cdc, options = DECLARED[name]
    raw = declared_properties(TableDeclaration(name="t", record_key=("id",), cdc=cdc, options=options))
    assert raw["hoodie.table.cdc.enabled"] == "true"
    assert raw["hoodie.table.cdc.supplemental.logging.mode"] == "DATA_BEFORE"
    assert parse_table_config(raw, "t").cdc is CdcMode.DATA_BEFORE


def test_default_mode_has_both_images() -> None:
    options = {"hoodie.table.cdc.enabled": "true"}
    raw = declared_properties(TableDeclaration(name="t", record_key=("id",), options=options))
    assert parse_table_config(raw, "t").cdc is CdcMode.DATA_BEFORE_AFTER
    del raw["hoodie.table.cdc.supplemental.logging.mode"]
    assert parse_table_config(raw, "t").cdc is CdcMode.DATA_BEFORE_AFTER


@pytest.mark.parametrize(
    ("cdc", "options"),
    [
        ("BEFORE", {}),
        ("DATA_BEFORE", {"hoodie.table.cdc.enabled": "false"}),
        ("DATA_BEFORE", {"hoodie.table.cdc.supplemental.logging.mode": "OP_KEY_ONLY"}),
        (None, {"hoodie.table.cdc.enabled": "yes"}),
    ],
)
def test_contradicting_declarations_are_refused(cdc: str | None, options: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"cdc|change logs"):
        declared_properties(TableDeclaration(name="t", record_key=("id",), cdc=cdc, options=options))


def test_unknown_mode_is_refused_by_name() -> None:
    raw = declared_properties(TableDeclaration(name="t", record_key=("id",), cdc=FULL))
    raw["hoodie.table.cdc.supplemental.logging.mode"] = "EVERYTHING"
    with pytest.raises(UnsupportedError, match="EVERYTHING"):
        parse_table_config(raw, "t")


NESTED = pa.schema(
    [pa.field("id", pa.string(), nullable=False), ("n", pa.struct([("x", pa.int32())])), ("l", pa.list_(pa.int64()))]
)
# Written by Hudi 1.2 for a table named t with one column.
HUDIS = (
    '{"type":"record","name":"CDC","namespace":"hoodie.t","doc":"","fields":[{"name":"op","type":["null","string"],'
    '"doc":"","default":null},{"name":"ts_ms","type":["null","string"],"doc":"","default":null},{"name":"before",'
    '"type":["null",{"type":"record","name":"t_record","namespace":"hoodie.t","fields":[{"name":"id","type":["null",'
    '"string"],"default":null}]}],"doc":"","default":null},{"name":"after","type":["null","t_record"],"doc":"",'
    '"default":null}]}'
)


def test_schema_of_a_change_log_is_that_of_hudi() -> None:
    table = arrow_to_avro(pa.schema([("id", pa.string())]), table="t")
    assert json.loads(cdc_avro_schema(CdcMode.DATA_BEFORE_AFTER, table)) == json.loads(HUDIS)
    before = json.loads(cdc_avro_schema(CdcMode.DATA_BEFORE, table))
    assert [field["name"] for field in before["fields"]] == ["op", "record_key", "before"]
    keys = json.loads(cdc_avro_schema(CdcMode.OP_KEY_ONLY, table))
    assert keys["fields"] == [{"name": name, "type": ["string", "null"]} for name in ("op", "record_key")]


def test_absent_images_are_null() -> None:
    rows = pa.Table.from_pylist([{"id": "a", "n": {"x": 1}, "l": [1, None]}, {"id": "b"}], NESTED)
    found = image(rows, image_type(NESTED), pa.array([1, None, 0]))
    assert found.to_pylist() == [{"id": "b", "n": None, "l": None}, None, {"id": "a", "n": {"x": 1}, "l": [1, None]}]
    assert rows_of(found).to_pylist() == [found[0].as_py(), found[2].as_py()]
