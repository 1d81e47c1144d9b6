"""Names of data files, instants and markers (TL-3.2, TL-6.1, TL-7.2; DATA-3.1, DATA-4.1).

A name that is not a Hudi file name returns None, so a listing may contain other files. A Hudi file name in a form that
this package does not support raises an error, because ignoring the file would lose rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.model.instant import Action, Instant, State

_BASE = re.compile(r"([^._/]+)_([0-9A-Za-z-]+)_(\d+)\.(parquet|orc|hfile|lance)", re.ASCII)
_LOG = re.compile(r"\.([^._/]+)_(\d+)\.log\.(\d+)(?:_(\d+-\d+-\d+)(\.cdc)?)?", re.ASCII)
_INSTANT = re.compile(r"(\d{14,})(?:_(\d{14,}))?((?:\.[a-z]+){1,2})", re.ASCII)
_TIME = re.compile(r"[0-9]+")
_MARKER = re.compile(r"(.+)\.marker\.(CREATE|MERGE|APPEND)")
_PARTITION_METADATA = re.compile(r"\.hoodie_partition_metadata(?:_\d+)?(?:\.[a-z]+)?", re.ASCII)
_BATCH = re.compile(r"MARKERS(\d+)", re.ASCII)
#: Name of the file with the marker type of a directory. If it is missing, each data file has its own marker file.
MARKERS_TYPE = "MARKERS.type"
#: Maximum number of a marker batch, because Hudi parses it as an int.
LARGEST_BATCH = (1 << 31) - 1

_SUFFIX_OF_STATE = {State.REQUESTED: ".requested", State.INFLIGHT: ".inflight"}
_STATE_OF_SUFFIX = {"requested": State.REQUESTED, "inflight": State.INFLIGHT}
_ACTIONS = frozenset(str(action) for action in Action)
_NEVER_COMPLETE = frozenset({Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING})


def parse_base_file(name: str, partition: str, size_bytes: int) -> BaseFile | None:
    """Return the base file with this name in `partition`, or None if it is not a base file name."""
    match = _BASE.fullmatch(name)
    if match is None:
        return None
    file_id, token, instant, extension = match.groups()
    return BaseFile(
        partition=partition,
        file_id=file_id,
        write_token=token,
        instant=instant,
        extension=extension,
        size_bytes=size_bytes,
    )


def parse_log_file(name: str, partition: str, size_bytes: int) -> LogFile | None:
    """Return the log file with this name in `partition`, or None if it is not a log file name.

    Change logs are not log files. Raises UnsupportedError for a log file without write token (Hudi before 0.6).
    """
    log = _parse_log(name, partition, size_bytes)
    return log if log is not None and not log.suffix else None


def parse_cdc_file(name: str, partition: str, size_bytes: int) -> LogFile | None:
    """Return the change log (`.cdc`) with this name in `partition`, or None if it is not a change log name."""
    log = _parse_log(name, partition, size_bytes)
    return log if log is not None and log.suffix else None


def is_change_log(name: str) -> bool:
    """Return whether this is the name of a change log (`.cdc`)."""
    match = _LOG.fullmatch(name)
    return match is not None and bool(match[5])


def parse_instant(name: str) -> Instant | None:
    """Return the instant of a timeline file with this name, or None if it is not an instant file name.

    Both layouts are read: a completed file of layout 1 has no completion time (`completed` is None). Times with 14
    digits (Hudi before 0.10) and 20 digits (metadata tables) are kept.
    """
    match = _INSTANT.fullmatch(name)
    if match is None:
        return None
    requested, completed, suffix = match.groups()
    first, _, second = suffix[1:].partition(".")
    if first == "inflight" and not second:
        # The inflight file of a commit has no action in its name; all other names have one.
        action, state = Action.COMMIT, State.INFLIGHT
    elif first not in _ACTIONS:
        return None
    else:
        action = Action(first)
        if second and second not in _STATE_OF_SUFFIX:
            return None
        state = _STATE_OF_SUFFIX[second] if second else State.COMPLETED
        if not _is_legal(action, state) or (action is Action.COMMIT and state is State.INFLIGHT):
            return None
    if completed is not None and state is not State.COMPLETED:
        return None
    return Instant(requested=requested, action=action, state=state, completed=completed)


def require_instant_time(instant: Instant) -> None:
    """Raise CorruptTableError unless the times of an instant are numbers.

    Plans contain instant times, too, and files are deleted by the names that are built from them.
    """
    if not _TIME.fullmatch(instant.requested) or not _TIME.fullmatch(instant.completed or "0"):
        raise CorruptTableError(f"{instant.requested!r} is not an instant time", requested=instant.requested)


def pending_name(instant: Instant, action: Action) -> str:
    """Return the file name of a requested or inflight instant, whose file is named after `action`.

    Raises CorruptTableError for an action that has no file of this state, such as a requested savepoint.
    """
    if not _is_legal(action, instant.state):
        raise CorruptTableError(f"a {action} has no file of the state {instant.state.name}: {instant.requested}")
    if action is Action.COMMIT and instant.state is State.INFLIGHT:
        return f"{instant.requested}.inflight"
    return f"{instant.requested}.{action}{_SUFFIX_OF_STATE[instant.state]}"


#: The marker kinds of log files: Hudi 0.15 writes APPEND, Hudi 1.x writes CREATE.
LogMarker = Literal["CREATE", "APPEND"]


def marker_name(path: str, kind: Literal["CREATE", "MERGE", "APPEND"]) -> str:
    """Return the marker name of a data file.

    CREATE is for a new file group, MERGE for a new version of a file group; see `LogMarker` for log files.
    """
    return f"{path}.marker.{kind}"


def marker_batch_name(number: int) -> str:
    """Return the name of a file that contains many markers."""
    return f"MARKERS{number}"


def is_marker_batch(name: str) -> bool:
    """Return whether a file with this name in the marker directory is a batch of markers."""
    return _BATCH.fullmatch(name) is not None


def encode_markers(names: Iterable[str]) -> bytes:
    """Return the content of a file with these markers."""
    return "".join(f"{name}\n" for name in names).encode()


def decode_markers(data: bytes) -> tuple[str, ...]:
    """Return the markers in a file that contains many. Skips invalid or truncated lines.

    A line with NUL is invalid, because no file can have such a path.
    """
    # For a table without partitions some releases of Hudi write the empty partition and a slash.
    lines = [line.lstrip("/") for line in data.decode(errors="replace").split("\n")]
    return tuple(line for line in lines if "\0" not in line and parse_marker(line) is not None)


def write_token_of(path: str) -> str | None:
    """Return the write token of a data file or change log, or None if its name has none."""
    name = path.rpartition("/")[2]
    match = _BASE.fullmatch(name)
    if match is not None:
        return match[2]
    match = _LOG.fullmatch(name)
    return None if match is None else match[4]


def is_data_file(name: str) -> bool:
    """Return whether this is the name (without directory) of a base file, a log file or a change log."""
    return _BASE.fullmatch(name) is not None or _LOG.fullmatch(name) is not None


def instant_of(name: str) -> str | None:
    """Return the instant in the name of a data file or change log, or None for any other name."""
    base, log = _BASE.fullmatch(name), _LOG.fullmatch(name)
    if base is not None:
        return base[3]
    return None if log is None else log[2]


def is_partition_metadata(name: str) -> bool:
    """Return whether this is the name of partition metadata in any file format, or of its temporary file."""
    return _PARTITION_METADATA.fullmatch(name) is not None


def parse_marker(name: str) -> tuple[str, str] | None:
    """Return (path of the data file, kind) of a direct marker, or None; older writers use APPEND for log files."""
    match = _MARKER.fullmatch(name)
    return None if match is None else (match[1], match[2])


def marked_file(name: str) -> str:
    """Return the data file that a marker names."""
    return name.rpartition(".marker.")[0]


def _parse_log(name: str, partition: str, size_bytes: int) -> LogFile | None:
    match = _LOG.fullmatch(name)
    if match is None:
        return None
    file_id, instant, version, token, suffix = match.groups()
    if token is None:
        raise UnsupportedError(
            f"log file {name!r} in partition {partition!r} has no write token; compact the table with Hudi first",
            name=name,
            partition=partition,
        )
    return LogFile(
        partition=partition,
        file_id=file_id,
        instant=instant,
        version=int(version),
        write_token=token,
        size_bytes=size_bytes,
        suffix=suffix or "",
    )


def _is_legal(action: Action, state: State) -> bool:
    if state is State.COMPLETED:
        return action not in _NEVER_COMPLETE
    if state is State.REQUESTED:
        return action is not Action.SAVEPOINT
    return True
