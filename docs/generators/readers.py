"""The page of the readers: which engine reads which tables, from tests/interop/readers.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from docs.generators.markdown import page, table

ROOT = Path(__file__).resolve().parents[2]
READERS = "tests/interop/readers.yaml"
VERSIONS = (6, 8, 9)
#: The columns of the matrix, and their heads.
COLUMNS: Mapping[str, str] = {
    **{f"version_{version}": f"version {version}" for version in VERSIONS},
    "copy_on_write": "copy-on-write",
    "merge_on_read": "merge-on-read",
    "read_optimized": "read-optimized",
    "time_travel": "time travel",
    "incremental": "incremental",
}
_UNSTATED = "unstated"
_KEYS = {"id", "name", "cells", "tried", "cites", "note", "refusal"}
_TEXTS = {True: "yes", False: "no", None: "not stated"}

_INTRO = """\
Which engines read which tables. The names of the columns are Hudi's: a table has a
[version](../concepts/formats.md) and a [type](../concepts/tables.md). The column *merge-on-read* is
about the latest rows of a merge-on-read table, *read-optimized* about its base files alone, whose rows are as old as
the last compaction. The releases of Apache Hudi are tried on Spark 3.5."""

_LEGEND = """\
*not stated*: the engine's documentation does not say it; try it with your version before you depend on it. A cell holds
for each table version that the reader reads."""

_CHOICE = """\
lakehouse creates tables of version 9. Create a table of version 8 if one of its readers is Hudi 1.0, and of
[version 6](../how-to/share-tables-with-older-hudi.md) for readers of tables of Hudi 0.15:
`Table.create(..., options={"hoodie.write.table.version": "6"})`, or the same key below `options` in a
[table spec](spec-file.md). [Publication](../publication.md) gives engines that read no Hudi table partitions of plain
Parquet files in a Hive Metastore. [Views](../how-to/read-as-iceberg-or-delta.md) of the newest commit are for engines
that read Iceberg or Delta, such as Snowflake."""


class MatrixError(ValueError):
    """Raised if the file of the readers has an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Whether a reader can do something; None: the documentation does not say it. Exactly one of the others is set."""

    reads: bool | None
    tried: str = ""
    cites: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One row of the matrix; `refusal` is a pattern of the error for table versions that the reader does not read."""

    id: str
    name: str
    cells: Mapping[str, Cell]
    note: str = ""
    refusal: str = ""

    @property
    def is_tried(self) -> bool:
        """Whether tests try the cells of the reader."""
        return all(cell.tried for cell in self.cells.values())

    def reads(self, version: int) -> bool | None:
        """Return whether the reader reads tables of a version."""
        return self.cells[f"version_{version}"].reads


def load_readers(path: Path = ROOT / READERS) -> tuple[Reader, ...]:
    """Return the readers in the order of the file.

    Raises:
        MatrixError: A key, a cell or the evidence of a cell is missing or unknown.
    """
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))["readers"]
    readers = tuple(_reader(entry) for entry in entries)
    if len({reader.id for reader in readers}) < len(readers):
        raise MatrixError(f"{path.name}: two readers have the same id")
    return readers


def readers_page() -> str:
    """Return the page with the matrix, its evidence and the notes."""
    readers = load_readers()
    cells = [(reader.name, *(_TEXTS[reader.cells[column].reads] for column in COLUMNS)) for reader in readers]
    evidence = [(reader.name, _evidence(reader)) for reader in readers]
    notes = "\n".join(f"- **{reader.name}**: {reader.note}" for reader in readers if reader.note)
    parts = (
        _INTRO,
        "## Which table version",
        "\n".join(_by_version(readers, version) for version in reversed(VERSIONS)),
        _CHOICE,
        "## Matrix",
        table(("reader", *COLUMNS.values()), cells),
        _LEGEND,
        "## Notes",
        notes,
        "## Evidence",
        "*Tried*: a test of this project reads tables with known rows and compares each cell of the reader.",
        table(("reader", "evidence"), evidence),
    )
    return page("Readers", READERS, *parts)


def _reader(entry: Mapping[str, Any]) -> Reader:
    name = str(entry.get("id", entry))
    if unknown := sorted(set(entry) - _KEYS):
        raise MatrixError(f"reader {name}: unknown keys {unknown}")
    if set(entry["cells"]) != set(COLUMNS):
        raise MatrixError(f"reader {name}: the cells must be {', '.join(COLUMNS)}")
    common = {key: str(entry[key]) for key in ("tried", "cites") if key in entry}
    return Reader(
        id=name,
        name=str(entry["name"]),
        cells={column: _cell(f"{name}.{column}", value, common) for column, value in entry["cells"].items()},
        note=" ".join(str(entry.get("note", "")).split()),
        refusal=str(entry.get("refusal", "")),
    )


def _cell(name: str, value: Any, common: Mapping[str, str]) -> Cell:
    own = dict(value) if isinstance(value, dict) else {"reads": value}
    reads = own.pop("reads", "")
    evidence = own or common
    if not (reads is True or reads is False or reads == _UNSTATED):
        raise MatrixError(f"cell {name}: {reads!r} is not one of yes, no, {_UNSTATED}")
    if len(evidence) != 1 or not set(evidence) <= {"tried", "cites"}:
        raise MatrixError(f"cell {name}: give either `tried` or `cites`, not {sorted(evidence)}")
    if reads == _UNSTATED and "tried" in evidence:
        raise MatrixError(f"cell {name}: a cell that is tried says yes or no")
    return Cell(reads=None if reads == _UNSTATED else reads, **evidence)


def _by_version(readers: tuple[Reader, ...], version: int) -> str:
    names = {answer: [reader.name for reader in readers if reader.reads(version) is answer] for answer in (True, False)}
    refused = f" Not by {_listed(names[False])}." if names[False] else ""
    return f"- **Version {version}** is read by {_listed(names[True])}.{refused}"


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _evidence(reader: Reader) -> str:
    columns: dict[str, list[str]] = {}
    for column, cell in reader.cells.items():
        columns.setdefault(_source(cell), []).append(COLUMNS[column])
    if len(columns) == 1:
        return next(iter(columns))
    return "; ".join(f"{source} ({', '.join(heads)})" for source, heads in columns.items())


def _source(cell: Cell) -> str:
    if cell.tried:
        path, _, test = cell.tried.partition("::")
        return f"tried by [{test}](../../{path})"
    return f"[{cell.cites.removeprefix('https://').partition('/')[0]}]({cell.cites})"
