"""Merge the metadata table of a table in plain Python, as a referee of what the product writes (MDT-5)."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import fastavro
import pyarrow as pa

from lakehouse.core.env import Env
from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.format.hfile.reader import read_hfile
from lakehouse.core.format.log.blocks import BlockType, scan_blocks
from lakehouse.core.format.log.delete_block import decode_deletes
from lakehouse.core.metadata.place import METADATA, listed_partitions
from lakehouse.core.operations.load.table import load_table
from lakehouse.core.storage.protocol import Storage, is_temporary
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.model.instant import Action, Instant

Records = dict[str, dict[str, Any]]
_STATS = "ColumnStatsMetadata"


@dataclass(slots=True)
class _Group:
    bases: dict[str, str] = field(default_factory=dict)
    logs: list[tuple[str, str]] = field(default_factory=list)


def partitions(storage: Storage) -> tuple[str, ...]:
    """Return the usable index partitions that the properties list."""
    return listed_partitions(read_properties(storage) or {})[0]


def records(storage: Storage, partition: str) -> Records:
    """Return the live records of an index partition by key."""
    if load_table(Env(storage=storage)).config.layout.names_logs_by_slice:
        return _records_by_slice(storage, partition)
    instants = list(_instants(storage))
    done = {instant.requested: instant.completion for instant in instants if instant.is_completed}
    valid = _valid(storage, instants)
    found: Records = {}
    for group in _groups(storage, partition).values():
        base = max((instant for instant in group.bases if instant in done), default="")
        merged: dict[str, dict[str, Any] | None] = dict(_decoded(storage.get(group.bases[base]))) if base else {}
        delta: dict[str, dict[str, Any] | None] = {}
        logs = [log for log in sorted(group.logs) if log[0] in done and done[log[0]] >= base and log[0] in valid]
        contents = {instant: storage.get(path) for instant, path in logs}
        merges = {instant: _compacted(data) for instant, data in contents.items()}
        compacted = {time for times in merges.values() for time in times}
        # The block of a log compaction takes the place of the newest block that it merged (MDT-5).
        for instant in sorted(contents.keys() - compacted, key=lambda time: _place(time, merges)):
            _apply(delta, contents[instant])
        for key, record in delta.items():
            merged[key] = merge(merged.get(key), record)
        found |= {key: record for key, record in merged.items() if record is not None}
    return found


def _records_by_slice(storage: Storage, partition: str) -> Records:
    """Return the live records of a table whose log files are named after their slice, in the order of versions."""
    instants = list(_instants(storage))
    done = {instant.requested for instant in instants if instant.is_completed}
    valid = {time for time in _valid(storage, instants) if _is_on_data_timeline(storage, time)}
    found: Records = {}
    for file_id, group in _groups(storage, partition).items():
        base = max((instant for instant in group.bases if instant in done), default="")
        merged: dict[str, dict[str, Any] | None] = dict(_decoded(storage.get(group.bases[base]))) if base else {}
        delta: dict[str, dict[str, Any] | None] = {}
        logs = [(_version(path), path) for instant, path in group.logs if instant == base or instant >= base]
        assert len({version for version, _ in logs}) == len(logs), f"{file_id} has two logs of one version: {logs}"
        for _, path in sorted(logs):
            _apply(delta, storage.get(path), valid)
        for key, record in delta.items():
            merged[key] = merge(merged.get(key), record)
        found |= {key: record for key, record in merged.items() if record is not None}
    return found


def _version(path: str) -> int:
    return int(path.rpartition(".log.")[2].partition("_")[0])


def _is_on_data_timeline(storage: Storage, time: str) -> bool:
    """Return whether a delta commit is an action of the data table, or an own one, or archived on the data timeline."""
    times = {instant.requested for instant in load_table(Env(storage=storage)).timeline}
    return time in times or len(time) != 17 or time < min(times, default="")


def listing(storage: Storage) -> dict[str, dict[str, int]]:
    """Return partition -> file name -> size of the listing in `files`, without tombstones."""
    merged = records(storage, "files")
    names = merged.pop("__all_partitions__", {"filesystemMetadata": {}})["filesystemMetadata"]
    known = {name for name, info in names.items() if not info["isDeleted"]}
    assert merged.keys() <= known, (sorted(merged), sorted(known))
    return {
        "" if name == "." else name: {
            file: info["size"] for file, info in record["filesystemMetadata"].items() if not info["isDeleted"]
        }
        for name, record in merged.items()
    }


def bounds(storage: Storage, partition: str = "column_stats") -> dict[tuple[str, str], tuple[Any, Any, int, int]]:
    """Return (file or partition name, column) -> (min, max, nulls, values) of a partition with statistics."""
    found = {}
    for record in records(storage, partition).values():
        stats = record[_STATS]
        low, high = (None if stats[name] is None else stats[name]["value"] for name in ("minValue", "maxValue"))
        found[stats["fileName"], stats["columnName"]] = (low, high, stats["nullCount"], stats["valueCount"])
    return found


def stored(storage: Storage) -> dict[str, dict[str, int]]:
    """Return the same from a listing of storage: the data files of completed instants."""
    table = load_table(Env(storage=storage))
    pending = {instant.requested for instant in table.timeline.where(pending=True)}
    by_slice = table.config.layout.names_logs_by_slice
    found: dict[str, dict[str, int]] = {}
    for file in storage.list(""):
        partition, _, name = file.path.rpartition("/")
        if file.path.startswith(".hoodie/") or name.startswith((".hoodie", "hoodie.")) or name.endswith(".crc"):
            continue
        written = name.rpartition(".parquet")[0].rpartition("_")[2] or name.partition("_")[2].partition(".log")[0]
        if by_slice and ".log." in name:
            blocks = scan_blocks(io.BytesIO(storage.get(file.path)))
            is_committed = any(block.instant not in pending for block in blocks)
        else:
            is_committed = written not in pending
        if is_committed:
            found.setdefault(partition, {})[name] = file.size_bytes
    return found


def check_listing(storage: Storage) -> None:
    """Fail unless the listing in the metadata table is that of storage."""
    assert "files" in partitions(storage)
    listed = {partition: files for partition, files in listing(storage).items() if files}
    assert listed == stored(storage)


def strays_of_metadata(storage: Storage) -> list[str]:
    """Return files of the metadata table that no completed instant of it names, and pending instants."""
    completed = {instant.requested for instant in _instants(storage) if instant.is_completed}
    by_slice = load_table(Env(storage=storage)).config.layout.names_logs_by_slice
    found = []
    for file in storage.list(METADATA):
        folder = file.path.rpartition("/")[0]
        if folder == f"{METADATA}/.hoodie{'' if by_slice else '/timeline'}" and file.name[0].isdigit():
            instant = parse_instant(file.name)
            is_stray = instant is None or instant.requested not in completed
        elif ".log." in file.name and by_slice:
            blocks = scan_blocks(io.BytesIO(storage.get(file.path)))
            # Instants that are archived on the metadata timeline are older than the active ones.
            first = min(completed, default="")
            is_stray = not any(block.instant in completed or block.instant < first for block in blocks)
        elif ".log." in file.name:
            is_stray = file.name.partition("_")[2].partition(".")[0] not in completed
        else:
            is_stray = is_temporary(file.path)
        found += [file.path] if is_stray else []
    return found


def merge(older: dict[str, Any] | None, newer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Merge two records of one key; None is a delete."""
    if newer is None or older is None:
        return newer
    if newer["type"] in (1, 2):
        files = dict(older["filesystemMetadata"])
        for name, info in newer["filesystemMetadata"].items():
            known = files.get(name)
            if known is None or (info["isDeleted"] and known["isDeleted"]):
                files[name] = info
            elif info["isDeleted"]:
                del files[name]
            else:
                files[name] = {"size": max(known["size"], info["size"]), "isDeleted": False}
        return {**newer, "filesystemMetadata": files}
    if newer["type"] in (3, 6) and not newer[_STATS]["isTightBound"]:
        first, second = older[_STATS], newer[_STATS]
        both = {name: [s[name] for s in (first, second) if s[name] is not None] for name in ("minValue", "maxValue")}
        merged = {
            **second,
            "minValue": min(both["minValue"], key=_order) if both["minValue"] else None,
            "maxValue": max(both["maxValue"], key=_order) if both["maxValue"] else None,
            **{name: first[name] + second[name] for name in ("valueCount", "nullCount")},
        }
        return {**newer, _STATS: merged}
    return newer


