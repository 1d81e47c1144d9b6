"""Lineage of a job: the datasets that it read and wrote, with their columns. Names follow OpenLineage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

#: A job adds its lineage to the report if this variable is `true`; the operator sets it.
LINEAGE = "LAKEHOUSE_LINEAGE"
#: Placeholder namespace for views, until the lineage of a transform gets the names of its datasets.
VIEWS = "view"


def is_lineage_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether jobs add their lineage to the report."""
    return environ.get(LINEAGE, "").lower() == "true"


class LineageKind(StrEnum):
    """How a column depends on a source column: the transformation subtypes of OpenLineage.

    The first three are direct: values are copied or computed from source values. The others are indirect: the source
    column decides which rows or values exist.
    """

    #: The value is copied.
    IDENTITY = "IDENTITY"
    #: The value is computed from the source value in the same row.
    TRANSFORMATION = "TRANSFORMATION"
    #: The value is computed from source values in several rows.
    AGGREGATION = "AGGREGATION"
    #: The source is in the condition of a join.
    JOIN = "JOIN"
    #: The source is in a filter.
    FILTER = "FILTER"
    #: Rows are grouped by the source column.
    GROUP_BY = "GROUP_BY"
    #: Rows are sorted by the source column.
    SORT = "SORT"
    #: The source is in the partition or the order of a window function.
    WINDOW = "WINDOW"
    #: The source column decides which of several values is used.
    CONDITIONAL = "CONDITIONAL"

    @property
    def is_direct(self) -> bool:
        """Return whether values are copied or computed from source values."""
        return self in (LineageKind.IDENTITY, LineageKind.TRANSFORMATION, LineageKind.AGGREGATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageField:
    """A column of an input dataset, and how an output depends on it."""

    namespace: str
    name: str
    field: str
    kind: LineageKind = LineageKind.IDENTITY


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageColumn:
    """A column.

    Attributes:
        name: Name of the column.
        type: Type of the column.
        sources: Columns of inputs that it depends on, one entry for each kind; empty for a constant.
        unknown: Why the sources are unknown; empty if they are known.
    """

    name: str
    type: str
    sources: tuple[LineageField, ...] = ()
    unknown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageStatistics:
    """Statistics of an output that the job only publishes, and does not write; `rows` is None if unknown."""

    files: int
    bytes: int
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageDataset:
    """A dataset.

    Attributes:
        namespace: Scheme and authority, such as `s3://lake`, `file` or `kafka://broker:9092`.
        name: Name within the namespace: a path, a topic, or `database.table`.
        table: Full name of a table in the catalog, empty for other datasets.
        columns: Columns, empty if unknown.
        influences: Input columns that decide which rows an output has, such as the columns in joins and filters.
        statistics: Statistics of an output that the job does not write itself; None means the numbers in the report.
    """

    namespace: str
    name: str
    table: str = ""
    columns: tuple[LineageColumn, ...] = ()
    influences: tuple[LineageField, ...] = ()
    statistics: LineageStatistics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLineage:
    """The datasets that a job read and wrote."""

    inputs: tuple[LineageDataset, ...] = ()
    outputs: tuple[LineageDataset, ...] = ()

    @property
    def unknown_columns(self) -> int:
        """Return the number of output columns whose sources are unknown."""
        return sum(bool(column.unknown) for one in self.outputs for column in one.columns)
