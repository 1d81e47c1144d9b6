"""Plans of compaction, as they are stored on the timeline (TL-4.5, TL-9.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.model.display import Readable, Shown, count_text, sentence, size_text
from lakehouse.model.files import FileSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOperation:
    """Merges log files into the next base file of one file group.

    `data_file` and `log_files` are file names in `partition`; `data_file` is None if the slice has no base file.
    `log_sizes` are the sizes of `log_files` in their commits, 0 if unknown. Stored plans do not contain them. `metrics`
    are the planner's numbers with Hudi's keys (TOTAL_LOG_FILES, TOTAL_IO_MB, ...) and sizes in MB. `source` is the URI
    of the source file if the base file is a skeleton file of a bootstrap: Hudi finds the data columns by it.
    """

    partition: str
    file_id: str
    base_instant: str
    data_file: str | None
    log_files: tuple[str, ...]
    log_sizes: tuple[int, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    @classmethod
    def of(cls, file_slice: FileSlice, metrics: Mapping[str, float]) -> CompactionOperation:
        """Return the operation that compacts `file_slice`."""
        return cls(
            partition=file_slice.partition,
            file_id=file_slice.file_id,
            base_instant=file_slice.base_instant,
            data_file=file_slice.base.name if file_slice.base else None,
            log_files=tuple(log.name for log in file_slice.logs),
            metrics=metrics,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan(Readable):
    """Content of `compaction.requested` and `logcompaction.requested`; `extra` is metadata of the plan."""

    operations: tuple[CompactionOperation, ...]
    extra: Mapping[str, str] = field(default_factory=dict)
    missing_partitions: tuple[str, ...] = ()

    def _shown(self) -> Shown:
        logs = sum(len(operation.log_files) for operation in self.operations)
        size = sum(sum(operation.log_sizes) for operation in self.operations)
        partitions = {operation.partition for operation in self.operations}
        line = sentence(
            f"compaction plan: {count_text(len(self.operations), 'file group')}",
            count_text(logs, "log file"),
            size_text(size) if size else "",
            count_text(len(partitions), "partition"),
        )
        rows = [
            {"partition": o.partition, "file_group": o.file_id, "base_file": o.data_file, "log_files": len(o.log_files)}
            for o in self.operations
        ]
        return Shown(line, {"missing_partitions": self.missing_partitions} if self.missing_partitions else {}, rows)
