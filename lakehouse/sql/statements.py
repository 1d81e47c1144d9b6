"""One frozen value per kind of statement. Expressions and queries are characters of the original statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Name = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassThrough:
    """A statement for the engine, unchanged except for references to tables of the catalog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDef:
    """A column of CREATE TABLE or ADD COLUMNS; `place` is FIRST, or AFTER and the name of a column."""

    name: str
    type: str
    comment: str = ""
    is_required: bool = False
    first: bool = False
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """CREATE TABLE ... USING lakehouse | hudi."""

    name: Name
    columns: tuple[ColumnDef, ...] = ()
    partition_by: tuple[str, ...] = ()
    location: str = ""
    comment: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    exist_ok: bool = False
    replace: bool = False
    like: Name = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateView:
    """CREATE TEMPORARY VIEW; `is_temporary` is False for a view in Spark's catalog."""

    name: Name
    query: str
    columns: tuple[str, ...] = ()
    replace: bool = False
    is_temporary: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable:
    """DROP TABLE."""

    name: Name
    exist_ok: bool = False
    purge: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DropView:
    """DROP VIEW."""

    name: Name
    exist_ok: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """TRUNCATE TABLE, of the partitions with these values, or of the whole table."""

    name: Name
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """REFRESH TABLE: nothing to do, because every statement reads the newest version."""

    name: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """INSERT INTO | OVERWRITE.

    Attributes:
        name: The table.
        query: The query or VALUES with the rows.
        columns: The list of columns; empty for all.
        partition: Values of partition columns; None for a dynamic one.
        by_name: BY NAME.
        overwrite: INSERT OVERWRITE.
        replace_where: The condition of REPLACE WHERE.
    """

    name: Name
    query: str
    columns: tuple[str, ...] = ()
    partition: Mapping[str, str | None] = field(default_factory=dict)
    by_name: bool = False
    overwrite: bool = False
    replace_where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """UPDATE: expressions by column."""

    name: Name
    alias: str = ""
    assignments: tuple[tuple[str, str], ...] = ()
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """DELETE FROM."""

    name: Name
    alias: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeClause:
    """One WHEN clause.

    Attributes:
        match: matched, not_matched or not_matched_by_source.
        action: update, update_all, delete, insert or insert_all.
        condition: The condition after AND.
        assignments: Expressions by column.
        except_cols: Columns of `* EXCEPT (...)`.
    """

    match: str
    action: str
    condition: str = ""
    assignments: tuple[tuple[str, str], ...] = ()
    except_cols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """MERGE INTO; `source` is a table or a query in parentheses."""

    name: Name
    alias: str
    source: str
    source_alias: str
    source_columns: tuple[str, ...] = ()
    on: str
    clauses: tuple[MergeClause, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumns:
    """ALTER TABLE ... ADD COLUMNS."""

    columns: tuple[ColumnDef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropColumns:
    """ALTER TABLE ... DROP COLUMNS."""

    names: tuple[str, ...]
    exist_ok: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumn:
    """ALTER TABLE ... RENAME COLUMN a TO b."""

    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeColumn:
    """ALTER TABLE ... ALTER | CHANGE COLUMN; a field without a value stays as it is."""

    name: str
    type: str = ""
    comment: str | None = None
    first: bool = False
    after: str = ""
    new_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetProperties:
    """ALTER TABLE ... SET TBLPROPERTIES."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsetProperties:
    """ALTER TABLE ... UNSET TBLPROPERTIES."""

    names: tuple[str, ...]
    exist_ok: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPartitions:
    """ALTER TABLE ... DROP PARTITION."""

    partitions: tuple[Mapping[str, str | None], ...]
    exist_ok: bool = False


AlterAction = AddColumns | DropColumns | RenameColumn | ChangeColumn | SetProperties | UnsetProperties | DropPartitions


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTable:
    """ALTER TABLE."""

    name: Name
    actions: tuple[AlterAction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedAlter:
    """An ALTER TABLE that a table of the catalog does not have; `advice` is the alternative."""

    name: Name
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateIndex:
    """CREATE INDEX name ON table USING kind (columns) OPTIONS (...)."""

    index: str
    name: Name
    kind: str
    columns: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    exist_ok: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DropIndex:
    """DROP INDEX name ON table."""

    index: str
    name: Name
    exist_ok: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowIndexes:
    """SHOW INDEXES FROM table."""

    name: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """CREATE | DROP | SHOW NAMESPACES and USE: `verb` is create, drop, show or use."""

    verb: str
    name: Name = ()
    exist_ok: bool = False
    cascade: bool = False
    pattern: str = ""
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowTables:
    """SHOW TABLES [IN namespace] [LIKE pattern]."""

    namespace: Name = ()
    pattern: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowTable:
    """SHOW PARTITIONS | COLUMNS | TBLPROPERTIES | CREATE TABLE of a table; `what` is the keyword in lower case."""

    what: str
    name: Name
    key: str = ""
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe:
    """DESCRIBE [TABLE] [EXTENDED] table [column]."""

    name: Name
    is_extended: bool = False
    column: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """CALL procedure(arguments): arguments by name, and by position."""

    procedure: Name
    named: Mapping[str, str] = field(default_factory=dict)
    positional: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOption:
    """SET key = value, for the keys `hoodie.*` and `lakehouse.*`."""

    key: str
    value: str | None = None


Statement = (
    PassThrough
    | CreateTable
    | CreateView
    | DropTable
    | DropView
    | Truncate
    | Refresh
    | Insert
    | Update
    | Delete
    | Merge
    | AlterTable
    | UnsupportedAlter
    | CreateIndex
    | DropIndex
    | ShowIndexes
    | Namespace
    | ShowTables
    | ShowTable
    | Describe
    | Call
    | SetOption
)
