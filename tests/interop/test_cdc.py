"""Change data capture: Hudi and lakehouse return the same changes for tables of both.

Hudi returns rows as JSON in two forms. Rows from files have meta columns and no nulls. Rows from change logs have nulls
and no meta columns; a missing row is the text `null`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.log.cdc import CdcMode
from lakehouse.core.operations.read.cdc import ChangeScan, as_json
from lakehouse.core.planning.cdc import ChangeCase
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from tests.interop.rows import EVERYTHING, everything, nothing
from tests.support.hudi import Hudi
from tests.support.tables import DELETED, Shape, batch, row

pytestmark = pytest.mark.jvm

MODES = [mode.value for mode in CdcMode]
TYPES = ["COPY_ON_WRITE", "MERGE_ON_READ"]
CDC = {"hoodie__datasource__query__type": "incremental", "hoodie__datasource__query__incremental__format": "cdc"}
BEGIN = "hoodie__datasource__read__begin__instanttime"
END = "hoodie__datasource__read__end__instanttime"
Changes = Counter[tuple[str, str, str, str]]


def row_text(value: Any) -> str:
    """Return a row as JSON that is equal for both implementations: no meta columns, no nulls, sorted names."""
    if value is None:
        return "-"
    return json.dumps(
        _plain({k: v for k, v in value.items() if not k.startswith("_hoodie_") or k == DELETED}), sort_keys=True
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items() if inner is not None}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def theirs(hudi: Hudi, table: Table, begin: str = "000", **bounds: str) -> Changes:
    found = hudi.read(table.location, **CDC, **{BEGIN: begin}, **bounds).to_pylist()
    return Counter(
        (c["op"], c["ts_ms"], *(row_text(None if c[n] is None else json.loads(c[n])) for n in ("before", "after")))
        for c in found
    )


def ours(table: Table, begin: str | None = "earliest", end: str | None = None) -> Changes:
    found = table.incremental(begin, end, format="cdc").to_arrow().to_pylist()
    return Counter((c["op"], c["ts_ms"], row_text(c["before"]), row_text(c["after"])) for c in found)


def assert_changes_fold(table: Table) -> None:
    """Assert that applying all changes in order results in the rows of the latest snapshot."""
    state: Counter[str] = Counter()
    for change in table.incremental("earliest", format="cdc").to_arrow().to_pylist():
        if change["before"] is not None:
            state[row_text(change["before"])] -= 1
        if change["after"] is not None:
            state[row_text(change["after"])] += 1
    rows = table.scan().to_arrow().to_pylist()
    assert Counter(row_text(r) for r in rows) == +state and min(state.values(), default=0) >= 0


def cases(table: Table) -> set[ChangeCase]:
    scan = table.incremental("earliest", format="cdc").plan()
    assert isinstance(scan, ChangeScan)
    return {change.case for change in scan.changes}


def make(location: Path, mode: str, table_type: str, **options: str) -> Table:
    return Table.create(
        str(location),
        name="ours",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts",
        table_type=table_type,
        cdc=mode,
        options={**Shape(rows_per_file=100).table_options(), **options},
        env=Env(storage=open_storage(str(location))),
    )


def write_history(table: Table) -> None:
    """Run every kind of write operation."""
    table.upsert(batch([row(f"k{i}", p="ab"[i % 2], v=f"v{i}", amount=i / 4) for i in range(8)]))
    table.upsert(batch([row("k0", ts=2, v='new "q"'), row("k2", ts=0, v="too old"), row("k9", v="inserted")]))
    table.upsert(batch([row("k1", p="b", ts=5) | {DELETED: True}, row("k0", ts=3, v="newer")]))
    table.delete(["k4", "never there"])
    table.insert(batch([row("k10", p="c", v="c")]))
    table.insert_overwrite(batch([row("o1", p="b", v="over")]))
    table.upsert(batch([row("o1", p="b", ts=7, v="over and over")]))
    table.delete_partitions(["c"])


@pytest.mark.parametrize("table_type", TYPES)
@pytest.mark.parametrize("mode", MODES)
def test_hudi_reads_changes_like_lakehouse(mode: str, table_type: str, hudi: Hudi, tmp_path: Path) -> None:
    table = make(tmp_path / "t", mode, table_type)
    write_history(table)
    assert_changes_fold(table)
    found = ours(table)
    assert sum(found.values()) == 20
    assert theirs(hudi, table) == found
    completed = [instant.completion for instant, _ in table.commits()]
    middle = {END: completed[4]}
    assert theirs(hudi, table, completed[1], **middle) == ours(table, completed[1], completed[4])


@pytest.mark.parametrize("table_type", TYPES)
def test_changes_written_by_hudi_and_lakehouse_are_read_by_both(table_type: str, hudi: Hudi, tmp_path: Path) -> None:
    table = make(tmp_path / "t", "DATA_BEFORE_AFTER", table_type)
    write_history(table)
    rows = batch([row("k0", ts=20, v="theirs"), row("k2", ts=21) | {DELETED: True}, row("new", p="b")])
    options = {**HUDI, "hoodie.table.name": "ours", "hoodie.datasource.write.table.type": table_type}
    hudi.write(table.location, rows, options)
    table.upsert(batch([row("k0", ts=30, v="ours"), row("new", p="b", ts=2, v="ours")]))
    assert_changes_fold(table)
    assert theirs(hudi, table) == ours(table)


COMPARABLE = [f for f in EVERYTHING if f.name not in ("narrow", "wide", "raw", "people", "items")]


@pytest.mark.parametrize("mode", MODES)
def test_changes_as_json_equal_hudis_for_comparable_types(mode: str, hudi: Hudi, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), name="types", record_key=["id"], ordering="ts", cdc=mode)
    table.upsert(pa.Table.from_pylist([everything(1), everything(2), nothing(1)], EVERYTHING))
    changed = everything(2) | {"ts": 9, "double": float("nan"), "real": float("-inf")}
    table.upsert(pa.Table.from_pylist([changed, nothing(1) | {"ts": 2}, everything(3)], EVERYTHING))
    table.delete(["k1"])
    names = [field.name for field in COMPARABLE]
    scan = table.incremental("earliest", format="cdc", columns=names)
    found = [change for changes in scan.to_batches() for change in as_json(changes).to_pylist()]
    shown = hudi.read(table.location, **CDC, **{BEGIN: "000"}).to_pylist()
    assert counted(found, names) == counted(shown, names)
    assert len(found) == 7


def counted(changes: list[dict[str, Any]], names: list[str]) -> Changes:
    """Return the changes as a multiset, with rows as JSON that contain only these columns."""
    texts = []
    for change in changes:
        images = [json.loads(change[name] or "null") for name in ("before", "after")]
        kept = [image and {name: value for name, value in image.items() if name in names} for image in images]
        texts.append((change["op"], change["ts_ms"], *(row_text(image) for image in kept)))
    return Counter(texts)


HUDI = {
    "hoodie.table.name": "theirs",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.table.cdc.enabled": "true",
    "hoodie.metadata.enable": "false",
}


@pytest.mark.parametrize("table_type", TYPES)
@pytest.mark.parametrize("mode", MODES)
def test_lakehouse_reads_changes_of_hudi_tables(mode: str, table_type: str, hudi: Hudi, tmp_path: Path) -> None:
    location = str(tmp_path / "t")
    options = HUDI | {
        "hoodie.datasource.write.table.type": table_type,
        "hoodie.table.cdc.supplemental.logging.mode": mode,
    }

    def write(rows: pa.Table, operation: str = "upsert", **more: str) -> None:
        dotted = {key.replace("__", "."): value for key, value in more.items()}
        hudi.write(location, rows, options | {"hoodie.datasource.write.operation": operation} | dotted)

    write(batch([row(f"k{i}", p="ab"[i % 2], v=f"v{i}") for i in range(8)]))
    write(batch([row("k0", ts=2, v="new"), row("k2", ts=0, v="too old")]))
    write(batch([row("k9", v="inserted"), row("k1", p="b", ts=5) | {DELETED: True}]))
    write(batch([row("k4", ts=9)]), "delete")
    if table_type == "MERGE_ON_READ":
        write(
            batch([row("k0", ts=3, v="newer")]),
            hoodie__compact__inline="true",
            hoodie__compact__inline__max__delta__commits="1",
        )
    write(batch([row("o1", p="b", v="over")]), "insert_overwrite")
    write(batch([row("o1", p="b", ts=7, v="over and over"), row("k6", ts=8, v="six")]))
    table = Table.open(location)
    assert table.config.cdc is CdcMode(mode)
    assert_changes_fold(table)
    assert ours(table) == theirs(hudi, table)
    wanted = ChangeCase.LOG_FILE if table_type == "MERGE_ON_READ" else ChangeCase.AS_IS
    assert {wanted, ChangeCase.BASE_FILE_INSERT, ChangeCase.REPLACE_COMMIT} <= cases(table)
    table.upsert(batch([row("k0", ts=10, v="ours")]))
    table.delete(["k6"])
    assert_changes_fold(table)
    assert ours(table) == theirs(hudi, table)