def _order(bound: Mapping[str, Any]) -> tuple[bool, Any]:
    value = bound["value"]
    return (value != value, 0 if value != value else value)


def _instants(storage: Storage) -> Iterator[Instant]:
    names = [*storage.list_names(f"{METADATA}/.hoodie/timeline"), *storage.list_names(f"{METADATA}/.hoodie")]
    for name in names:
        instant = parse_instant(name)
        if instant is not None:
            yield instant


def _valid(storage: Storage, instants: list[Instant]) -> set[str]:
    """Return the instants whose log blocks count: completed ones whose data instant is not pending."""
    pending = {instant.requested for instant in load_table(Env(storage=storage)).timeline.where(pending=True)}
    return {
        instant.requested
        for instant in instants
        if instant.is_completed and instant.action is Action.DELTACOMMIT and instant.requested not in pending
    }


def _groups(storage: Storage, partition: str) -> dict[str, _Group]:
    groups: dict[str, _Group] = {}
    for name in storage.list_names(f"{METADATA}/{partition}"):
        path = f"{METADATA}/{partition}/{name}"
        if name.endswith(".crc"):
            continue  # Hudi writes checksums beside the files of local tables.
        if name.endswith(".hfile"):
            file_id, _, instant = name.removesuffix(".hfile").split("_")
            groups.setdefault(file_id, _Group()).bases[instant] = path
        elif ".log." in name and not name.endswith(".crc"):
            file_id, _, rest = name.removeprefix(".").partition("_")
            groups.setdefault(file_id, _Group()).logs.append((rest.partition(".")[0], path))
    return groups


