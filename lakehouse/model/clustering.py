"""What a clustering will do: plans as they stand on the timeline (TL-4.4, TL-9.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.model.files import FileSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteredSlice:
    """One file slice that goes in: bare names in `partition`; a slice without base file has `data_file` None.

    `log_sizes` are the sizes that commits state of `log_files`, 0 where none is known; stored plans do not hold them.
    """

    partition: str
    file_id: str
    data_file: str | None
    log_files: tuple[str, ...] = ()
    log_sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, file_slice: FileSlice) -> ClusteredSlice:
        """Return what a plan says of `file_slice`."""
        return cls(
            partition=file_slice.partition,
            file_id=file_slice.file_id,
            data_file=file_slice.base.name if file_slice.base else None,
            log_files=tuple(log.name for log in file_slice.logs),
        )

    @property
    def names(self) -> frozenset[str]:
        """The names of all its files."""
        return frozenset(self.log_files if self.data_file is None else (self.data_file, *self.log_files))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringGroup:
    """Slices of one partition whose rows become `outputs` new file groups; `metrics` under Hudi's keys, sizes in MB."""

    slices: tuple[ClusteredSlice, ...]
    outputs: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def partition(self) -> str:
        """The partition of its slices."""
        return self.slices[0].partition


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringPlan:
    """The plan in `clustering.requested`. `params` are options by their keys; `extra` is the plan's own metadata.

    `strategy` is the class Hudi runs the plan with; it says nothing here unless its rows go by something else than
    sort columns.
    """

    groups: tuple[ClusteringGroup, ...]
    params: Mapping[str, str] = field(default_factory=dict)
    strategy: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    missing_partitions: tuple[str, ...] = ()

    @property
    def slices(self) -> tuple[ClusteredSlice, ...]:
        """All slices that go in."""
        return tuple(piece for group in self.groups for piece in group.slices)

    @property
    def replaced(self) -> dict[str, tuple[str, ...]]:
        """The file ids that the clustering hides, by partition."""
        replaced: dict[str, tuple[str, ...]] = {}
        for piece in self.slices:
            replaced[piece.partition] = (*replaced.get(piece.partition, ()), piece.file_id)
        return replaced
