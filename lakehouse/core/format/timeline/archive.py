"""Files of the archived timeline, an LSM tree of parquet files under manifests (TL-5.2).

    timeline/history/  <first>_<last>_<level>.parquet   one row per completed action
                       manifest_<n>                     {"files": [{"fileName": ..., "fileLen": ...}, ...]}
                       _version_                        n, of the manifest that counts

Rows are Hudi's record HoodieLSMTimelineInstant, written as its parquet writer writes it: gzip, no key, no bloom filter.
An action may stand in several files, if an archiver died before it removed it from the timeline: it counts once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.errors import CorruptTableError
from lakehouse.model.archive import ArchivedAction, HistoryFile
from lakehouse.model.document import parse_json
from lakehouse.model.instant import Action, Instant, State

#: The file that tells which manifest counts.
VERSION_FILE = "_version_"
#: Columns that tell an instant, without what its files held.
TIMES = ("instantTime", "completionTime", "action")

_FILE = re.compile(r"(\d+)_(\d+)_(\d)\.parquet", re.ASCII)
_MANIFEST = re.compile(r"manifest_(\d{1,18})", re.ASCII)
_LARGEST_LEVEL = 9
_ROW_VERSION = 1
_TEXT = {"type": "string", "avro.java.string": "String"}
_AVRO = {
    "type": "record",
    "name": "HoodieLSMTimelineInstant",
    "namespace": "org.apache.hudi.avro.model",
    "fields": [
        {"name": "instantTime", "type": ["null", _TEXT], "default": None},
        {"name": "completionTime", "type": ["null", _TEXT], "default": None},
        {"name": "action", "type": ["null", _TEXT], "default": None},
        {"name": "metadata", "type": ["null", "bytes"], "default": None},
        {"name": "plan", "type": ["null", "bytes"], "default": None},
        {"name": "version", "type": "int", "default": _ROW_VERSION},
    ],
}
_SCHEMA = pa.schema(
    [
        pa.field("instantTime", pa.string()),
        pa.field("completionTime", pa.string()),
        pa.field("action", pa.string()),
        pa.field("metadata", pa.binary()),
        pa.field("plan", pa.binary()),
        pa.field("version", pa.int32(), nullable=False),
    ]
)
_MOST_ROWS, _MOST_GROUP_BYTES = 10_000_000, 1 << 30
_ROW_GROUP_BYTES = 16 * 1024 * 1024


def manifest_name(number: int) -> str:
    """Return the name of a manifest."""
    return f"manifest_{number}"


def parse_manifest_name(name: str) -> int | None:
    """Return the number of a manifest, or None if the name is none's."""
    match = _MANIFEST.fullmatch(name)
    return None if match is None else int(match[1])


def encode_manifest(files: Iterable[HistoryFile]) -> bytes:
    """Return the content of a manifest."""
    entries = [{"fileName": file.name, "fileLen": file.size_bytes} for file in files]
    return json.dumps({"files": entries}, indent=2).encode()


def decode_manifest(data: bytes) -> tuple[HistoryFile, ...]:
    """Return the files that a manifest lists; raise CorruptTableError if it is none."""
    try:
        entries: list[Mapping[str, Any]] = parse_json(data)["files"]
        found = [parse_history_file(entry["fileName"], int(entry["fileLen"])) for entry in entries]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptTableError(f"not a manifest of the archived timeline: {error}: {data[:200]!r}") from error
    if None in found:
        raise CorruptTableError(f"a manifest of the archived timeline lists names that are no files of it: {data!r}")
    return tuple(file for file in found if file is not None)


