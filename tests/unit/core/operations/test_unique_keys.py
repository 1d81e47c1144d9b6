"""Reads by a record index: it is used only while the timeline proves that each key is in one row (MDT-4.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.support.foreign_writes import foreign
from tests.support.tables import make_env

KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")
INDEX = {"hoodie.metadata.global.record.level.index.enable": "true", "hoodie.index.type": "RECORD_INDEX"}
#: Each insert makes file groups of its own.
APART = {"hoodie.parquet.small.file.limit": "0"}
SHARED = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
TRUSTS = {"lakehouse.index.trusts.keys": "true"}
SCHEMA = pa.schema([("id", pa.string()), ("v", pa.int64())])


def created(kind: str = "COPY_ON_WRITE", *, options: dict[str, str] = INDEX | APART, **keys: Any) -> Table:
    """Return an empty table with a record index."""
    env = make_env()
    return Table.create(env.storage.root, name="t", record_key="id", table_type=kind, options=options, env=env, **keys)


def batch(ids: str, value: int) -> pa.Table:
    """Return a row for each letter."""
    return pa.table([list(ids), [value] * len(ids)], schema=SCHEMA)


def rows(table: Table, where: str | None = None) -> list[tuple[str, int]]:
    """Return the rows, sorted."""
    read = table.scan(["id", "v"], where).to_arrow()
    return sorted(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True))


def uses_index(table: Table, step: str = "record_index", where: str = "id = 'a'") -> bool:
    """Return whether a read by key uses the index; a plan that does not states the way out."""
    reason = table.scan(where=where).explain().step(step).reason
    assert ("in 1 file group" in reason) != ("`lakehouse metadata rebuild` checks all keys" in reason), reason
    return "file group" in reason


@pytest.mark.parametrize("small_files", [False, True], ids=["apart", "same file"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["insert", "bulk_insert", "insert_overwrite"])
def test_insert_of_a_stored_key_is_refused_and_leaves_nothing(verb: str, kind: str, small_files: bool) -> None:
    table = created(kind, options=INDEX | ({} if small_files else APART), partition_by="p")
    table.insert(batch("ab", 1).append_column("p", pa.array(["x", "x"])))
    place = "y" if verb == "insert_overwrite" else "x"
    with pytest.raises(UserError, match=r"record key 'a' is in file group .* of 'x' already.*dup\.policy=drop"):
        getattr(table, verb)(batch("ac", 2).append_column("p", pa.array([place] * 2)))
    assert rows(table) == [("a", 1), ("b", 1)]
    table.insert(
        batch("ac", 2).append_column("p", pa.array(["x", "x"])), options={"hoodie.datasource.insert.dup.policy": "drop"}
    )
    assert rows(table, "id IN ('a', 'c')") == [("a", 1), ("c", 2)]
    table.insert_overwrite(batch("ad", 3).append_column("p", pa.array(["x", "x"])))
    assert rows(table) == [("a", 3), ("d", 3)]
    assert uses_index(table)


@pytest.mark.parametrize("kind", KINDS)
def test_index_of_unique_keys_is_used_after_all_writes_and_services_of_lakehouse(kind: str) -> None:
    table = created(kind)
    steps: list[Callable[[], object]] = [
        lambda: table.bulk_insert(batch("ab", 1)),
        lambda: table.insert(batch("cd", 1)),
        lambda: table.upsert(batch("ae", 2)),
        lambda: table.delete(["c"]),
        lambda: table.services.clustering.run(force=True),
        lambda: table.upsert(batch("a", 3)),
        lambda: table.services.compaction.run(force=True),
        lambda: table.alter().add_column("w", "string").execute(),
        lambda: table.insert(batch("f", 1)),
    ]
    if kind == "COPY_ON_WRITE":
        del steps[6]
    for step in steps:
        step()
        assert uses_index(table)
        assert rows(table, "id = 'a'") == [row for row in rows(table) if row[0] == "a"]


@pytest.mark.parametrize("version", ["6", "8", "9"])
@pytest.mark.parametrize("kind", KINDS)
def test_commit_of_another_program_ends_the_use_until_a_build_has_read_all_keys(kind: str, version: str) -> None:
    table = created(kind, options=INDEX | APART | {"hoodie.write.table.version": version})
    table.insert(batch("ab", 1))
    with foreign():
        table.insert(batch("c", 1))
    assert not uses_index(table)
    table.upsert(batch("a", 2))
    assert not uses_index(table)
    assert uses_index(table.with_options(TRUSTS))
    table.metadata.rebuild()
    assert uses_index(table)
    table.upsert(batch("a", 3))
    assert uses_index(table)
    with foreign():
        table.insert(batch("a", 4))
        table.delete(["c"])
    assert rows(table, "id = 'a'") == [("a", 3), ("a", 4)] == [row for row in rows(table) if row[0] == "a"]
    with pytest.raises(UserError, match=r"record key 'a' is in file group .* and in file group"):
        table.metadata.rebuild()
    assert rows(table, "id = 'a'") == [("a", 3), ("a", 4)]


def test_foreign_service_and_delete_keep_the_proof() -> None:
    table = created()
    table.insert(batch("abc", 1))
    with foreign():
        table.delete(["c"])
        table.services.clustering.run(force=True)
    assert uses_index(table)


def test_secondary_index_returns_all_rows_of_a_repeated_key() -> None:
    table = created(options=INDEX | APART | {"lakehouse.index.secondary": "v"})
    table.insert(batch("ab", 1))
    table.services.index.run(force=True)
    assert uses_index(table, "secondary_index", "v = 1")
    with foreign():
        table.insert(batch("a", 7))
        table.insert(batch("a", 8))
    assert not uses_index(table, "secondary_index", "v = 1")
    assert rows(table, "v = 1") == [("a", 1), ("b", 1)]
    assert rows(table, "v = 7") == [("a", 7)]


def test_index_that_the_service_builds_is_used_if_all_keys_are_unique() -> None:
    table = created(options=APART)
    table.insert(batch("ab", 1))
    table.insert(batch("c", 1))
    table = table.with_options(INDEX)
    table.services.index.run(force=True)
    assert uses_index(table)
    table.upsert(batch("a", 2))
    assert uses_index(table)


def test_write_by_partition_ends_the_use_of_an_index_for_the_table() -> None:
    table = created(partition_by="p")
    table.upsert(batch("ab", 1).append_column("p", pa.array(["x", "x"])))
    assert uses_index(table)
    table.with_options({"hoodie.index.type": "SIMPLE"}).upsert(batch("a", 2).append_column("p", pa.array(["y"])))
    assert not uses_index(table)
    assert rows(table, "id = 'a'") == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("verb", ["insert", "bulk_insert", "upsert"])
def test_writer_that_inserts_a_key_meanwhile_is_noticed(verb: str) -> None:
    """The keys are compared again, because the index did not have the key of the other writer at the first time."""
    table = created(options=INDEX | APART | SHARED)
    table.insert(batch("a", 1))
    other = Table.open(table.location, env=table._env, options=INDEX | APART | SHARED)

    def stream() -> Iterator[pa.RecordBatch]:
        getattr(other, verb)(batch("b", 2))
        yield from batch("bc", 3).to_batches()

    with pytest.raises(UserError, match="record key 'b' is in file group"):
        table.insert(pa.RecordBatchReader.from_batches(SCHEMA, stream()))
    assert rows(table) == [("a", 1), ("b", 2)]

    def others() -> Iterator[pa.RecordBatch]:
        getattr(other, verb)(batch("d", 4))
        yield from batch("e", 5).to_batches()

    assert isinstance(table.insert(pa.RecordBatchReader.from_batches(SCHEMA, others())), Committed)
    assert rows(table, "id IN ('d', 'e')") == [("d", 4), ("e", 5)]
    assert uses_index(table)


@pytest.mark.parametrize("version", ["6", "9"])
def test_commit_of_another_program_that_completes_late_ends_the_use(version: str) -> None:
    """Without completion times the commit of lakehouse, which completed first, is the newest one of the timeline."""
    table = created(options=INDEX | APART | SHARED | {"hoodie.write.table.version": version})
    table.insert(batch("a", 1))
    other = Table.open(table.location, env=table._env, options=INDEX | APART | SHARED)
    with ExitStack() as stack:

        def stream() -> Iterator[pa.RecordBatch]:
            other.upsert(batch("b", 2))
            assert uses_index(other)
            stack.enter_context(foreign())
            yield from batch("a", 3).to_batches()

        table.insert(pa.RecordBatchReader.from_batches(SCHEMA, stream()))
    assert rows(table, "id = 'a'") == [("a", 1), ("a", 3)]
    assert not uses_index(table)


@pytest.mark.parametrize("kind", KINDS)
def test_delete_of_a_key_that_another_program_repeated_removes_all_its_rows(kind: str) -> None:
    table = created(kind)
    table.insert(batch("ab", 1))
    with foreign():
        table.insert(batch("a", 2))
    table.delete(["a"])
    assert rows(table) == [("b", 1)]
    assert rows(table, "id = 'a'") == []
    table.metadata.rebuild()
    assert uses_index(table, where="id = 'b'")
