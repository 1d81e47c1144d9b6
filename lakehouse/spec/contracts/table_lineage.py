"""Lineage of a table from the catalog's specs: its sources, and the tables and publications that use its rows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lakehouse.spec.contracts.document import Document


class LineageNodeKind(StrEnum):
    """Kind of a node in the lineage graph."""

    #: A source outside of the lake: files, a topic, or tables of a database.
    SOURCE = "source"
    #: A table in the Hudi format.
    TABLE = "table"
    #: A table of a Hive Metastore that publishes or registers a table.
    PUBLICATION = "publication"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageNode:
    """A node of the lineage graph.

    Attributes:
        id: Identity within the document.
        kind: Kind of the node.
        name: Its name for people, such as `sales.orders` or `json files of landing/orders`.
        detail: Kind and connection of a source, location of a table, or metastore of a publication.
        table: Identifier in the catalog; empty if the node is not a table of the catalog.
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

    `shortened` means that more distant tables are omitted.
    """

    now_ms: int
    table: str
    nodes: tuple[LineageNode, ...] = ()
    edges: tuple[LineageEdge, ...] = ()
    shortened: bool = False
