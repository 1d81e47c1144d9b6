"""Names of data files, instants and markers (TL-3.2, TL-6.1, TL-7.2; DATA-3.1, DATA-4.1).

A name that is not Hudi's gives None, so listings may hold anything; a name that is Hudi's but of a shape this package
cannot keep is refused aloud, because to overlook it would be to lose rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.model.instant import Action, Instant, State

LAYOUT_V6 = 1
LAYOUT_V8 = 2

_BASE = re.compile(r"([^._/]+)_([0-9A-Za-z-]+)_(\d+)\.(parquet|orc|hfile|lance)", re.ASCII)
_LOG = re.compile(r"\.([^._/]+)_(\d+)\.log\.(\d+)(?:_(\d+-\d+-\d+)(\.cdc)?)?", re.ASCII)
_INSTANT = re.compile(r"(\d{14,})(?:_(\d{14,}))?((?:\.[a-z]+){1,2})", re.ASCII)
_TIME = re.compile(r"[0-9]+")
_MARKER = re.compile(r"(.+)\.marker\.(CREATE|MERGE|APPEND)")
_PARTITION_METADATA = re.compile(r"\.hoodie_partition_metadata(?:_\d+)?(?:\.[a-z]+)?", re.ASCII)
_BATCH = re.compile(r"MARKERS(\d+)", re.ASCII)
#: The file that tells how the markers beside it are kept; without it each file has its own.
MARKERS_TYPE = "MARKERS.type"
#: Hudi reads the number of a batch as an int.
LARGEST_BATCH = (1 << 31) - 1

_SUFFIX_OF_STATE = {State.REQUESTED: ".requested", State.INFLIGHT: ".inflight"}
_STATE_OF_SUFFIX = {"requested": State.REQUESTED, "inflight": State.INFLIGHT}
_ACTIONS = frozenset(str(action) for action in Action)
_NEVER_COMPLETE = frozenset({Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING})


def parse_base_file(name: str, partition: str, size_bytes: int) -> BaseFile | None:
    """Return the base file of this name in `partition`, or None if the name is not a Hudi base file's."""
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
    """Return the log file of this name in `partition`, or None if it is not a data log (change logs are not).

    Raises UnsupportedError for a log without write token, which only Hudi before 0.6 wrote.
    """
    log = _parse_log(name, partition, size_bytes)
    return log if log is not None and not log.suffix else None


def parse_cdc_file(name: str, partition: str, size_bytes: int) -> LogFile | None:
    """Return the change log (`.cdc`) of this name in `partition`, or None if it is none."""
    log = _parse_log(name, partition, size_bytes)
    return log if log is not None and log.suffix else None


def parse_instant(name: str) -> Instant | None:
    """Return the instant that a file of this name on the timeline stands for, or None if it is no instant file.

    Both layouts are read: a completed file of layout 1 has no completion time (`completed` is None). Times of 14
    digits (before 0.10) and of 20 (metadata tables) are kept as they are.
    """
    match = _INSTANT.fullmatch(name)
    if match is None:
        return None
    requested, completed, suffix = match.groups()
    first, _, second = suffix[1:].partition(".")
    if first == "inflight" and not second:
        # A commit's inflight file carries no action: the one irregular name on the timeline.
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


def instant_name(instant: Instant, *, layout: int) -> str:
    """Return the file name of `instant` in timeline layout 1 (table version 6) or 2 (versions 8 and 9).

    A completed compaction is named as the commit it is, and so on (`Action.completed_as`); layout 1 plans a clustering
    as a replacecommit. Raises CorruptTableError if layout 2 lacks the completion time, or a savepoint is requested.
    """
    if not _TIME.fullmatch(instant.requested) or not _TIME.fullmatch(instant.completed or "0"):
        # Plans name instants too, and files are deleted by this name.
        raise CorruptTableError(f"{instant.requested!r} is no time of an instant", requested=instant.requested)
    if layout not in (LAYOUT_V6, LAYOUT_V8):
        raise UnsupportedError(f"timeline layout {layout} is not supported; supported are 1 and 2", layout=layout)
    if instant.state is not State.COMPLETED:
        return _pending_name(instant, layout)
    action = instant.action.completed_as
    if layout == LAYOUT_V6:
        return f"{instant.requested}.{action}"
    if instant.completed is None:
        raise CorruptTableError(
            f"completed instant {instant.requested}.{action} has no completion time, which layout 2 has in the name",
            requested=instant.requested,
            action=str(action),
        )
    return f"{instant.requested}_{instant.completed}.{action}"


def marker_name(base_file_path: str, kind: Literal["CREATE", "MERGE"]) -> str:
    """Return the marker of a data file: CREATE opens a file group, MERGE makes a new version of one."""
    return f"{base_file_path}.marker.{kind}"


def marker_batch_name(number: int) -> str:
    """Return the name of an object that holds many markers."""
    return f"MARKERS{number}"


def is_marker_batch(name: str) -> bool:
    """Return whether an object of this name, in the directory of markers, holds many of them."""
    return _BATCH.fullmatch(name) is not None


def encode_markers(names: Iterable[str]) -> bytes:
    """Return the content of an object that holds these markers."""
    return "".join(f"{name}\n" for name in names).encode()


def decode_markers(data: bytes) -> tuple[str, ...]:
    """Return the markers in an object that holds many; what is none, as a line cut off, is left out."""
    # Of a table without partitions some releases of Hudi write the empty partition, too.
    lines = [line.lstrip("/") for line in data.decode(errors="replace").split("\n")]
    return tuple(line for line in lines if parse_marker(line) is not None)


def write_token_of(path: str) -> str | None:
    """Return the token of the try that made a data file, change logs included; None if its name has none."""
    name = path.rpartition("/")[2]
    match = _BASE.fullmatch(name)
    if match is not None:
        return match[2]
    match = _LOG.fullmatch(name)
    return None if match is None else match[4]


def is_data_file(name: str) -> bool:
    """Return whether this is the bare name of a base file, a log file or a change log."""
    return _BASE.fullmatch(name) is not None or _LOG.fullmatch(name) is not None


def instant_of(name: str) -> str | None:
    """Return the instant in the bare name of a data file, change logs included; None for another name."""
    base, log = _BASE.fullmatch(name), _LOG.fullmatch(name)
    if base is not None:
        return base[3]
    return None if log is None else log[2]


def is_partition_metadata(name: str) -> bool:
    """Return whether this is the bare name of partition metadata, in whatever format, or of a task's try at it."""
    return _PARTITION_METADATA.fullmatch(name) is not None


def parse_marker(name: str) -> tuple[str, str] | None:
    """Return (path of the data file, kind) of a direct marker, or None; the kind APPEND is older writers' for logs."""
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
            f"log file {name!r} in partition {partition!r} has no write token; compact it with Hudi, then try again",
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


def _pending_name(instant: Instant, layout: int) -> str:
    action = instant.action
    if layout == LAYOUT_V6 and action is Action.CLUSTERING:
        action = Action.REPLACECOMMIT
    if not _is_legal(action, instant.state):
        raise CorruptTableError(f"a {action} has no {instant.state.name} file: {instant.requested}")
    if action is Action.COMMIT and instant.state is State.INFLIGHT:
        return f"{instant.requested}.inflight"
    return f"{instant.requested}.{action}{_SUFFIX_OF_STATE[instant.state]}"


def _is_legal(action: Action, state: State) -> bool:
    if state is State.COMPLETED:
        return action not in _NEVER_COMPLETE
    if state is State.REQUESTED:
        return action is not Action.SAVEPOINT
    return True