def parse_history_file(name: str, size_bytes: int) -> HistoryFile | None:
    """Return the file of this name, or None if it is no file of the archive."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    return HistoryFile(name=name, first=match[1], last=match[2], level=int(match[3]), size_bytes=size_bytes)


def history_file(first: str, last: str, level: int) -> HistoryFile:
    """Return a file yet to be written."""
    return HistoryFile(name=f"{first}_{last}_{level}.parquet", first=first, last=last, level=level)


def merged_file(files: Sequence[HistoryFile]) -> HistoryFile:
    """Return the file, one level above, that takes the place of some."""
    return history_file(min(f.first for f in files), max(f.last for f in files), files[0].level + 1)


def files_to_merge(files: Iterable[HistoryFile], level: int, *, batch: int, target_bytes: int) -> list[HistoryFile]:
    """Return the oldest files of a level that are to become one of the next, nothing if there is no full batch.

    At least two, at most `batch`, and no more of them once they are larger than `target_bytes` together.
    """
    of_level = sorted((file for file in files if file.level == level), key=lambda file: file.name)
    # The level is one digit of the name.
    if len(of_level) < batch or level == _LARGEST_LEVEL:
        return []
    chosen: list[HistoryFile] = []
    total = 0
    for file in of_level:
        chosen.append(file)
        total += file.size_bytes
        if len(chosen) == batch:
            break
        if total > target_bytes:
            if len(chosen) > 1:
                break
            chosen, total = [], 0
    return chosen if len(chosen) > 1 else []


def write_actions(sink: Any, actions: Iterable[ArchivedAction]) -> None:
    """Write actions, in their order, as one parquet file; few of them are held in memory at a time."""
    writer = pq.ParquetWriter(
        sink, _SCHEMA, compression="gzip", use_dictionary=False, store_schema=False, write_statistics=_STATISTICS
    )
    with writer:
        writer.add_key_value_metadata(
            {"parquet.avro.schema": json.dumps(_AVRO, separators=(",", ":")), "writer.model.name": "avro"}
        )
        for rows in _batches(actions):
            writer.write_table(rows, row_group_size=rows.num_rows)


# Statistics of whole commits would be as long as those.
_STATISTICS = ["instantTime", "completionTime", "action"]


def _batches(actions: Iterable[ArchivedAction]) -> Iterator[pa.Table]:
    pending: list[ArchivedAction] = []
    size = 0
    for action in actions:
        pending.append(action)
        size += len(action.metadata or b"") + len(action.plan or b"")
        if size >= _ROW_GROUP_BYTES:
            yield _rows(pending)
            pending, size = [], 0
    if pending:
        yield _rows(pending)


def _rows(actions: Sequence[ArchivedAction]) -> pa.Table:
    columns: list[list[Any]] = [
        [action.instant.requested for action in actions],
        [action.instant.completed for action in actions],
        [str(action.instant.action.completed_as) for action in actions],
        [action.metadata for action in actions],
        [action.plan for action in actions],
        [_ROW_VERSION] * len(actions),
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def read_instants(source: Any) -> list[Instant]:
    """Return the instants in a file, without what they hold: three narrow columns are read."""
    with _readable(), pq.ParquetFile(source, pre_buffer=False) as file:
        _refuse_bomb(file.metadata)
        return _instants(file.read(columns=list(TIMES)))


def read_actions(
    source: Any, wanted: frozenset[str] | None = None, containing: bytes = b""
) -> Iterator[ArchivedAction]:
    """Yield the actions in a file with what they hold, in their order, or those requested at `wanted` times.

    Row groups without a wanted one are passed over. Actions whose metadata lacks the bytes `containing` are left out:
    what is in it as text stands in it as it is.
    """
    with _readable(), pq.ParquetFile(source, pre_buffer=False) as file:
        _refuse_bomb(file.metadata)
        for number in range(file.num_row_groups):
            chosen = None
            if wanted is not None:
                times = file.read_row_group(number, columns=list(TIMES[:1])).column(0)
                chosen = pc.is_in(times, pa.array(sorted(wanted), pa.string()))
                if not pc.any(chosen).as_py():
                    continue
            rows = file.read_row_group(number, columns=[*TIMES, "metadata", "plan"])
            rows = rows if chosen is None else rows.filter(chosen)
            if containing:
                rows = rows.filter(pc.match_substring(rows.column("metadata"), containing))
            held = zip(rows.column("metadata").to_pylist(), rows.column("plan").to_pylist(), strict=True)
            for instant, (metadata, plan) in zip(_instants(rows), held, strict=True):
                yield ArchivedAction(instant=instant, metadata=metadata or None, plan=plan or None)


@contextmanager
def _readable() -> Iterator[None]:
    """Take what Arrow says of broken bytes for what it is; errors of the system pass: they have a number."""
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, KeyError, TypeError, OSError) as error:
        if isinstance(error, pa.ArrowMemoryError) or getattr(error, "errno", None) is not None:
            raise
        raise CorruptTableError(f"a file of the archived timeline cannot be read: {error}") from error


def _refuse_bomb(footer: Any) -> None:
    """Raise CorruptTableError for a file that declares more than an archive holds: rows are read group by group."""
    sizes = [footer.row_group(number).total_byte_size for number in range(footer.num_row_groups)]
    if footer.num_rows > _MOST_ROWS or max(sizes, default=0) > _MOST_GROUP_BYTES:
        raise CorruptTableError(
            f"a file of the archived timeline declares {footer.num_rows} actions and row groups of up to "
            f"{max(sizes, default=0)} bytes; {_MOST_ROWS} and {_MOST_GROUP_BYTES} can be"
        )


def _instants(rows: pa.Table) -> list[Instant]:
    found = []
    for requested, completed, action in zip(*(rows.column(name).to_pylist() for name in TIMES), strict=True):
        try:
            known = Action(action)
        except ValueError:
            raise CorruptTableError(f"the archive holds {requested} as {action!r}, which is no action") from None
        # Rows that an upgrade brought over from version 6 may lack the completion time.
        found.append(
            Instant(requested=requested, action=known, state=State.COMPLETED, completed=completed or requested)
        )
    return found
