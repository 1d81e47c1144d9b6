"""Plans of clustering, as they are stored on the timeline (TL-4.4, TL-9.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.model.display import Readable, Shown, count_text, sentence
from lakehouse.model.files import FileSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteredSlice:
    """An input file slice: file names in `partition`; `data_file` is None if the slice has no base file.

    `log_sizes` are the sizes of `log_files` in their commits, 0 if unknown. Stored plans do not contain them.
    `source` is the URI of the source file if the base file is a skeleton file of a bootstrap.
    """

    partition: str
    file_id: str
    data_file: str | None
    log_files: tuple[str, ...] = ()
    log_sizes: tuple[int, ...] = ()
    source: str = ""

    @classmethod
    def of(cls, file_slice: FileSlice) -> ClusteredSlice:
        """Return the input for `file_slice`."""
        return cls(
            partition=file_slice.partition,
            file_id=file_slice.file_id,
            data_file=file_slice.base.name if file_slice.base else None,
            log_files=tuple(log.name for log in file_slice.logs),
        )

    @property
    def names(self) -> frozenset[str]:
        """The names of all files in the slice."""
        return frozenset(self.log_files if self.data_file is None else (self.data_file, *self.log_files))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringGroup:
    """Slices of one partition whose rows become `outputs` new file groups; `metrics` have Hudi's keys, sizes in MB.

    `extra` is metadata of the group: a resize of buckets names the new file groups in it.
    """

    slices: tuple[ClusteredSlice, ...]
    outputs: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def partition(self) -> str:
        """The partition of the slices."""
        return self.slices[0].partition


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringPlan(Readable):
    """The plan in `clustering.requested`; `params` are options by key, `extra` is metadata of the plan.

    `strategy` is the class with which Hudi executes the plan. This package uses it only if it defines a row order other
    than sorting by columns.
    """

    groups: tuple[ClusteringGroup, ...]
    params: Mapping[str, str] = field(default_factory=dict)
    strategy: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    missing_partitions: tuple[str, ...] = ()

    @property
    def slices(self) -> tuple[ClusteredSlice, ...]:
        """All input slices."""
        return tuple(one for group in self.groups for one in group.slices)

    @property
    def replaced(self) -> dict[str, tuple[str, ...]]:
        """The file ids that the clustering replaces, by partition."""
        replaced: dict[str, tuple[str, ...]] = {}
        for one in self.slices:
            replaced[one.partition] = (*replaced.get(one.partition, ()), one.file_id)
        return replaced

    def _shown(self) -> Shown:
        slices, outputs = sum(len(group.slices) for group in self.groups), sum(group.outputs for group in self.groups)
        line = sentence(
            f"clustering plan: {count_text(slices, 'file group')} become {outputs:,}",
            count_text(len({group.partition for group in self.groups}), "partition"),
        )
        rows = [
            {"partition": group.partition, "file_groups": len(group.slices), "output_groups": group.outputs}
            for group in self.groups
        ]
        return Shown(line, dict(self.params), rows)
