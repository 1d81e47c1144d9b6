"""Where the rows of a table come from and where they go, as the catalog's specs declare it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lakehouse.spec.contracts.document import Document


class LineageNodeKind(StrEnum):
    """The kind of a box in the lineage picture."""

    #: A source outside of the lake: files, a topic, or tables of a database.
    SOURCE = "source"
    #: A table in the Hudi format.
    TABLE = "table"
    #: A table of a Hive Metastore that publishes or registers a table.
    PUBLICATION = "publication"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageNode:
    """A box of the picture.

    Attributes:
        id: Identity within the document.
        kind: Kind of the box.
        name: Its name for people, such as `sales.orders` or `json files of landing/orders`.
        detail: More about it: kind and connection of a source, location of a table, metastore of a publication.
        table: Identifier in the catalog; empty if the box is not a table of the catalog.
    """

    id: str
    kind: LineageNodeKind
    name: str
    detail: str = ""
    table: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageEdge:
    """Rows go from one node to another; `label` describes how, such as `changes`, `join` or the name of an input."""

    source: str
    target: str
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLineage(Document):
    """Sources, derived tables and publications around a table, over several steps.

    `shortened` means that tables farther away are left out.
    """

    now_ms: int
    table: str
    nodes: tuple[LineageNode, ...] = ()
    edges: tuple[LineageEdge, ...] = ()
    shortened: bool = False
