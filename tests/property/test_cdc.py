"""Change data is complete: applied commit by commit to an empty table, the changes give every snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.files.log import cdc_reader
from lakehouse.core.files.log import slice_log_merge as slice_log
from lakehouse.core.format.log.cdc import CdcMode
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.planning.cdc import UNCHANGING
from lakehouse.core.table.table import Table
from lakehouse.model.keys import TimestampFormat
from lakehouse.model.merge import MergeMode
from tests.support.model import Model, Verb, apply_verb, rows, shapes, verbs
from tests.support.tables import KEYS, SCHEMA, Shape, batch, examples, make_env

TYPES = ["COPY_ON_WRITE", "MERGE_ON_READ"]
SERVICES = ["plan compaction", "run compaction", "compact", "compact logs"]
Row = tuple[Any, ...]


@contextmanager
def tiny_memory() -> Iterator[None]:
    """Set memory limits so low that readers spill a few rows to local files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slice_log, "_MIN_PART_BYTES", 512)
        patch.setattr(cdc_reader, "_MIN_SIDE_BYTES", 100)
        patch.setattr(cdc_reader, "_MIN_ROWS", 3)
        patch.setitem(slice_context.__kwdefaults__, "budget", 500)
        yield


def make(shape: Shape, table_type: str, mode: str, *, partial_update: str | None = None, **options: str) -> Table:
    env = make_env()
    record_key, partition_by = KEYS[shape.keys]
    timed = any(":TIMESTAMP" in entry for entry in partition_by)
    return Table.create(
        env.storage.root,
        name="events",
        record_key=record_key,
        partition_by=partition_by,
        ordering=shape.ordering,
        schema=SCHEMA,
        merge_mode=MergeMode.EVENT_TIME_ORDERING if shape.merge == "event" else MergeMode.COMMIT_TIME_ORDERING,
        timestamp=TimestampFormat(output_format="yyyy/MM/dd") if timed else None,
        table_type=table_type,
        cdc=mode,
        partial_update=partial_update,
        options={**shape.table_options(), "hoodie.log.compaction.blocks.threshold": "2", **options},
        env=env,
    )


def serve(table: Table, service: str) -> None:
    if not table.config.is_merge_on_read:
        return
    if service == "plan compaction":
        table.services.compaction.schedule(force=True)
    elif service == "run compaction":
        table.services.compaction.run()
    elif service == "compact":
        table.services.compaction.run(force=True)
    else:
        table.services.log_compaction.run(force=True)


def values(row: dict[str, Any]) -> Row:
    return tuple(row[name] for name in SCHEMA.names)


def snapshot(table: Table, **scan: Any) -> Counter[Row]:
    return Counter(values(row) for row in table.scan(SCHEMA.names, **scan).to_arrow().to_pylist())


