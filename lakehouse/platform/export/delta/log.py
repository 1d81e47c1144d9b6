"""Read the Delta log of a view: the newest version, its actions, and the paths of its files.

A log entry is read once for each version after the newest checkpoint, and the checkpoint by columns. Deletion vectors,
column mapping and checkpoints of other forms never occur in a view of this package, and are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.state.data_files import members, one_array
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import CorruptTableError, UnsupportedError

DIRECTORY = "_delta_log"
LAST_CHECKPOINT = f"{DIRECTORY}/_last_checkpoint"
_ENTRY = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
_OTHER_CHECKPOINT = re.compile(r"[0-9]{20}\.checkpoint\..+")
_SAFE = "/=-._~"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaLog:
    """The log of a view at its newest version.

    Attributes:
        version: The newest version; -1 without a log.
        checkpoint: Version of the newest checkpoint; None without one.
        entries: Actions of each version after the checkpoint, and of the newest version.
        settings: The newest `metaData` and `protocol` actions.
        versions, checkpoints: All versions with an entry and with a checkpoint, in order.
    """

    version: int = -1
    checkpoint: int | None = None
    entries: Mapping[int, tuple[Mapping[str, Any], ...]]
    settings: Mapping[str, Any]
    versions: tuple[int, ...] = ()
    checkpoints: tuple[int, ...] = ()

    @property
    def commit_info(self) -> Mapping[str, Any]:
        """The `commitInfo` of the newest version; empty if it has none."""
        for action in self.entries.get(self.version, ()):
            if isinstance(action.get("commitInfo"), dict):
                return dict(action["commitInfo"])
        return {}


def entry_path(version: int) -> str:
    """Return the path of a log entry."""
    return f"{DIRECTORY}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    """Return the path of a checkpoint."""
    return f"{DIRECTORY}/{version:020d}.checkpoint.parquet"


def encode_path(path: str) -> str:
    """Return the path of a data file as the log stores it: a relative URI."""
    return quote(path, safe=_SAFE)


def decode_path(text: str) -> str:
    """Return the path of a data file relative to the table."""
    return unquote(text)


def read_log(storage: Storage) -> DeltaLog:
    """Read the log with one listing, the entries after the checkpoint, and the settings in the checkpoint.

    Raises UnsupportedError for a checkpoint of another form, CorruptTableError if an entry is missing or no JSON.
    """
    names = storage.list_names(DIRECTORY)
    _refuse_other_checkpoints(storage, names)
    versions = tuple(sorted(int(match[1]) for name in names if (match := _ENTRY.fullmatch(name))))
    checkpoints = tuple(sorted(int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))))
    if not versions:
        return DeltaLog(entries={}, settings={})
    version = versions[-1]
    checkpoint = max((number for number in checkpoints if number <= version), default=None)
    wanted = _entries_after(storage, checkpoint, versions)
    read = send_all(storage, lambda number: _actions(storage, number), wanted)
    entries = dict(zip(wanted, read, strict=True))
    settings: dict[str, Any] = {} if checkpoint is None else _checkpoint_settings(storage, checkpoint)
    for number in wanted:
        settings |= {k: action[k] for action in entries[number] for k in ("metaData", "protocol") if action.get(k)}
    return DeltaLog(
        version=version,
        checkpoint=checkpoint,
        entries=entries,
        settings=settings,
        versions=versions,
        checkpoints=checkpoints,
    )


def _refuse_other_checkpoints(storage: Storage, names: Iterable[str]) -> None:
    other = next((name for name in names if _OTHER_CHECKPOINT.fullmatch(name) and not _CHECKPOINT.fullmatch(name)), "")
    if other:
        raise UnsupportedError(
            f"{storage.root}/{DIRECTORY}/{other} is a checkpoint that another program wrote. Views are written by "
            f"exports only: move {DIRECTORY} away and export again",
            path=other,
        )


def _entries_after(storage: Storage, checkpoint: int | None, versions: tuple[int, ...]) -> list[int]:
    """Return the versions whose entries are needed: all after the checkpoint, and at least the newest."""
    version = versions[-1]
    wanted = list(range(0 if checkpoint is None else checkpoint + 1, version + 1))
    missing = sorted({*wanted} - {*versions})
    if missing:
        raise CorruptTableError(
            f"{storage.root}/{entry_path(missing[0])} is missing, so version {version} of the Delta view cannot be "
            f"read. Move {DIRECTORY} away and export again"
        )
    return wanted or [version]


def live_paths(storage: Storage, log: DeltaLog) -> pa.Array:
    """Return the paths of the files in the newest version, relative to the table."""
    base = pa.array([], pa.string()) if log.checkpoint is None else _checkpoint_paths(storage, log.checkpoint)
    added, removed = _replayed(log)
    stays = base.filter(pc.invert(members(base, pa.array(sorted(removed | added.keys()), pa.string()))))
    paths = pa.concat_arrays([stays, pa.array(list(added), pa.string())])
    if not pc.any(pc.match_substring(paths, "%")).as_py():
        return paths
    return pa.array([decode_path(path) for path in paths.to_pylist()], pa.string())


def live_files(storage: Storage, log: DeltaLog) -> pa.Table:
    """Return the `add` actions of the newest version as a table, as in a checkpoint."""
    added, removed = _replayed(log)
    rows = pa.Table.from_pylist([_checkpoint_row(action) for action in added.values()], schema=ADD)
    if log.checkpoint is None:
        return rows
    with storage.open_input(checkpoint_path(log.checkpoint)) as source:
        column = one_array(pq.ParquetFile(source).read(columns=["add"]).column("add"))
    column = column.filter(pc.is_valid(column))
    stored = pa.Table.from_struct_array(column).select(ADD.names).cast(ADD)
    gone = members(one_array(stored.column("path")), pa.array(sorted(removed | added.keys()), pa.string()))
    return pa.concat_tables([stored.filter(pc.invert(gone)), rows])


#: Columns of `add` actions in checkpoints.
ADD = pa.schema(
    [
        ("path", pa.string()),
        ("partitionValues", pa.map_(pa.string(), pa.string())),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
    ]
)


def _checkpoint_row(action: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "path": action["path"],
        "partitionValues": list((action.get("partitionValues") or {}).items()),
        "size": action["size"],
        "modificationTime": action["modificationTime"],
        "dataChange": False,
        "stats": action.get("stats"),
    }


def _replayed(log: DeltaLog) -> tuple[dict[str, Mapping[str, Any]], set[str]]:
    """Return the files that the entries after the checkpoint add, by stored path, and the paths that they remove."""
    added: dict[str, Mapping[str, Any]] = {}
    removed: set[str] = set()
    first = -1 if log.checkpoint is None else log.checkpoint
    for number in sorted(log.entries):
        if number <= first:
            continue
        for action in log.entries[number]:
            if action.get("remove"):
                path = action["remove"]["path"]
                removed.add(path)
                added.pop(path, None)
            elif action.get("add"):
                added[action["add"]["path"]] = action["add"]
                removed.discard(action["add"]["path"])
    return added, removed


def _checkpoint_paths(storage: Storage, version: int) -> pa.Array:
    with storage.open_input(checkpoint_path(version)) as source:
        column = one_array(pq.ParquetFile(source).read(columns=["add.path"]).column("add"))
    paths = pc.struct_field(column, "path")
    return paths.filter(pc.is_valid(paths)).cast(pa.string())


def _checkpoint_settings(storage: Storage, version: int) -> dict[str, Any]:
    """Return the `metaData` and `protocol` actions in a checkpoint. Its other columns are not decoded."""
    with storage.open_input(checkpoint_path(version)) as source:
        table = pq.ParquetFile(source).read(columns=["metaData", "protocol"])
    settings = {}
    for name in ("metaData", "protocol"):
        column = one_array(table.column(name))
        values = column.filter(pc.is_valid(column)).to_pylist()
        if values:
            settings[name] = _as_json(values[-1])
    return settings


def _as_json(value: dict[str, Any]) -> dict[str, Any]:
    """Return an action of a checkpoint as an entry stores it: maps as objects, without nulls."""
    configuration = value.get("configuration")
    if configuration is not None:
        value["configuration"] = dict(configuration)
    options = (value.get("format") or {}).get("options")
    if options is not None:
        value["format"]["options"] = dict(options)
    return {name: entry for name, entry in value.items() if entry is not None}


def _actions(storage: Storage, version: int) -> tuple[Mapping[str, Any], ...]:
    path = entry_path(version)
    try:
        return tuple(_lines(storage.get(path)))
    except ValueError as error:
        raise CorruptTableError(f"{storage.root}/{path} is not a Delta log entry: {error}", path=path) from error


def _lines(data: bytes) -> Iterator[Mapping[str, Any]]:
    for line in data.splitlines():
        if line.strip():
            action = json.loads(line)
            if not isinstance(action, dict):
                raise ValueError(f"{line[:40]!r} is no action")
            yield action


def encode_actions(actions: Iterable[Mapping[str, Any]]) -> bytes:
    """Return a log entry."""
    return b"".join(
        json.dumps(action, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" for action in actions
    )
