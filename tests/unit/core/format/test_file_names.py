"""Test the parsing and rendering of names of data files, instants and markers."""

from __future__ import annotations

import pytest

from lakehouse.core.format.file_names import (
    marker_name,
    parse_base_file,
    parse_instant,
    parse_log_file,
    parse_marker,
)
from lakehouse.core.layout.registry import table_layout
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.instant import Action, Instant, State

UUID = "6e1d5cc4-c487-487d-abbe-fe9b30b1c0cc-0"
T, C = "20251220210108078", "20251220210109999"


def test_a_base_file_name_is_parsed_into_file_id_token_and_instant() -> None:
    name = f"{UUID}_2-986-2794_{T}.parquet"
    parsed = parse_base_file(name, "region=us/day=1", 17)
    assert parsed is not None
    assert (parsed.file_id, parsed.write_token, parsed.instant) == (UUID, "2-986-2794", T)
    assert (parsed.name, parsed.path, parsed.size_bytes) == (name, f"region=us/day=1/{name}", 17)


@pytest.mark.parametrize(
    "name",
    [
        ".hoodie_partition_metadata",
        "_tmp.parquet",
        "part-0000.parquet",
        f"{UUID}_2-986-2794_{T}.parquet.tmp",
        f".{UUID}_2-986-2794_{T}.parquet.crc",
        f"._{UUID}_2-986-2794_{T}.parquet",
        f"{UUID}_2-986-2794_{T}_1.log.parquet",
        f".{UUID}_{T}.log.1_0-1-2",
    ],
)
def test_another_name_is_not_a_base_file(name: str) -> None:
    assert parse_base_file(name, "", 1) is None


def test_a_log_file_name_is_parsed_into_file_id_instant_version_and_token() -> None:
    name = f".{UUID}_{T}.log.12_0-1-2"
    parsed = parse_log_file(name, "", 9)
    assert parsed is not None
    assert (parsed.file_id, parsed.instant, parsed.version, parsed.write_token) == (UUID, T, 12, "0-1-2")
    assert (parsed.name, parsed.path) == (name, name)


@pytest.mark.parametrize("name", [f".{UUID}_{T}.log.1_0-1-2.cdc", f".{UUID}_{T}.log.1_0-1-2.crc", ".hoodie", "x"])
def test_change_logs_and_other_names_are_not_log_files(name: str) -> None:
    assert parse_log_file(name, "", 1) is None


def test_a_log_without_write_token_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no write token"):
        parse_log_file(f".{UUID}_{T}.log.1", "", 1)


ROWS = [
    (f"{T}.commit.requested", Action.COMMIT, State.REQUESTED),
    (f"{T}.inflight", Action.COMMIT, State.INFLIGHT),
    (f"{T}.deltacommit.inflight", Action.DELTACOMMIT, State.INFLIGHT),
    (f"{T}.replacecommit.requested", Action.REPLACECOMMIT, State.REQUESTED),
    (f"{T}.compaction.requested", Action.COMPACTION, State.REQUESTED),
    (f"{T}.logcompaction.inflight", Action.LOGCOMPACTION, State.INFLIGHT),
    (f"{T}.clean.inflight", Action.CLEAN, State.INFLIGHT),
    (f"{T}.rollback.requested", Action.ROLLBACK, State.REQUESTED),
    (f"{T}.restore.requested", Action.RESTORE, State.REQUESTED),
    (f"{T}.indexing.inflight", Action.INDEXING, State.INFLIGHT),
    (f"{T}.savepoint.inflight", Action.SAVEPOINT, State.INFLIGHT),
]


@pytest.mark.parametrize(("name", "action", "state"), ROWS)
def test_pending_names_are_the_same_in_both_layouts(name: str, action: Action, state: State) -> None:
    instant = Instant(requested=T, action=action, state=state)
    assert parse_instant(name) == instant
    assert table_layout(6).instant_name(instant) == table_layout(9).instant_name(instant) == name


@pytest.mark.parametrize("action", ["commit", "deltacommit", "replacecommit", "clean", "rollback", "savepoint"])
def test_completed_names_have_the_completion_time_only_in_layout_2(action: str) -> None:
    old = Instant(requested=T, action=Action(action), state=State.COMPLETED)
    new = Instant(requested=T, action=Action(action), state=State.COMPLETED, completed=C)
    assert parse_instant(f"{T}.{action}") == old
    assert parse_instant(f"{T}_{C}.{action}") == new
    assert table_layout(6).instant_name(new) == f"{T}.{action}"
    assert table_layout(9).instant_name(new) == f"{T}_{C}.{action}"


def test_a_clustering_plan_is_a_replacecommit_in_layout_1() -> None:
    planned = Instant(requested=T, action=Action.CLUSTERING, state=State.REQUESTED)
    assert table_layout(6).instant_name(planned) == f"{T}.replacecommit.requested"
    assert table_layout(9).instant_name(planned) == f"{T}.clustering.requested"


def test_a_completed_compaction_has_the_name_of_a_commit() -> None:
    done = Instant(requested=T, action=Action.COMPACTION, state=State.COMPLETED, completed=C)
    assert table_layout(9).instant_name(done) == f"{T}_{C}.commit"


def test_times_of_14_and_20_digits_are_instants() -> None:
    for time in ("20180831102030", "20240402123035233001", "00000000000000"):
        parsed = parse_instant(f"{time}.deltacommit")
        assert parsed is not None and parsed.requested == time


@pytest.mark.parametrize(
    "name",
    [
        "hoodie.properties",
        "history",
        T,
        f"{T}.commit.inflight",
        f"{T}.savepoint.requested",
        f"{T}.compaction",
        f"{T}.schemacommit",
        f"{T}.commit.crc",
        f".{T}.commit.crc",
        f"{T}_{C}.commit.requested",
        f"{T}_{C}.inflight",
        f"{T}.commit.3f2c.tmp",
        "2024.commit",
    ],
)
def test_other_names_are_not_instants(name: str) -> None:
    assert parse_instant(name) is None


def test_an_instant_that_cannot_be_named_is_refused() -> None:
    with pytest.raises(CorruptTableError, match="no completion time"):
        table_layout(9).instant_name(Instant(requested=T, action=Action.COMMIT, state=State.COMPLETED))
    with pytest.raises(CorruptTableError, match="savepoint has no file of the state REQUESTED"):
        table_layout(9).instant_name(Instant(requested=T, action=Action.SAVEPOINT, state=State.REQUESTED))
    with pytest.raises(UnsupportedError, match="table version 7 is not supported; versions 6, 8, 9 are"):
        table_layout(7)


def test_a_marker_name_is_parsed_into_file_and_kind() -> None:
    path = f"region=us/{UUID}_0-0-0_{T}.parquet"
    assert marker_name(path, "MERGE") == f"{path}.marker.MERGE"
    assert parse_marker(f"{path}.marker.MERGE") == (path, "MERGE")
    assert parse_marker("MARKERS.type") is None
    assert parse_marker(f"{path}.marker.OTHER") is None