def by_commit(changes: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Group the changes by commit; assert that those of a commit are adjacent and begin with its deletes."""
    found: dict[str, list[dict[str, Any]]] = {}
    for change in changes.to_pylist():
        assert change["ts_ms"] not in list(found)[:-1], "the changes of a commit are not adjacent"
        if change["op"] == "d":
            assert all(earlier["op"] == "d" for earlier in found.get(change["ts_ms"], [])), "a delete follows an upsert"
        found.setdefault(change["ts_ms"], []).append(change)
    return found


def apply_changes(state: Counter[Row], changes: list[dict[str, Any]]) -> Counter[Row]:
    """Return the rows after the changes of one commit, and assert that every before image was present."""
    removed, added = Counter[Row](), Counter[Row]()
    for change in changes:
        before, after = change["before"], change["after"]
        assert (
            change["op"]
            == {(True, False): "i", (False, False): "u", (False, True): "d"}[(before is None, after is None)]
        )
        if before is not None:
            removed[values(before)] += 1
        if after is not None:
            added[values(after)] += 1
    assert removed <= state, ("before images that are no rows of the table", removed - state)
    return state - removed + added


def assert_changes_give_every_snapshot(table: Table) -> None:
    reported = by_commit(table.incremental("earliest", format="cdc").to_arrow())
    state = Counter[Row]()
    for instant, metadata in table.commits():
        changes = reported.pop(instant.requested, [])
        if metadata.operation in UNCHANGING:
            # A service completes after writes that were requested later, so a read as of its time has no defined rows.
            assert changes == []
            continue
        state = apply_changes(state, changes)
        assert state == snapshot(table, as_of=instant.requested), (instant.requested, metadata.operation)
    assert reported == {}
    assert state == snapshot(table)


@pytest.mark.parametrize("mode", [mode.value for mode in CdcMode])
@pytest.mark.parametrize("table_type", TYPES)
@examples(12)
@given(data=st.data())
def test_changes_give_every_snapshot_after_any_writes_and_services(
    table_type: str, mode: str, data: st.DataObject
) -> None:
    shape: Shape = data.draw(shapes())
    options = {"lakehouse.bucket.inserts": data.draw(st.sampled_from(["base", "log"]))}
    table = make(shape, table_type, mode, **options)
    model = Model(shape)
    steps = st.one_of(verbs(), st.sampled_from(SERVICES)) if table_type == "MERGE_ON_READ" else verbs()
    for step in data.draw(st.lists(steps, min_size=1, max_size=6)):
        if isinstance(step, Verb):
            apply_verb(table, model, step, unique=True)
        else:
            serve(table, step)
    with tiny_memory() if shape.budget < 10_000 else nullcontext():
        assert_changes_give_every_snapshot(table)


@pytest.mark.parametrize("table_type", TYPES)
@examples(12)
@given(data=st.data())
def test_changes_give_every_snapshot_with_duplicate_keys(table_type: str, data: st.DataObject) -> None:
    shape: Shape = data.draw(shapes())
    table, model = make(shape, table_type, CdcMode.DATA_BEFORE_AFTER.value), Model(shape)
    for verb in data.draw(st.lists(verbs(), min_size=1, max_size=5)):
        apply_verb(table, model, verb, unique=False)
    assert_changes_give_every_snapshot(table)


@pytest.mark.parametrize("partial", ["IGNORE_DEFAULTS", "by batch"])
@pytest.mark.parametrize("table_type", TYPES)
@examples(10)
@given(data=st.data())
def test_changes_give_every_snapshot_with_partial_updates(table_type: str, partial: str, data: st.DataObject) -> None:
    shape: Shape = data.draw(
        shapes(version=9, moves=False, merge=data.draw(st.sampled_from(["event", "commit_ordered"])))
    )
    mode = data.draw(st.sampled_from([mode.value for mode in CdcMode]))
    by_batch = partial == "by batch"
    table = make(shape, table_type, mode, partial_update=None if by_batch else partial)
    steps = st.one_of(st.lists(rows(), min_size=1, max_size=8), st.sampled_from(SERVICES[2:]))
    for step in data.draw(st.lists(steps, min_size=1, max_size=6)):
        if isinstance(step, str):
            serve(table, step)
        elif by_batch and table.commits():
            some = batch(step).drop_columns(["amount"])
            table.upsert(some, options={"lakehouse.write.partial.update": "true"})
        else:
            table.upsert(batch(step))
    assert_changes_give_every_snapshot(table)


@pytest.mark.parametrize("table_type", TYPES)
@examples(8)
@given(data=st.data())
def test_changes_of_adjacent_ranges_equal_the_changes_of_the_whole_range(table_type: str, data: st.DataObject) -> None:
    shape: Shape = data.draw(shapes(index="SIMPLE"))
    table, model = make(shape, table_type, data.draw(st.sampled_from([mode.value for mode in CdcMode]))), Model(shape)
    for verb in data.draw(st.lists(verbs(), min_size=2, max_size=6)):
        apply_verb(table, model, verb, unique=True)
    whole = table.incremental("earliest", format="cdc").to_arrow()
    completed = [instant.completion for instant, _ in table.commits()]
    bounds = ["earliest", *completed]
    pieces = [
        table.incremental(begin, end, format="cdc").to_arrow()
        for begin, end in zip(bounds, [*completed, None], strict=True)
    ]
    assert pa.concat_tables(pieces).to_pylist() == whole.to_pylist()
    narrow = table.incremental("earliest", format="cdc", columns=["v", "id"]).to_arrow()
    assert narrow.schema.field("before").type == pa.struct([("v", pa.string()), ("id", pa.string())])
    assert narrow.column("op").to_pylist() == whole.column("op").to_pylist()
    for name in ("before", "after"):
        shown = [row and {"v": row["v"], "id": row["id"]} for row in whole.column(name).to_pylist()]
        assert narrow.column(name).to_pylist() == shown
