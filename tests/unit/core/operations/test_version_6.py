"""Tables of version 6: properties, files of writes, log files by slice, rollbacks by command blocks, refusals."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.files.stage.markers import read_markers
from lakehouse.core.format.file_names import parse_log_file
from lakehouse.core.format.log.blocks import BlockHeader, BlockType
from lakehouse.core.operations.commit.cleanup import read_rollback_plan
from lakehouse.core.operations.commit.results import Committed, Conflict, NothingToDo
from lakehouse.core.operations.undo.rollback import roll_back
from lakehouse.core.operations.write import staged
from lakehouse.core.table.table import Table
from lakehouse.errors import ConflictError, UnsupportedError
from lakehouse.model.attempt import Attempt, is_token_of, rollback_token
from lakehouse.model.instant import Action, Instant, State
from lakehouse.model.keys import TimestampFormat
from tests.support.shared import fixtures
from tests.support.version_6 import (
    MANY_WRITERS,
    assert_valid,
    batch,
    blocks,
    committed,
    created,
    failing,
    instants,
    logs,
    properties,
    values,
)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_properties_have_the_names_that_hudi_0_15_reads(kind: str, tmp_path: Path) -> None:
    raw = properties(created(tmp_path, kind))
    assert raw["hoodie.table.version"] == "6" and raw["hoodie.timeline.layout.version"] == "1"
    assert raw["hoodie.table.precombine.field"] == "ts" and raw["hoodie.archivelog.folder"] == "archived"
    assert raw["hoodie.table.keygenerator.class"] == "org.apache.hudi.keygen.SimpleKeyGenerator"
    assert raw["hoodie.compaction.payload.class"].endswith(".DefaultHoodieRecordPayload")
    assert raw["hoodie.table.timeline.timezone"] == "UTC"
    newer = ("merge.mode", "keygenerator.type", "ordering.fields", "initial.version", "timeline.path", "strategy")
    assert [key for key in raw if any(part in key for part in newer)] == []


def test_table_without_ordering_column_stores_the_payload_that_lets_the_later_row_win(tmp_path: Path) -> None:
    table = created(tmp_path, ordering=None)
    assert properties(table)["hoodie.compaction.payload.class"].endswith(".OverwriteWithLatestAvroPayload")
    table.insert(batch(["a1"], 5, "x"))
    table.upsert(batch(["a1"], 4, "y"))
    assert values(table) == {"a1": "y"}


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        (
            {"partition_by": ("p:SIMPLE", "ts:TIMESTAMP"), "timestamp": TimestampFormat(type="EPOCHMILLISECONDS")},
            "types",
        ),
        ({"ordering": ("ts", "v")}, "several ordering columns"),
        ({"merge_mode": "COMMIT_TIME_ORDERING"}, "COMMIT_TIME_ORDERING"),
        ({"ordering": None, "column_groups": {"ts": ("v",)}}, "column groups"),
        ({"options": {"lakehouse.delete_retention": "7d"}}, "remembered deletes"),
        ({"cdc": "DATA_BEFORE_AFTER"}, "change logs of merge-on-read tables"),
        (
            {"options": {"hoodie.index.type": "BUCKET", "hoodie.index.bucket.engine": "CONSISTENT_HASHING"}},
            "consistent hashing",
        ),
    ],
)
def test_table_that_hudi_0_15_would_misread_is_not_created(
    declared: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=f"(?i){reason}.*version"):
        created(tmp_path, **declared)
    assert not (tmp_path / "table").exists()


def test_copy_on_write_leaves_the_files_of_every_state(tmp_path: Path) -> None:
    table = created(tmp_path, "COPY_ON_WRITE")
    table.insert(batch(["a1", "a2", "b1"], 1, "x"))
    table.upsert(batch(["a1", "c1"], 2, "y"))
    table.delete(batch(["a2"], 3, "").select(["id", "p"]))
    table.insert_overwrite(batch(["b7"], 4, "z"))
    assert values(table) == {"a1": "y", "c1": "y", "b7": "z"}
    assert instants(table) == {
        "commit",
        "commit.requested",
        "inflight",
        "replacecommit",
        "replacecommit.requested",
        "replacecommit.inflight",
    }
    for path in (Path(table.location) / ".hoodie").glob("*.*commit"):
        assert json.loads(path.read_bytes())["extraMetadata"]["schema"]
    assert_valid(table)
    assert {instant.completed for instant, _ in Table.open(table.location).commits()} == {None}


def test_inflight_profile_lists_new_rows_per_partition_and_changed_groups(tmp_path: Path) -> None:
    table = created(tmp_path)
    first = committed(table.insert(batch(["a1"], 1, "x")))
    second = committed(table.upsert(batch(["a1", "b1"], 2, "y")))
    profile = json.loads((Path(table.location) / f".hoodie/{second.requested}.deltacommit.inflight").read_bytes())
    stats = profile["partitionToWriteStats"]
    assert [(s["fileId"], s["prevCommit"], s["numInserts"]) for s in stats["b"]] == [("", "null", 1)]
    assert [(bool(s["fileId"]), s["prevCommit"]) for s in stats["a"]] == [(False, "null"), (True, first.requested)]


# --- log files


def test_logs_are_named_by_the_base_instant_with_ascending_versions(tmp_path: Path) -> None:
    table = created(tmp_path)
    base = committed(table.insert(batch(["a1", "a2"], 1, "x")))
    second, third = committed(table.upsert(batch(["a1"], 2, "y"))), committed(table.upsert(batch(["a1"], 3, "z")))
    files = [log for name in logs(table) if (log := parse_log_file(name, "a", 0))]
    assert [(file.instant, file.version) for file in files] == [(base.requested, 1), (base.requested, 2)]
    assert [is_token_of(file.write_token, by.requested) for file, by in zip(files, (second, third), strict=True)] == [
        True,
        True,
    ]
    (stat,) = table.services_as_loaded.table.refresh().store.commit(third).stats
    assert (stat.prev_commit, stat.log_version or 2) == (base.requested, 2)
    assert stat.base_file.endswith(f"_{base.requested}.parquet") and stat.log_files == tuple(logs(table))
    (block,) = blocks(table, logs(table)[1])
    assert set(block.headers) == {BlockHeader.INSTANT_TIME, BlockHeader.SCHEMA} and block.instant == third.requested
    assert values(table) == {"a1": "z", "a2": "x"}


def test_log_is_named_after_a_pending_compaction_and_read_before_and_after_it(tmp_path: Path) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1", "a2"], 1, "x"))
    table.upsert(batch(["a1"], 2, "y"))
    plan = table.services.compaction.schedule(force=True)
    assert isinstance(plan, Instant)
    delta = committed(table.upsert(batch(["a2"], 3, "z")))
    (named,) = [name for name in logs(table) if plan.requested in name]
    (stat,) = table.services_as_loaded.table.refresh().store.commit(delta).stats
    assert (stat.prev_commit, stat.base_file, stat.log_files or (named,)) == (plan.requested, "", (named,))
    assert values(table) == {"a1": "y", "a2": "z"}
    table.services.compaction.run(instant=plan.requested)
    assert values(table) == {"a1": "y", "a2": "z"}
    assert_valid(table)


def test_partial_update_writes_complete_rows(tmp_path: Path) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1", "a2"], 1, "x"))
    table.upsert(batch(["a1"], 2, "").drop_columns(["v"]))
    (block,) = blocks(table, logs(table)[0])
    assert not block.is_partial and '"v"' in (block.schema or "")
    assert values(table) == {"a1": "x", "a2": "x"}


def test_attempt_tokens_of_two_writes_differ_and_fit_31_bits() -> None:
    first = Attempt(partition=3, stage=7, number=2, instant="20261130003339929")
    planned = Attempt.planned(3)
    tokens = {first.token, Attempt(partition=3, stage=7, number=3, instant="20261130003339929").token}
    tokens |= {
        Attempt(partition=3, stage=0, number=0, first=True, instant=time).token
        for time in ("20261130003339929", "20261130003339930", "20261130003340929")
    }
    assert len(tokens) == 5 and all(int(part) < 1 << 31 for token in tokens for part in token.split("-"))
    assert is_token_of(first.token, "20261130003339929") and not is_token_of(first.token, "20261130003339930")
    assert planned.token == "3-0-0" and not is_token_of(planned.token, "20261130003339929")
    undoing = rollback_token("20261130003339929")
    assert undoing not in tokens and not is_token_of(undoing, "20261130003339929")


# --- order of writes


def interrupted(monkeypatch: pytest.MonkeyPatch, before: Any) -> None:
    """Run `before` once, after a write has planned its log files and before its inflight file exists."""
    original, calls = staged.start_in_order, [before]

    def start(*arguments: Any) -> Any:
        if calls:
            calls.pop()()
        return original(*arguments)

    monkeypatch.setattr(staged, "start_in_order", start)


def test_write_repeats_if_a_compaction_of_its_group_was_planned_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1", "a2"], 1, "x"))
    table.upsert(batch(["a1"], 2, "y"))
    interrupted(monkeypatch, lambda: Table.open(table.location).services.compaction.run(force=True))
    table.upsert(batch(["a1"], 3, "late"))
    assert values(table) == {"a1": "late", "a2": "x"}
    assert_valid(table)


def test_two_writers_of_one_group_conflict_before_the_second_one_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1", "a2"], 1, "x"))
    writer = table.with_options(MANY_WRITERS)
    interrupted(monkeypatch, lambda: Table.open(table.location, options=MANY_WRITERS).upsert(batch(["a2"], 2, "y")))
    with pytest.raises(ConflictError, match="changed file group"):
        writer.upsert(batch(["a1"], 3, "late"))
    assert len(logs(table)) == 1 and values(table) == {"a1": "x", "a2": "y"}


def test_compaction_skips_groups_that_a_pending_write_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1", "b1"], 1, "x"))
    table.upsert(batch(["a1", "b1"], 2, "y"))
    failing(monkeypatch, table, batch(["a1"], 3, "pending"))
    plan = table.services.compaction.plan(force=True)
    assert not isinstance(plan, NothingToDo)
    assert {operation.partition for operation in plan.operations} == {"b"}


# --- rollback and restore


@pytest.mark.parametrize("has_markers", [True, False])
def test_failed_write_is_rolled_back_by_a_command_block(
    has_markers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path)
    base = committed(table.insert(batch(["a1", "b1"], 1, "x")))
    table.upsert(batch(["a1", "b1"], 2, "y"))
    pending = failing(monkeypatch, table, batch(["a1", "c1"], 3, "failed"))
    if not has_markers:
        shutil.rmtree(Path(table.location) / ".hoodie/.temp" / pending)
    before = logs(table)
    committed(table.upsert(batch(["b1"], 4, "z")))
    (command,) = set(logs(table)) - set(before)
    log, (block,) = parse_log_file(command, "a", 0), blocks(table, command)
    assert log is not None and (log.instant, log.version) == (base.requested, 3)
    assert block.kind is BlockType.COMMAND and block.target == pending
    assert (Path(table.location) / "a" / command).stat().st_size == 105
    rollback = next(i for i in Table.open(table.location).timeline if i.action is Action.ROLLBACK)
    assert block.instant == rollback.requested and rollback.is_completed
    plan = read_rollback_plan(table.services_as_loaded.table.refresh(), rollback)
    assert plan is not None
    (request,) = (request for request in plan.requests if request.base_instant)
    assert (request.base_instant, request.partition) == (base.requested, "a") and list(request.logs) == [before[-1]]
    assert not list((Path(table.location) / "c").glob("*.parquet"))
    assert not read_markers(table.services_as_loaded.table.env.storage, rollback.requested)
    assert values(table) == {"a1": "y", "b1": "z"}
    assert_valid(table)


def test_markers_of_log_files_have_the_kind_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1"], 1, "x"))
    pending = failing(monkeypatch, table, batch(["a1"], 2, "y"))
    markers = read_markers(table.services_as_loaded.table.env.storage, pending)
    assert [name for names in markers.values() for name in names] == [f"a/{logs(table)[0]}.marker.APPEND"]


def test_repeated_rollback_appends_one_command_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1"], 1, "x"))
    pending = failing(monkeypatch, table, batch(["a1"], 2, "y"))
    from lakehouse.core.operations.undo import rollback

    with monkeypatch.context() as patch:
        patch.setattr(rollback, "complete_action", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            table.rollback_failed()
    assert len(logs(table)) == 2
    table.rollback_failed()
    assert len(logs(table)) == 2 and values(table) == {"a1": "x"}
    assert not [i for i in Table.open(table.location).timeline if i.requested == pending or not i.is_completed]


def test_newest_completed_write_is_rolled_back_by_a_command_block(tmp_path: Path) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1"], 1, "x"))
    newest = committed(table.upsert(batch(["a1", "b1"], 2, "gone")))
    table.rollback(newest.requested)
    assert values(table) == {"a1": "x"} and len(logs(table)) == 2
    table.upsert(batch(["a1"], 3, "z"))
    assert values(table) == {"a1": "z"}
    assert_valid(table)


def test_restore_undoes_deltas_before_and_after_a_compaction(tmp_path: Path) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1", "a2", "b1"], 1, "x"))
    target = committed(table.upsert(batch(["a1"], 2, "y")))
    table.savepoint(target.requested)
    table.upsert(batch(["a1"], 3, "undone"))
    plan = table.services.compaction.schedule(force=True)
    assert isinstance(plan, Instant)
    table.upsert(batch(["a2"], 4, "undone"))
    table.services.compaction.run(instant=plan.requested)
    table.upsert(batch(["a1", "b1", "c1"], 5, "undone"))
    table.restore(target.requested)
    assert values(table) == {"a1": "y", "a2": "x", "b1": "x"}
    assert not [name for name in logs(table) if plan.requested in name]
    table.upsert(batch(["a2"], 6, "z"))
    assert values(table) == {"a1": "y", "a2": "z", "b1": "x"}
    assert_valid(table)


def test_compaction_plan_with_later_rows_is_not_dropped(tmp_path: Path) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1"], 1, "x"))
    table.upsert(batch(["a1"], 2, "y"))
    plan = table.services.compaction.schedule(force=True)
    assert isinstance(plan, Instant)
    table.upsert(batch(["a1"], 3, "z"))
    roll_back(table.services_as_loaded.table.refresh(), table.services_as_loaded.policies.transaction, plan.requested)
    assert values(table) == {"a1": "z"}
    assert table.timeline.find(plan.requested) == Instant(
        requested=plan.requested, action=Action.COMPACTION, state=State.REQUESTED
    )


def test_restore_deletes_the_logs_of_groups_that_begin_with_a_log(tmp_path: Path) -> None:
    buckets = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}
    table = created(tmp_path, options=buckets | {"lakehouse.bucket.inserts": "log"})
    target = committed(table.insert(batch(["a1"], 1, "x")))
    table.insert(batch(["b1"], 2, "undone"))
    table.upsert(batch(["b1"], 3, "undone"))
    table.restore(target.requested)
    assert values(table) == {"a1": "x"} and logs(table, "b") == []
    table.upsert(batch(["b1"], 4, "y"))
    assert values(table) == {"a1": "x", "b1": "y"}
    assert_valid(table)


# --- services


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_clustering_clean_and_partition_deletes_leave_a_valid_table(kind: str, tmp_path: Path) -> None:
    clean = {
        "hoodie.clustering.plan.strategy.sort.columns": "v",
        "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
        "hoodie.clean.fileversions.retained": "1",
    }
    table = created(tmp_path, kind, options=clean)
    for turn in range(3):
        table.upsert(batch(["a1", "a2", "b1"], turn, f"turn {turn}"))
    if kind == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
    clustered = table.services.clustering.run(force=True)
    assert isinstance(clustered, Committed) and clustered.instant.action is Action.REPLACECOMMIT
    table.upsert(batch(["a1"], 9, "last"))
    before = len(list(Path(table.location).rglob("*.parquet")))
    table.services.clean.run(force=True)
    assert len(list(Path(table.location).rglob("*.parquet"))) < before
    assert values(table) == {"a1": "last", "a2": "turn 2", "b1": "turn 2"}
    table.delete_partitions(["b"])
    assert values(table) == {"a1": "last", "a2": "turn 2"}
    assert_valid(table)


def test_log_compaction_and_indexes_are_refused_by_name(tmp_path: Path) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1"], 1, "x"))
    with pytest.raises(UnsupportedError, match="log compaction is not available for tables of version 6; run a comp"):
        table.services.log_compaction.run(force=True)
    with pytest.raises(UnsupportedError, match="other writers of tables of version 6 do not maintain it"):
        table.services.create_index("v")
    with pytest.raises(UnsupportedError, match="leave the option out"):
        table.with_options({"lakehouse.delete_retention": "1d"}).upsert(batch(["a1"], 2, "y"))


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_non_blocking_writers_are_refused_with_the_mode_that_works(kind: str, tmp_path: Path) -> None:
    buckets = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
    non_blocking = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
    remedy = "completion times, which tables of version 6 do not have; declare hoodie.write.*=OPTIMISTIC_CONCURRENCY"
    with pytest.raises(UnsupportedError, match=remedy):
        created(tmp_path, kind, options=buckets | non_blocking)
    assert not (tmp_path / "table").exists()
    table = created(tmp_path, kind, options=buckets)
    with pytest.raises(UnsupportedError, match=remedy):
        table.with_options(non_blocking).upsert(batch(["a1"], 1, "x"))
    assert isinstance(table.with_options(MANY_WRITERS).upsert(batch(["a1"], 1, "x")), Committed)


def test_metadata_table_of_hudi_is_kept_until_it_is_removed(tmp_path: Path) -> None:
    with zipfile.ZipFile(fixtures("hudi_v6/cow_v6_h015_mdt_services.zip")) as archive:
        archive.extractall(tmp_path)
    (hoodie,) = (
        tmp_path.rglob("hoodie.properties")
        if (tmp_path / ".hoodie").exists()
        else [path for path in tmp_path.glob("*/.hoodie/hoodie.properties")]
    )
    table = Table.open(str(hoodie.parents[1]))
    before = values(table)
    rows = table.scan().to_arrow().slice(0, 1)
    rows = rows.drop_columns([name for name in rows.column_names if name.startswith("_hoodie")])
    # Hudi 0.15 cuts the names of deleted files, so its column statistics of them stay. No reader looks for them.
    assert table.metadata.validate().ok
    assert isinstance(table.upsert(rows), Committed)
    assert Table.open(table.location).metadata.validate().ok
    removed = table.with_options({"hoodie.metadata.enable": "false"}).metadata.rebuild()
    assert "files" in removed.dropped and not removed.partitions
    table = Table.open(table.location)
    assert values(table) == before
    assert isinstance(table.upsert(rows), Committed | Conflict)
    assert values(table) == before
    assert_valid(table)


@pytest.mark.parametrize("payload", ["AWSDmsAvroPayload", "PartialUpdateAvroPayload"])
def test_payload_class_is_stored_without_properties_of_hudi_1(payload: str) -> None:
    name = f"org.apache.hudi.common.model.{payload}"
    made = {
        version: Table.create(
            f"memory://payloads-{payload}-{version}",
            name="t",
            record_key="id",
            ordering="at",
            payload_class=name,
            options={"hoodie.write.table.version": version},
        ).config
        for version in ("6", "8")
    }
    assert made["6"].raw["hoodie.compaction.payload.class"] == name
    assert not {"hoodie.record.merge.mode", "hoodie.record.merge.strategy.id"} & made["6"].raw.keys()
    assert made["6"].merge_rule == made["8"].merge_rule


# --- clustering, TTL and leftovers
