"""Check the files of a pending plan: their committed sizes, and missing files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.skeleton_file import source_of
from lakehouse.core.files.log.log_reader import RECOVERY_ADVICE
from lakehouse.core.format.file_names import parse_log_file
from lakehouse.core.operations.load.pending import UnusablePlanError
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.services.plan_executor import ClaimedPlan, check_executor
from lakehouse.core.rows.stored_names import is_skeleton
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.errors import CorruptTableError
from lakehouse.model.clustering import ClusteredSlice
from lakehouse.model.compaction import CompactionOperation

PlannedSlice = TypeVar("PlannedSlice", CompactionOperation, ClusteredSlice)


def with_committed_log_sizes(table: LoadedTable, planned: Iterable[PlannedSlice]) -> list[PlannedSlice]:
    """Return the planned slices with the sizes of their log files from commits on the timeline.

    A plan may be executed long after it was made, by another process. Its tasks compare the logs that they open with
    these sizes, which takes no request. A log without a commit on the timeline gets size 0, which is not compared.
    """
    pieces = list(planned)
    logs = {
        (piece.partition, name): parse_log_file(name, piece.partition, 0)
        for piece in pieces
        for name in piece.log_files
    }
    instants = {log.instant for log in logs.values() if log is not None}
    written = table.store.files(i for i in table.timeline.writes() if i.requested in instants)
    named = pa.array([log.path for log in logs.values() if log is not None], pa.string())
    written = written.filter(pc.is_in(written["path"], value_set=named))
    sizes = dict(zip(written["path"].to_pylist(), written["size_bytes"].to_pylist(), strict=True))

    def size(partition: str, name: str) -> int:
        log = logs[(partition, name)]
        return 0 if log is None else sizes.get(log.path, 0)

    return [
        replace(piece, log_sizes=tuple(size(piece.partition, name) for name in piece.log_files)) for piece in pieces
    ]


def with_sources(table: LoadedTable, planned: Iterable[PlannedSlice]) -> tuple[PlannedSlice, ...]:
    """Return the planned slices with the source files of skeleton files, without which Hudi loses the data columns."""

    def completed(piece: PlannedSlice) -> PlannedSlice:
        if piece.data_file is None or not is_skeleton(piece.data_file):
            return piece
        source = source_of(table.env.storage, piece.partition, piece.file_id)
        return replace(piece, source=source.uri)

    return tuple(completed(piece) for piece in planned)


@contextmanager
def planned_files_exist(
    claimed: ClaimedPlan, planned: Sequence[CompactionOperation] | Sequence[ClusteredSlice]
) -> Iterator[None]:
    """Raise the appropriate error if a file of a plan is missing during execution.

    Raises RetryableError if another executor completed or dropped the plan, because a clean may have deleted its files.
    Otherwise raises CorruptTableError. If the options skip damaged files it raises UnusablePlanError instead: the next
    plan does not contain the file.
    """
    try:
        yield
    except NotFoundError as error:
        path = error.path
        names = {
            f"{piece.partition}/{name}" if piece.partition else name
            for piece in planned
            for name in (piece.data_file, *piece.log_files)
        }
        if path not in names:
            raise
        now, instant = claimed.table.reload(), claimed.instant
        check_executor(claimed, now.timeline)
        if claimed.policies.write.skips_damage:
            raise UnusablePlanError(f"{path} is missing") from error
        raise CorruptTableError(
            f"{now.env.storage.root}: {path} is missing, and the pending {instant.action} {instant.requested} names "
            f"it: rows that were committed are lost. {RECOVERY_ADVICE}, which also drops the plan",
            path=path,
            instant=instant.requested,
        ) from error
