"""Merge-on-read tables that Hudi upgraded from version 6: shared fixtures, and tables of version 9 with such names."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from lakehouse.core.format.file_names import parse_log_file
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, encode_block
from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_properties import PROPERTIES
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.files import LogFile
from tests.support.commits import completed_commits, edit_commit
from tests.support.shared import fixtures
from tests.support.tables import base_files, log_files

#: Merge-on-read tables of Hudi 0.15 that Hudi 1.2 upgraded while a compaction was pending. In the second one the
#: compaction is still pending.
COMPACTED = "mor_v9_h120_upgraded_with_pending_compaction"
PENDING = "mor_v9_h120_restored_after_upgrade"
#: The requested times of these compactions.
COMPACTIONS = {COMPACTED: "20261128074048674", PENDING: "20261128080345408"}


def unpacked(name: str, directory: Path) -> str:
    """Extract a table of the fixtures of version 6 below `directory` and return its path."""
    with zipfile.ZipFile(fixtures(f"hudi_v6/{name}.zip")) as archive:
        archive.extractall(directory)
    return str(directory / name)


def set_property(storage: Storage, key: str, value: str | None) -> None:
    """Set one table property, or remove it for None."""
    raw = {name: text for name, text in parse_properties(storage.get(PROPERTIES)).items() if name != key}
    storage.put(PROPERTIES, render_properties(raw if value is None else {**raw, key: value}))


def upgrade(table: Table, *, appends: bool = False, compaction: str | None = None) -> None:
    """Give the log files of a table without metadata table names of version 6, as an upgrade by Hudi leaves them.

    Args:
        table: The table. Logs that have such a name already keep it.
        appends: The logs of a slice are one file, to which each commit appended its blocks.
        compaction: The requested time of a pending compaction: logs are named after it, not after their base file.
    """
    storage = table.refresh().env.storage
    set_property(storage, "hoodie.table.initial.version", "6")
    own = {metadata_path.rpartition("/")[2].split("_")[0] for metadata_path in completed_commits(storage)}
    bases = {(base.partition, base.file_id, base.instant) for base in base_files(storage)}
    groups: dict[tuple[str, str], list[LogFile]] = {}
    for log in log_files(storage):
        if log.instant in own and (log.partition, log.file_id, log.instant) not in bases:
            groups.setdefault((log.partition, log.file_id), []).append(log)
    for (partition, file_id), logs in groups.items():
        starts = [instant for path, group, instant in bases if (path, group) == (partition, file_id)]
        content = b""
        for number, log in enumerate(sorted(logs, key=lambda log: log.instant), 1):
            start = compaction or max((s for s in starts if s < log.instant), default=min(o.instant for o in logs))
            version, task = (1, 1) if appends else (number, number)
            renamed = replace(log, instant=start, version=version, write_token=f"{task}-{task}-{task}")
            data = storage.get(log.path)
            content = content + data if appends else data
            storage.delete(log.path)
            storage.put(renamed.path, content)
            _state(storage, log.path, renamed.path, len(content))


def add_rollback(table: Table, after: LogFile, target: str, instant: str) -> LogFile:
    """Append a log file to a slice, with the command of the rollback `instant` of the write `target`."""
    headers = {
        BlockHeader.INSTANT_TIME: instant,
        BlockHeader.TARGET_INSTANT_TIME: target,
        BlockHeader.COMMAND_BLOCK_TYPE: "0",
    }
    log = replace(after, version=after.version + 1, write_token="1-0-1")
    table.refresh().env.storage.put(log.path, encode_block(BlockType.COMMAND, headers, b""))
    return log


def named_logs(table: Table, instant: str) -> list[str]:
    """Return the paths of the log files on storage that have this instant in their names."""
    return [log.path for log in log_files(table.refresh().env.storage) if log.instant == instant]


def _state(storage: Storage, before: str, now: str, size: int) -> None:
    """Let the commit that names the log file `before` name `now`."""

    def stated(metadata: CommitMetadata) -> CommitMetadata:
        return replace(metadata, stats=tuple(_renamed(metadata.stats, before, now, size)))

    for path in completed_commits(storage):
        if any(stat.path == before for stat in decode_commit(storage.get(path)).stats):
            edit_commit(storage, path, stated)


def _renamed(stats: Iterable[WriteStat], before: str, now: str, size: int) -> Iterable[WriteStat]:
    for stat in stats:
        log = parse_log_file(now.rpartition("/")[2], stat.partition, size)
        assert log is not None, "a log file was renamed"
        of_log = replace(stat, path=now, size_bytes=size, prev_commit=log.instant, log_version=0, log_files=())
        yield of_log if stat.path == before else stat
