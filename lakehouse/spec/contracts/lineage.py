"""Lineage of a job: the datasets that it read and wrote, with columns, named as OpenLineage names them."""

from __future__ import annotations

from dataclasses import dataclass

#: A job adds its lineage to the report if this variable is `true`; the operator sets it.
LINEAGE = "LAKEHOUSE_LINEAGE"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageField:
    """A column of an input dataset."""

    namespace: str
    name: str
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageColumn:
    """A column with its type, and the columns of inputs whose values it has; `sources` is empty if unknown."""

    name: str
    type: str
    sources: tuple[LineageField, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageDataset:
    """A dataset.

    Attributes:
        namespace: Scheme and authority, such as `s3://lake`, `file` or `kafka://broker:9092`.
        name: Name within the namespace: a path, a topic, or `database.table`.
        table: Full name of a table of the catalog, empty for other datasets.
        columns: Columns, empty if unknown.
    """

    namespace: str
    name: str
    table: str = ""
    columns: tuple[LineageColumn, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLineage:
    """The datasets that a job read and wrote."""

    inputs: tuple[LineageDataset, ...] = ()
    outputs: tuple[LineageDataset, ...] = ()
