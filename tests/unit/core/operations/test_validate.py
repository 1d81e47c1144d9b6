"""Validation reports each invariant that a test violates, on copy-on-write and merge-on-read tables."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.cli.main import main
from lakehouse.core.env import Env
from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.format.parquet.bloom_filter import BloomFilter
from lakehouse.core.format.partition_metadata import render_partition_metadata
from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.format.timeline.restore import decode_savepoint, encode_savepoint
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.planning.key_ranges import RANGES_KEY
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import FileInfo, Storage
from lakehouse.core.table.table import Table
from lakehouse.model.commit import WriteStat
from lakehouse.model.instant import Action, Instant
from lakehouse.model.validation import INVARIANTS, ValidationReport
from tests.support.archived import eager
from tests.support.commits import completed_commits, edit_commit, restate
from tests.support.killed import BASE, batch, copy_of, create, open_as
from tests.support.tables import Shape, make_table, row
from tests.support.tables import batch as records

BLOOM = b"org.apache.hudi.bloomfilter"
KINDS = ("SIMPLE", "LOGS_SIMPLE", "BUCKET", "LOGS_BUCKET")
LATER = "29990101000000000"
PROPERTIES = ".hoodie/hoodie.properties"
Break = Callable[[Storage], object]
Stat = WriteStat


@cache
def built(kind: str) -> Storage:
    storage = MemoryStorage()
    table = create(storage, kind)
    table.bulk_insert(batch(BASE))
    table.upsert(batch({("a", "a1"): 2, ("a", "a9"): 2, ("b", "b1"): 2}))
    table.upsert(batch({("a", "a2"): 3}, [("b", "b4")]))
    return storage


@cache
def due_for_archive(kind: str) -> Storage:
    storage = copy_of(built(kind))
    table = eager(open_as(storage, 1))
    for number in range(4):
        table.upsert(batch({("a", "a1"): 4 + number}))
        table.services.clean.run(force=True)
    return storage


@cache
def archived(kind: str) -> Storage:
    storage = copy_of(due_for_archive(kind))
    table = eager(open_as(storage, 1))
    table.services.archive.run(force=True)
    assert table.archived()
    return storage


def report(storage: Storage, *, deep: bool = False) -> ValidationReport:
    return open_as(storage, 999).validate(deep=deep)


def names(storage: Storage, *, deep: bool = False) -> set[str]:
    return {finding.invariant for finding in report(storage, deep=deep).findings}


def bases(storage: Storage) -> list[FileInfo]:
    """Return the base files of the newest slices."""
    live = {s.base.path for s in load_slices(open_as(storage, 998).refresh()) if s.base is not None}
    return [file for file in storage.list("") if file.path in live]


def logs(storage: Storage) -> list[FileInfo]:
    return [f for f in storage.list("") if parse_log_file(f.name, "", 0) and not f.path.startswith(".hoodie/")]


def data_file(storage: Storage) -> FileInfo:
    """Return a log file, or a base file if the table has no log files."""
    return (logs(storage) or bases(storage))[0]


def timeline(storage: Storage, *suffixes: str) -> list[str]:
    """Return the timeline files with these suffixes, oldest first."""
    listed, _ = storage.list_dir(".hoodie/timeline")
    return [file.path for file in listed if file.name.endswith(suffixes)]


def move(storage: Storage, source: str, target: str) -> None:
    storage.put(target, storage.get(source))
    storage.delete(source)


def empty_with_backup(storage: Storage) -> None:
    """Leave what Hudi leaves if it ends after it has created the new properties and before it writes them."""
    storage.put(f"{PROPERTIES}.backup", storage.get(PROPERTIES))
    storage.put(PROPERTIES, b"")


def rewrite(
    storage: Storage,
    change: Callable[[pa.Table], pa.Table] = lambda rows: rows,
    footer: Mapping[bytes, bytes | None] | None = None,
) -> None:
    """Write a base file again with other rows or footer values; a value of None removes the footer entry."""
    path = next(file.path for file in bases(storage) if pq.read_metadata(storage.open_input(file.path)).num_rows > 2)
    with pq.ParquetFile(storage.open_input(path)) as file:
        rows, kept = file.read(), dict(file.metadata.metadata or {})
    kept |= footer or {}
    buffer = io.BytesIO()
    values = {name: value for name, value in kept.items() if value is not None and name != b"ARROW:schema"}
    changed = change(rows).replace_schema_metadata(None)
    with pq.ParquetWriter(buffer, changed.schema, store_schema=False) as writer:
        writer.write_table(changed)
        writer.add_key_value_metadata(values)
    storage.put(path, buffer.getvalue())
    restate(storage, path)


def with_value(rows: pa.Table, column: str, value: str | None, at: int = 1) -> pa.Table:
    values = rows.column(column).cast(pa.string()).to_pylist()
    values[at] = value
    return rows.set_column(rows.schema.get_field_index(column), column, pa.array(values, pa.string()))


def edit_properties(storage: Storage, **values: str) -> None:
    raw = parse_properties(storage.get(PROPERTIES)) | {key.replace("__", "."): v for key, v in values.items()}
    storage.put(PROPERTIES, render_properties(raw))


def edit_extra(storage: Storage, path: str, **values: str) -> None:
    edit_commit(storage, path, lambda m: replace(m, extra={**m.extra, **values}))


def garble(storage: Storage, path: str) -> None:
    storage.put(path, b"\x07" * len(storage.get(path)))


def name_in_savepoint(storage: Storage) -> None:
    open_as(storage, 1).savepoint()
    (path,) = timeline(storage, ".savepoint")
    metadata = decode_savepoint(storage.get(path))
    storage.put(path, encode_savepoint(replace(metadata, files={"a": ("gone.parquet",)})))


def plan(storage: Storage) -> Instant:
    """Plan a compaction, or a clustering if the table has no logs."""
    services = open_as(storage, 1, **{"hoodie.clustering.plan.strategy.sort.columns": "v"}).services
    planned = services.compaction.schedule(force=True) if logs(storage) else services.clustering.schedule(force=True)
    assert isinstance(planned, Instant), planned
    return planned


def plan_and_lose_a_file(storage: Storage) -> None:
    plan(storage)
    storage.delete(data_file(storage).path)


def plan_and_lose_the_plan(storage: Storage) -> None:
    planned = plan(storage)
    storage.put(timeline(storage, f"{planned.requested}.{planned.action}.requested")[0], b"no plan")


def other_token(storage: Storage) -> None:
    file = bases(storage)[0]
    base = parse_base_file(file.name, file.path.rpartition("/")[0], 0)
    assert base is not None
    storage.put(replace(base, write_token="9-9-9").path, storage.get(file.path))


def other_group(storage: Storage) -> None:
    """Leave a file group that no commit lists, as a clustering does whose markers were lost."""
    file = bases(storage)[0]
    base = parse_base_file(file.name, file.path.rpartition("/")[0], 0)
    assert base is not None
    storage.put(replace(base, file_id=f"0000000{base.file_id[7:]}").path, storage.get(file.path))


def begin_and_fail(storage: Storage) -> None:
    storage.put(f".hoodie/timeline/{LATER}.deltacommit.requested", b"")
    storage.put(f".hoodie/timeline/{LATER}.deltacommit.inflight", b"")


def cut(storage: Storage) -> None:
    path = logs(storage)[0].path
    storage.put(path, storage.get(path)[:-20])
    restate(storage, path)


def rename_block(storage: Storage) -> None:
    path = logs(storage)[0].path
    log = parse_log_file(path.rpartition("/")[2], "", 0)
    assert log is not None
    data = storage.get(path)
    at = data.index(log.instant.encode())
    storage.put(path, data[:at] + LATER.encode() + data[at + len(LATER) :])


def swap_type(storage: Storage) -> None:
    path = completed_commits(storage)[-1]
    schema = json.loads(decode_commit(storage.get(path)).extra["schema"])
    for field in schema["fields"]:
        if field["name"] == "v":
            field["type"] = ["null", {"type": "array", "items": "long"}]
    edit_extra(storage, path, schema=json.dumps(schema))


def claim_ranges(storage: Storage) -> None:
    path = bases(storage)[0].path
    for commit in completed_commits(storage):
        metadata = decode_commit(storage.get(commit))
        if path in {stat.path for stat in metadata.stats}:
            ranges = json.loads(metadata.extra.get(RANGES_KEY, "{}"))
            edit_extra(storage, commit, **{RANGES_KEY: json.dumps({**ranges, path: {"v": [100, 200, 0]}})})


def partition_file(storage: Storage) -> str:
    return f"{bases(storage)[0].path.rpartition('/')[0]}/.hoodie_partition_metadata"


def twice(storage: Storage) -> None:
    open_as(storage, 1).bulk_insert(batch({("a", "a1"): 2}))


EMPTY_BLOOM = BloomFilter.build(pa.array([], pa.string()), entries=10, fpp=0.1)
#: Found without opening data files: invariant -> how to violate it, table types, other findings it causes.
SHALLOW: list[tuple[str, Break, tuple[str, ...], frozenset[str]]] = [
    ("properties.checksum", lambda s: edit_properties(s, hoodie__table__checksum="1"), KINDS, frozenset()),
    ("properties.present", lambda s: move(s, PROPERTIES, f"{PROPERTIES}.backup"), KINDS, frozenset()),
    ("properties.present", empty_with_backup, KINDS, frozenset()),
    (
        "timeline.unique",
        lambda s: s.put(completed_commits(s)[0].replace("_2", "_3"), s.get(completed_commits(s)[0])),
        KINDS[:2],
        frozenset(),
    ),
    ("timeline.requested", lambda s: s.delete(timeline(s, "commit.requested")[0]), KINDS[:2], frozenset()),
    ("timeline.readable", lambda s: s.put(completed_commits(s)[-1], b"no commit"), KINDS[:2], frozenset()),
    ("timeline.readable", plan_and_lose_the_plan, KINDS[:2], frozenset()),
    ("timeline.dead", begin_and_fail, KINDS[:2], frozenset()),
    ("plan.files", plan_and_lose_a_file, KINDS[:2], frozenset({"file.present"})),
    ("savepoint.files", name_in_savepoint, KINDS[:2], frozenset()),
    ("file.present", lambda s: s.delete(bases(s)[0].path), KINDS, frozenset()),
    ("file.present", lambda s: s.delete(data_file(s).path), KINDS, frozenset()),
    ("file.size", lambda s: s.put(data_file(s).path, s.get(data_file(s).path) + b"!"), KINDS, frozenset()),
    ("file.kind", lambda s: s.put("a/.f_20260101000000000.log.1_0-0-0", b""), KINDS[:1], frozenset()),
    ("file.orphan", other_token, KINDS, frozenset()),
    ("file.unnamed", other_group, KINDS[:2], frozenset()),
    ("leftover", lambda s: s.put(f".hoodie/.heartbeat/{LATER}", b"{}"), KINDS[:2], frozenset()),
    ("leftover", lambda s: s.put(f".hoodie/.temp/{LATER}/MARKERS0", b""), KINDS[:2], frozenset()),
    ("leftover", lambda s: s.put(f".hoodie/.staging/{LATER}/x", b""), KINDS[:2], frozenset()),
    ("leftover", lambda s: s.put("a/.half.parquet.1.tmp", b""), KINDS[:2], frozenset()),
    ("partition.metadata", lambda s: s.delete(partition_file(s)), KINDS, frozenset()),
    ("schema.readable", lambda s: edit_extra(s, completed_commits(s)[-1], schema="{"), KINDS[:2], frozenset()),
    (
        "bucket.layout",
        lambda s: edit_properties(s, hoodie__bucket__index__num__buckets="1"),
        ("BUCKET", "LOGS_BUCKET"),
        frozenset(),
    ),
]
#: Found by reading data files.
DEEP: list[tuple[str, Break, tuple[str, ...], frozenset[str]]] = [
    ("partition.metadata", lambda s: s.put(partition_file(s), b"?"), KINDS[:2], frozenset()),
    (
        "partition.metadata",
        lambda s: s.put(partition_file(s), render_partition_metadata("20260101000000000", 2)),
        KINDS[:2],
        frozenset(),
    ),
    ("file.readable", lambda s: garble(s, bases(s)[0].path), KINDS, frozenset({"unchecked"})),
    ("log.readable", lambda s: garble(s, logs(s)[0].path), ("LOGS_SIMPLE", "LOGS_BUCKET"), frozenset({"unchecked"})),
    ("log.readable", cut, ("LOGS_SIMPLE", "LOGS_BUCKET"), frozenset({"unchecked"})),
    ("log.instant", rename_block, ("LOGS_SIMPLE", "LOGS_BUCKET"), frozenset()),
    ("file.schema", swap_type, KINDS[:2], frozenset({"file.column_ranges"})),
    (
        "file.rows",
        lambda s: restate(s, bases(s)[0].path, lambda stat: replace(stat, num_writes=stat.num_writes + 1)),
        KINDS,
        frozenset(),
    ),
    (
        "file.keys",
        lambda s: rewrite(s, lambda rows: with_value(rows, "_hoodie_record_key", None)),
        KINDS[:2],
        frozenset({"file.column_ranges"}),
    ),
    (
        "file.meta_columns",
        lambda s: rewrite(s, lambda rows: with_value(rows, "_hoodie_partition_path", "z")),
        KINDS,
        frozenset({"file.key_values", "metadata.bounds"}),
    ),
    (
        "file.key_values",
        lambda s: rewrite(s, lambda rows: with_value(rows, "id", "another")),
        KINDS,
        frozenset({"file.column_ranges", "metadata.bounds"}),
    ),
    (
        "file.meta_columns",
        lambda s: rewrite(s, lambda rows: with_value(rows, "_hoodie_file_name", None)),
        KINDS,
        frozenset(),
    ),
    ("file.key_range", lambda s: rewrite(s, footer={b"hoodie_min_record_key": b"zz"}), KINDS, frozenset()),
    ("file.key_range", lambda s: rewrite(s, footer={b"hoodie_max_record_key": b"0"}), KINDS, frozenset()),
    ("file.key_range", lambda s: rewrite(s, footer={b"hoodie_max_record_key": None}), KINDS[:2], frozenset()),
    ("file.bloom", lambda s: rewrite(s, footer={BLOOM: EMPTY_BLOOM.to_text().encode()}), KINDS, frozenset()),
    ("file.bloom", lambda s: rewrite(s, footer={BLOOM: b"not base64!"}), KINDS[:2], frozenset()),
    ("file.bloom_absent", lambda s: rewrite(s, footer={BLOOM: None}), KINDS, frozenset()),
    ("file.column_ranges", claim_ranges, KINDS, frozenset()),
    ("key.unique", twice, KINDS[:3], frozenset()),
    (
        "bucket.rows",
        lambda s: edit_properties(s, hoodie__bucket__index__num__buckets="3"),
        ("BUCKET", "LOGS_BUCKET"),
        frozenset(),
    ),
]


def cases(found: Iterable[tuple[str, Break, tuple[str, ...], frozenset[str]]]) -> list[Any]:
    return [
        pytest.param(kind, name, broken, beside, id=f"{name}-{number}-{kind}")
        for number, (name, broken, kinds, beside) in enumerate(found)
        for kind in kinds
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_valid_tables_have_no_findings(kind: str) -> None:
    for storage in (built(kind), archived(kind)):
        before = {file.path: storage.get(file.path) for file in storage.list("")}
        found = report(storage, deep=True)
        assert found.findings == () and found.rows and found.file_groups and found.instants
        assert {file.path: storage.get(file.path) for file in storage.list("")} == before, "nothing is written"


@pytest.mark.parametrize(("kind", "name", "broken", "beside"), cases(SHALLOW))
def test_shallow_validation_finds_violations_without_opening_files(
    kind: str, name: str, broken: Break, beside: frozenset[str]
) -> None:
    storage = copy_of(built(kind))
    broken(storage)
    assert names(storage) - beside == {name}


@pytest.mark.parametrize(("kind", "name", "broken", "beside"), cases(DEEP))
def test_deep_validation_finds_violations_in_files(kind: str, name: str, broken: Break, beside: frozenset[str]) -> None:
    storage = copy_of(built(kind))
    broken(storage)
    shallow, deep = names(storage), names(storage, deep=True)
    assert deep - beside == {name}
    assert not shallow, "shallow validation opens no data file"


@pytest.mark.parametrize("kind", KINDS[:2])
def test_broken_archive_is_reported(kind: str) -> None:
    whole = archived(kind)
    parquet = next(f.path for f in whole.list(".hoodie/timeline/history") if f.name.endswith(".parquet"))
    manifest = [f.path for f in whole.list(".hoodie/timeline/history") if f.name.startswith("manifest_")][-1]
    breaks: list[Break] = [
        lambda s: s.delete(parquet),
        lambda s: garble(s, parquet),
        lambda s: s.put(parquet, s.get(parquet) + b"!"),
        lambda s: s.put(manifest, b"{"),
    ]
    for broken in breaks:
        storage = copy_of(whole)
        broken(storage)
        assert names(storage) - {"unchecked"} == {"archive.readable"}


@pytest.mark.parametrize("kind", KINDS[:2])
def test_instants_left_by_a_failed_archive_are_a_warning(kind: str) -> None:
    storage = copy_of(archived(kind))
    for path in timeline(due_for_archive(kind), ""):
        storage.put(path, due_for_archive(kind).get(path))
    found = report(storage)
    assert {finding.invariant for finding in found.findings} == {"timeline.archived"} and not found.corrupt


def test_deep_validation_reads_change_logs() -> None:
    table = make_table(Shape(options={"hoodie.table.cdc.enabled": "true"}))
    table.upsert(records([row("k1"), row("k2")]))
    table.upsert(records([row("k1", ts=2), row("k3", ts=2)]))
    storage = table.refresh().env.storage
    (changes,) = [file for file in storage.list("") if file.name.endswith(".cdc")]
    assert table.validate(deep=True).findings == ()
    whole = storage.get(changes.path)
    for data in (b"\x07" * len(whole), whole[:-9] + b"\x07" * 9, whole.replace(b"k1", b"\xff\xff")):
        storage.put(changes.path, data)
        assert {(f.invariant, f.path) for f in table.validate(deep=True).findings} == {("log.readable", changes.path)}
    storage.delete(changes.path)
    assert {(f.invariant, f.path) for f in table.validate().findings} == {("file.present", changes.path)}


def test_missing_file_is_reported_with_path_instant_and_hint() -> None:
    storage = copy_of(built("SIMPLE"))
    lost = parse_base_file(bases(storage)[0].name, "", 0)
    path = bases(storage)[0].path
    storage.delete(path)
    (finding,) = report(storage).findings
    assert lost is not None and (finding.path, finding.instant) == (path, lost.instant)
    assert "backup" in finding.way_out and "missing" in finding.problem


def test_cleaned_files_are_not_reported() -> None:
    storage = copy_of(built("SIMPLE"))
    table = Table.open(storage.root, options={"hoodie.clean.commits.retained": "1"}, env=Env(storage=storage))
    table.upsert(batch({("a", "a1"): 7}))
    assert table.services.clean.run(force=True)
    assert report(storage, deep=True).findings == ()


def test_files_cleaned_by_an_archived_clean_are_not_reported() -> None:
    storage = copy_of(due_for_archive("SIMPLE"))
    before = {path: storage.get(path) for path in timeline(storage, "commit", ".inflight")}
    eager(open_as(storage, 1)).services.archive.run(force=True)
    actions = open_as(storage, 1).refresh().store.archived_actions(Action.CLEAN, "")
    assert actions and report(storage).findings == ()
    youngest = max(action.instant.requested for action in actions)
    # Hudi counts cleans separately, so it may archive a clean before the commits of the same time.
    for path, data in before.items():
        if ".clean" not in path and path.rpartition("/")[2][:17] < youngest:
            storage.put(path, data)
    assert {finding.invariant for finding in report(storage).findings} == {"timeline.archived"}


def test_concurrent_changes_are_no_findings() -> None:
    class Late(MemoryStorage):
        """Runs a clean between the listing and the load of the timeline."""

        turn: Callable[[], object] | None = None

        def list_dir(self, prefix: str) -> Any:
            found = super().list_dir(prefix)
            if prefix == "" and self.turn is not None:
                turn, self.turn = self.turn, None
                turn()
            return found

    storage = Late()
    for file in built("SIMPLE").list(""):
        storage.put(file.path, built("SIMPLE").get(file.path))
    table = Table.open(storage.root, options={"hoodie.clean.commits.retained": "1"}, env=Env(storage=storage))

    def meanwhile() -> None:
        table.upsert(batch({("a", "a1"): 8, ("new", "n1"): 8}))
        table.services.clean.run(force=True)

    storage.turn = meanwhile
    assert report(storage, deep=True).corrupt == ()
    assert storage.turn is None


def test_key_that_moves_during_a_validation_is_no_duplicate() -> None:
    class Late(MemoryStorage):
        """Runs a write after the listing of one partition and before the listing of the other."""

        turn: Callable[[], object] | None = None
        listed = threading.Event()

        def list(self, prefix: str) -> Any:
            if prefix == "b" and self.turn is not None:
                turn, self.turn = self.turn, None
                assert self.listed.wait(60)
                turn()
            found = super().list(prefix)
            if prefix == "a":
                self.listed.set()
            return found

    storage = Late()
    options = {"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "true"}
    table = Table.create(
        storage.root, name="t", record_key=["id"], partition_by=["p"], options=options, env=Env(storage=storage)
    )
    table.upsert(batch({("a", "k1"): 1, ("a", "k2"): 1, ("b", "k3"): 1}))
    storage.listed.clear()
    storage.turn = lambda: table.upsert(batch({("b", "k1"): 2}))
    assert Table.open(storage.root, env=Env(storage=storage)).validate(deep=True).findings == ()
    assert storage.turn is None and table.scan().count() == 3


def test_command_prints_the_report_and_sets_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = open_storage(str(tmp_path / "t"))
    table = create(storage, "LOGS_SIMPLE")
    table.bulk_insert(batch(BASE))
    table.upsert(batch({("a", "a1"): 2}))
    words = ["table", "validate", "--table", table.location, "--output", "json"]

    def run(*more: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main([*words, *more])
        return code, json.loads(capsys.readouterr().out)

    code, answer = run("--deep")
    assert (code, answer["corrupt"], answer["findings"], answer["rows"]) == (0, 0, [], len(BASE) + 1)
    twice(storage)
    code, answer = run("--deep")
    assert (code, answer["warnings"]) == (0, 1)
    path = bases(storage)[0].path
    storage.delete(path)
    code, answer = run()
    assert (code, answer["corrupt"]) == (65, 1)
    assert answer["findings"][0] | {"problem": ""} == {
        "invariant": "file.present",
        "severity": "corrupt",
        "path": path,
        "instant": answer["findings"][0]["instant"],
        "problem": "",
        "repair": INVARIANTS["file.present"].way_out,
    }
    assert main([*words[:-2]]) == 65 and "file.present" in capsys.readouterr().out


def test_every_invariant_is_violated_by_a_test() -> None:
    broken = {name for name, *_ in (*SHALLOW, *DEEP)} | {"timeline.order", "timeline.archived", "archive.readable"}
    # Other errors cause the finding `unchecked`. Other modules test keys in several partitions, a table that was
    # upgraded, and bounds.
    elsewhere = {"unchecked", "key.global", "timeline.completions", "metadata.bounds"}
    assert broken | elsewhere == set(INVARIANTS)
