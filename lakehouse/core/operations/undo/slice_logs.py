"""Roll back log files that are named after their slice, by command blocks (V6-6.1 to V6-6.3).

The name of such a log file does not show which write it belongs to, and its version has a place in the order of the
slice. So the file of a failed or undone write stays. The rollback appends a log file with a command block, and readers
drop the blocks of the write that precede it.

    log.3 by X          data block of X
    log.4 by rollback R   command block: roll back X

Markers of X contain the names of its log files. If markers are missing, the profile in the inflight file of X contains
the slices, and the headers of their log files show whether X appended to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from lakehouse.core.files.stage.markers import create_marker
from lakehouse.core.format.file_names import marker_name, parse_log_file
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, encode_block, scan_blocks
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.named_logs import is_named_by_slice, keeps_logs
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.storage.protocol import is_temporary
from lakehouse.core.timeline.file_deletions import LOG_INFIX, delete_data_files
from lakehouse.model.attempt import is_token_of, rollback_token
from lakehouse.model.commit import RollbackPlan
from lakehouse.model.files import LogFile
from lakehouse.model.instant import Instant, State

#: The log files of a write, as sizes by name, by slice: partition, file id and base instant.
Slices = Mapping[tuple[str, str, str], Mapping[str, int]]

_ROLLBACK = "0"


def appended_slices(table: LoadedTable, instant: Instant, marked: Iterable[str], *, is_own: bool) -> Slices:
    """Return the slices of other instants to which a write appended log files.

    Args:
        table: The loaded table.
        instant: The write.
        marked: The files with a marker of the write.
        is_own: Whether this process wrote the files, so that the markers are complete.
    """
    if not keeps_logs(table):
        return {}
    if instant.is_completed:
        stats = table.store.commit(instant).stats
        return _by_slice((s.path, s.size_bytes) for s in stats if is_named_by_slice(s.path, instant.requested))
    names = {path for path in marked if is_named_by_slice(path, instant.requested)}
    profiled = frozenset() if is_own else _profiled_slices(table, instant)
    partitions = {path.rpartition("/")[0] for path in names} | {partition for partition, _, _ in profiled}
    listed = [file for file in list_data_files(table, sorted(partitions)) if isinstance(file, LogFile)]
    unmarked = [log for log in listed if log.path not in names and _slice_of(log) in profiled]
    has_block = send_all(table.env.storage, partial(_has_block, table, instant.requested), unmarked)
    names |= {log.path for log, is_appended in zip(unmarked, has_block, strict=True) if is_appended}
    return _by_slice((log.path, log.size_bytes) for log in listed if log.path in names)


def _profiled_slices(table: LoadedTable, instant: Instant) -> frozenset[tuple[str, str, str | None]]:
    """Return the slices that a pending write changes, by the profile in its inflight file."""
    profile = table.store.read(instant, State.INFLIGHT)
    stats = decode_commit(profile).stats if profile else ()
    return frozenset((stat.partition, stat.file_id, stat.prev_commit) for stat in stats if stat.file_id)


def _slice_of(log: LogFile) -> tuple[str, str, str | None]:
    return log.partition, log.file_id, log.instant


def _has_block(table: LoadedTable, requested: str, log: LogFile) -> bool:
    with table.env.storage.open_input(log.path) as source:
        return any(requested in (block.instant, block.writer) for block in scan_blocks(source))


def _by_slice(files: Iterable[tuple[str, int]]) -> Slices:
    slices: dict[tuple[str, str, str], dict[str, int]] = {}
    for path, size in files:
        partition, _, name = path.rpartition("/")
        log = parse_log_file(name, partition, size)
        assert log is not None, "the path is that of a log file"
        slices.setdefault((partition, log.file_id, log.instant), {})[name] = size
    return slices


def planned_slices(plans: Iterable[RollbackPlan]) -> Slices:
    """Return the slices of all plans."""
    slices: dict[tuple[str, str, str], dict[str, int]] = {}
    for plan in plans:
        for request in plan.requests:
            if request.base_instant:
                key = (request.partition, request.file_id, request.base_instant)
                slices.setdefault(key, {}).update(request.logs)
    return slices


def delete_unfinished_logs(table: LoadedTable, requested: str, marked: Iterable[str]) -> None:
    """Delete unfinished log files of a failed write, under temporary names, in the partitions of its marked files."""
    if not keeps_logs(table):
        return
    for partition in sorted({path.rpartition("/")[0] for path in marked if LOG_INFIX in path}):
        listed, _ = table.env.storage.list_dir(partition)
        temporary = [file.path for file in listed if is_temporary(file.name)]
        # The name consists of the log file's name, random letters and a suffix.
        own = [path for path in temporary if is_token_of(path.rsplit(".", 2)[0].rpartition("_")[2], requested)]
        delete_data_files(table.env.storage, own, f"a listing of {partition!r}", unfinished=True)


def append_command_blocks(table: LoadedTable, undoing: str, plan: RollbackPlan) -> dict[str, dict[str, int]]:
    """Append a command block to each slice of a plan; return the sizes of the log files by path, by partition.

    A log file of an earlier execution of this rollback is kept.
    """
    slices = planned_slices([plan])
    written: dict[str, dict[str, int]] = {}
    if not slices:
        return written
    headers = {
        BlockHeader.INSTANT_TIME: undoing,
        BlockHeader.TARGET_INSTANT_TIME: plan.target,
        BlockHeader.COMMAND_BLOCK_TYPE: _ROLLBACK,
    }
    content = encode_block(BlockType.COMMAND, headers, b"")
    token = rollback_token(undoing)
    listed = list_data_files(table, sorted({partition for partition, _, _ in slices}))
    for key in slices:
        partition, file_id, base_instant = key
        logs = [f for f in listed if isinstance(f, LogFile) and (f.partition, f.file_id, f.instant) == key]
        earlier = next((log for log in logs if log.write_token == token), None)
        log = earlier or LogFile(
            partition=partition,
            file_id=file_id,
            instant=base_instant,
            version=max((other.version for other in logs), default=0) + 1,
            write_token=token,
        )
        if earlier is None:
            create_marker(table.env.storage, undoing, marker_name(log.path, table.config.layout.log_marker))
            table.env.storage.create(log.path, content)
        written.setdefault(partition, {})[log.path] = len(content)
    return written