def _place(instant: str, merges: Mapping[str, set[str]]) -> str:
    """Return the newest instant whose block was merged into that of a log compaction; else the instant itself."""
    return max((_place(time, merges) for time in merges.get(instant, ())), default=instant)


def _compacted(data: bytes) -> set[str]:
    """Return the instants whose blocks a log compaction merged into this file."""
    return {time for block in scan_blocks(io.BytesIO(data)) for time in block.compacted}


def _apply(delta: dict[str, dict[str, Any] | None], data: bytes, valid: set[str] | None = None) -> None:
    for block in scan_blocks(io.BytesIO(data)):
        if valid is not None and block.instant not in valid:
            continue
        content = data[block.offset : block.offset + block.length]
        if block.kind is BlockType.HFILE_DATA:
            for key, record in _decoded(content).items():
                delta[key] = merge(delta.get(key), record)
        else:
            assert block.kind is BlockType.DELETE
            for key in decode_deletes(content, [pa.int32()]).keys.to_pylist():
                delta[key] = None


def _decoded(data: bytes) -> Records:
    file = read_hfile(data)
    schema = fastavro.parse_schema(json.loads(file.info["schema"]))
    entries = file.entries()
    pairs = zip(entries.column("key").to_pylist(), entries.column("value").to_pylist(), strict=True)
    return {key.decode(): fastavro.schemaless_reader(io.BytesIO(value), schema) for key, value in pairs}  # type: ignore[arg-type,misc]
