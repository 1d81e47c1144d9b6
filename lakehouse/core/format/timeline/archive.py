"""Files of the archived timeline, an LSM tree of parquet files under manifests (TL-5.2).

    timeline/history/  <first>_<last>_<level>.parquet   one row per completed action
                       manifest_<n>                     {"files": [{"fileName": ..., "fileLen": ...}, ...]}
                       _version_                        the number n of the current manifest

Rows have the fields of Hudi's record HoodieLSMTimelineInstant, in a parquet file as Hudi's writer creates it: gzip, no
record key, no bloom filter. If an archive service crashed before it removed an action from the active timeline, several
files contain the action. Readers then use one of the copies.
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

#: The file that contains the number of the current manifest.
VERSION_FILE = "_version_"
#: Columns that identify an instant and omit the contents of its timeline files.
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
    """Return the file name of the manifest with this number."""
    return f"manifest_{number}"


def parse_manifest_name(name: str) -> int | None:
    """Return the number of a manifest, or None if the name is not a manifest's name."""
    match = _MANIFEST.fullmatch(name)
    return None if match is None else int(match[1])


def encode_manifest(files: Iterable[HistoryFile]) -> bytes:
    """Return the content of a manifest that lists `files`."""
    entries = [{"fileName": file.name, "fileLen": file.size_bytes} for file in files]
    return json.dumps({"files": entries}, indent=2).encode()


def decode_manifest(data: bytes) -> tuple[HistoryFile, ...]:
    """Return the files that a manifest lists; raise CorruptTableError if `data` is not a manifest."""
    try:
        entries: list[Mapping[str, Any]] = parse_json(data)["files"]
        files = [parse_history_file(entry["fileName"], int(entry["fileLen"])) for entry in entries]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptTableError(f"not a manifest of the archived timeline: {error}: {data[:200]!r}") from error
    if None in files:
        raise CorruptTableError(
            f"a manifest of the archived timeline lists names that are not `<first>_<last>_<level>.parquet`: {data!r}"
        )
    return tuple(file for file in files if file is not None)


def parse_history_file(name: str, size_bytes: int) -> HistoryFile | None:
    """Return the archive file with this name, or None for a name that no archive file has."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    return HistoryFile(name=name, first=match[1], last=match[2], level=int(match[3]), size_bytes=size_bytes)


def history_file(first: str, last: str, level: int) -> HistoryFile:
    """Return the archive file for actions from `first` to `last`, before it is written and has a size."""
    return HistoryFile(name=f"{first}_{last}_{level}.parquet", first=first, last=last, level=level)


def merged_file(files: Sequence[HistoryFile]) -> HistoryFile:
    """Return the file of the next level that replaces `files`."""
    return history_file(min(f.first for f in files), max(f.last for f in files), files[0].level + 1)


def files_to_merge(files: Iterable[HistoryFile], level: int, *, batch: int, target_bytes: int) -> list[HistoryFile]:
    """Return the oldest files of a level to merge into one file of the next level.

    The result is empty if the level has fewer than `batch` files. Otherwise it has two to `batch` files. The selection
    stops at the file with which the total size exceeds `target_bytes`.
    """
    of_level = sorted((file for file in files if file.level == level), key=lambda file: file.name)
    # The name has one digit for the level, so there is no level above 9.
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
    """Write actions in the given order as one parquet file, one row group at a time to limit the memory."""
    writer = pq.ParquetWriter(
        sink, _SCHEMA, compression="gzip", use_dictionary=False, store_schema=False, write_statistics=_STATISTICS
    )
    with writer:
        writer.add_key_value_metadata(
            {"parquet.avro.schema": json.dumps(_AVRO, separators=(",", ":")), "writer.model.name": "avro"}
        )
        for rows in _batches(actions):
            writer.write_table(rows, row_group_size=rows.num_rows)


# Statistics of `metadata` and `plan` would contain whole commits.
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
    """Return the instants in a file without their metadata and plans; only three narrow columns are read."""
    with _readable(), pq.ParquetFile(source, pre_buffer=False) as file:
        _refuse_bomb(file.metadata)
        return _instants(file.read(columns=list(TIMES)))


def read_actions(
    source: Any, requested_times: frozenset[str] | None = None, containing: bytes = b""
) -> Iterator[ArchivedAction]:
    """Yield the actions in a file with their metadata and plans, in the order of the file.

    Args:
        source: The file or file object.
        requested_times: Only actions with these requested times are yielded; None means all. Row groups without such
            an action are not read.
        containing: Only actions whose metadata contains these bytes are yielded. Avro stores strings as plain UTF-8, so
            a search for bytes finds them.

    Raises:
        CorruptTableError: The file cannot be parsed, or it declares more rows than an archive can have.
    """
    with _readable(), pq.ParquetFile(source, pre_buffer=False) as file:
        _refuse_bomb(file.metadata)
        for number in range(file.num_row_groups):
            chosen = None
            if requested_times is not None:
                times = file.read_row_group(number, columns=list(TIMES[:1])).column(0)
                chosen = pc.is_in(times, pa.array(sorted(requested_times), pa.string()))
                if not pc.any(chosen).as_py():
                    continue
            rows = file.read_row_group(number, columns=[*TIMES, "metadata", "plan"])
            rows = rows if chosen is None else rows.filter(chosen)
            if containing:
                rows = rows.filter(pc.match_substring(rows.column("metadata"), containing))
            contents = zip(rows.column("metadata").to_pylist(), rows.column("plan").to_pylist(), strict=True)
            for instant, (metadata, plan) in zip(_instants(rows), contents, strict=True):
                yield ArchivedAction(instant=instant, metadata=metadata or None, plan=plan or None)


@contextmanager
def _readable() -> Iterator[None]:
    """Raise CorruptTableError for Arrow's parse errors. System errors, which have an errno, pass unchanged."""
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, KeyError, TypeError, OSError) as error:
        if isinstance(error, pa.ArrowMemoryError) or getattr(error, "errno", None) is not None:
            raise
        raise CorruptTableError(f"a file of the archived timeline cannot be read: {error}") from error


def _refuse_bomb(footer: Any) -> None:
    """Raise CorruptTableError if the footer declares more rows or larger row groups than an archive can have.

    Row groups are read as a whole, so this bounds the memory that a damaged file can allocate.
    """
    sizes = [footer.row_group(number).total_byte_size for number in range(footer.num_row_groups)]
    if footer.num_rows > _MOST_ROWS or max(sizes, default=0) > _MOST_GROUP_BYTES:
        raise CorruptTableError(
            f"a file of the archived timeline declares {footer.num_rows} actions and row groups of up to "
            f"{max(sizes, default=0)} bytes; at most {_MOST_ROWS} and {_MOST_GROUP_BYTES} are allowed"
        )


def _instants(rows: pa.Table) -> list[Instant]:
    instants = []
    for requested, completed, action in zip(*(rows.column(name).to_pylist() for name in TIMES), strict=True):
        try:
            parsed = Action(action)
        except ValueError:
            raise CorruptTableError(f"the archived instant {requested} has the unknown action {action!r}") from None
        # In rows that an upgrade from table version 6 copied, the completion time may be missing.
        instants.append(
            Instant(requested=requested, action=parsed, state=State.COMPLETED, completed=completed or requested)
        )
    return instants
