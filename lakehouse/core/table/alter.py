"""AlterBuilder: the changes of `table.alter()`, which `execute` commits together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Unpack

import pyarrow as pa

from lakehouse.core.operations.create.create import refuse_secrets
from lakehouse.core.operations.load.table import OPTION_PREFIX, OWN_OPTIONS, LoadedTable
from lakehouse.core.operations.write.alter import AlterRequest, alter
from lakehouse.core.planning.schema import normalise
from lakehouse.core.planning.schema_changes import (
    AddColumn,
    ChangeType,
    DropColumn,
    MoveColumn,
    Place,
    RenameColumn,
    SchemaChange,
    SetComment,
)
from lakehouse.core.table.arguments import Outcome, WriteCall
from lakehouse.core.table.writes import commit_metadata_of, policies_of_call, settled
from lakehouse.errors import UserError, nearest
from lakehouse.model.texts import require_encodable, text_list
from lakehouse.spec.options.declarations import declared_keys
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.table.bucket_rules import EXPRESSIONS

_SQL_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int32(),
    "smallint": pa.int32(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"(?:decimal|numeric)\((\d+)(?:\s*,\s*(\d+))?\)")
#: Properties that a change of the columns would not follow, or that other operations maintain.
_FIXED = ("hoodie.", "lakehouse.")
_STORED_OPTIONS = (
    "hoodie.metadata.index.column.stats.column.list",
    "hoodie.metadata.index.column.stats.max.columns.to.index",
)


class AlterBuilder:
    """Changes to the columns and properties of a table.

    Each method adds one change and returns the builder. Names with dots are fields of structs: `address.city`, in lists
    `items.element.price`, in maps `attributes.value.unit`.
    """

    def __init__(self, refresh: Callable[[], LoadedTable], policies: Policies) -> None:
        self._refresh, self._policies = refresh, policies
        self._changes: list[SchemaChange] = []
        self._properties: dict[str, str | None] = {}

    def add_column(
        self, name: str, type: pa.DataType | str, *, comment: str = "", first: bool = False, after: str = ""
    ) -> AlterBuilder:
        """Add a column that is null in all stored rows; `type` is an Arrow type or the name of a SQL type."""
        require_encodable(comment, f"column {name!r}: the comment")
        self._changes.append(AddColumn(name, _arrow_type(name, type), comment, _place(name, first, after)))
        return self

    def rename_column(self, old: str, new: str) -> AlterBuilder:
        """Rename a column; its values stay."""
        self._changes.append(RenameColumn(old, new))
        return self

    def drop_column(self, name: str) -> AlterBuilder:
        """Drop a column. If a column of this name is added later, the old values do not come back."""
        self._changes.append(DropColumn(name))
        return self

    def change_type(self, name: str, type: pa.DataType | str) -> AlterBuilder:
        """Change the type of a column: to a wider number, a wider decimal, or, for numbers and dates, a string."""
        kind = normalise(pa.schema([pa.field(name, _arrow_type(name, type))])).field(0).type
        self._changes.append(ChangeType(name, kind))
        return self

    def set_comment(self, name: str, text: str) -> AlterBuilder:
        """Set the comment on a column; an empty text removes it."""
        require_encodable(text, f"column {name!r}: the comment")
        self._changes.append(SetComment(name, text))
        return self

    def move_column(self, name: str, *, first: bool = False, after: str = "") -> AlterBuilder:
        """Move a column to the beginning, after another one, or without arguments to the end."""
        self._changes.append(MoveColumn(name, _place(name, first, after)))
        return self

    def set_properties(self, properties: Mapping[str, str]) -> AlterBuilder:
        """Set properties of the table: its own names, or options that a table stores as defaults for each open."""
        for key, value in properties.items():
            if not isinstance(value, str):
                raise UserError(f"property {key}={value!r}: a value is a string; write {str(value)!r}", argument=key)
            name = _property(key)
            refuse_secrets({name: value})
            self._properties[name] = value
        return self

    def unset_properties(self, names: str | Iterable[str]) -> AlterBuilder:
        """Remove properties and stored options of the table; names that it does not have are no error."""
        for key in text_list(names, "names", allow_empty=True):
            self._properties[_property(key)] = None
        return self

    def execute(self, **call: Unpack[WriteCall]) -> Outcome:
        """Commit the changes: one commit, without reading or writing a data file.

        Raises:
            UserError: A change is not possible; the message names the column and the way out.
            RetryableError: Another writer is active where only one is allowed.
        """
        request = AlterRequest(
            changes=tuple(self._changes),
            properties=dict(self._properties),
            extra=commit_metadata_of(call.get("commit_metadata")),
            precondition=call.get("precondition"),
        )
        policies = policies_of_call(self._policies, call)
        return settled(alter(self._refresh(), policies, request))


def _property(key: str) -> str:
    """Return the name under which a property or an option is stored; raise UserError if it cannot be changed here."""
    if key in declared_keys() and key not in (*OWN_OPTIONS, EXPRESSIONS):
        return OPTION_PREFIX + key
    if key.startswith(_FIXED) and key not in _STORED_OPTIONS:
        raise UserError(
            f"property {key} cannot be changed here: it describes the data, or is no option."
            f"{nearest(key, declared_keys())} Properties that can be changed: options of writes and services "
            "(`lakehouse options` lists them) that are not fixed when a table is created, and names of your own "
            "without the prefixes hoodie. and lakehouse.",
            argument=key,
        )
    if not key.strip() or re.search(r"[\s=:#!]", key):
        raise UserError(f"property {key!r}: a name has no spaces and none of = : # !", argument=key)
    return key


def _place(name: str, first: bool, after: str) -> Place:
    if first and after:
        raise UserError(f"column {name!r}: first=True and after={after!r} contradict each other; give one", column=name)
    return Place(first, after)


def _arrow_type(name: str, kind: pa.DataType | str) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    text = str(kind).strip().lower()
    decimal = _DECIMAL.fullmatch(text)
    if decimal is not None:
        try:
            return pa.decimal128(int(decimal[1]), int(decimal[2] or 0))
        except pa.ArrowException as error:
            raise UserError(f"column {name!r}: {kind}: {error}", column=name) from error
    if text in _SQL_TYPES:
        return _SQL_TYPES[text]
    raise UserError(
        f"column {name!r}: {kind!r} is not a type. Give an Arrow type, such as pyarrow.int64(), or one of "
        f"{', '.join(_SQL_TYPES)}, decimal(p, s)",
        column=name,
    )
