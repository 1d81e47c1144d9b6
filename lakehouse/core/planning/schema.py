"""Plan schema evolution: the schema of a table after a batch (DATA-11).

batch \\ table   absent: added, ignored or refused      wider: values are cast up if the cast is exact, else refused
                narrower: the table is promoted, by the kinds of promotion that the policy allows
missing column  stored values are kept, nulls are written, or it is refused

All write operations and ingestion use this module. Each difference is reported as one `ColumnDrift`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.errors import UserError, nearest
from lakehouse.model.drift import ColumnDrift, Drift
from lakehouse.spec.options.schema import MISSING_COLUMN, NEW_COLUMN, TYPE_CHANGE, SchemaPolicy

_WIDENING = [pa.int32(), pa.int64(), pa.float32(), pa.float64()]
#: Type changes in which large numbers lose digits.
ROUNDING = [(pa.int32(), pa.float32()), (pa.int64(), pa.float32()), (pa.int64(), pa.float64())]


class Role(StrEnum):
    """The use of a column whose type change may change keys, partition paths or the order of versions."""

    KEY = "record key"
    PARTITION = "partition"
    ORDERING = "ordering"


class Promotion(StrEnum):
    """The effect of a type change on values."""

    EXACT = "exact"
    ROUNDS = "rounds"
    TEXT = "text"


_DRIFTS = {Promotion.EXACT: Drift.PROMOTED, Promotion.ROUNDS: Drift.ROUNDED, Promotion.TEXT: Drift.WIDENED}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaPlan:
    """The data columns of the table after a write, and the drift of each differing column (without row counts)."""

    schema: pa.Schema
    drift: tuple[ColumnDrift, ...] = ()


# parameters: two schemas, the policy, and three independent rules of the operation
def evolve(
    table: pa.Schema,
    batch: pa.Schema,
    policy: SchemaPolicy,
    *,
    missing: str | None = None,
    fixed: Mapping[str, frozenset[Role]] | None = None,
    partly: Collection[str] = (),
    marks: Collection[str] = (),
) -> SchemaPlan:
    """Plan the schema after a write of `batch` (normalised, without meta columns) to `table`.

    Args:
        table: The data columns of the table.
        batch: The columns of the batch.
        policy: The policy for new columns, missing columns and type changes.
        missing: The rule for missing columns, if the operation cannot follow the policy.
        fixed: Columns with a role (key, partition or ordering), by dotted name.
        partly: Columns that are missing in some rows of the batch.
        marks: Columns that mark rows as deletes. They are not ignored, because deleted rows would be written.

    Raises:
        UserError: The policy refuses a change; the message names the first such column.
    """
    merge = _Merge(policy=policy, missing=missing or policy.missing, fixed=fixed or {})
    fields = []
    for column in table:
        if column.name in batch.names:
            fields.append(column.with_type(merge.merged(column.name, column.type, batch.field(column.name).type)))
            if column.name in partly:
                merge.lacks(column, tuple(batch.names))
        else:
            merge.lacks(column, tuple(batch.names))
            fields.append(column)
    for column in batch:
        if column.name not in table.names and merge.adds(column.name, tuple(table.names), marks):
            fields.append(column.with_nullable(True))
    schema = pa.schema(fields)
    _check_names(schema)
    return SchemaPlan(schema=schema, drift=tuple(merge.drift))


def plan_schema(
    table: pa.Schema | None, batch: pa.Schema, policy: SchemaPolicy, *, required: tuple[str, ...] = ()
) -> pa.Schema:
    """Return the schema of the table's data columns after an upsert of `batch`, whose meta columns are ignored.

    Raises UserError with the column name for a change that the policy does not allow.
    """
    incoming = incoming_columns(batch, required=required)
    return first_schema(incoming) if table is None else evolve(table, incoming, policy).schema


def incoming_columns(batch: pa.Schema, *, required: tuple[str, ...] = ()) -> pa.Schema:
    """Return the data columns of a batch in stored types; raise UserError for a required one that is missing."""
    incoming = normalise(pa.schema([f for f in batch if f.name not in META_COLUMNS]))
    _check_names(incoming)
    for name in required:
        if name.split(".")[0] not in incoming.names:
            hint = nearest(name, incoming.names)
            raise UserError(
                f"column {name!r} is not in the data.{hint} Columns: {', '.join(incoming.names)}", column=name
            )
    return incoming


def first_schema(incoming: pa.Schema) -> pa.Schema:
    """Return the schema of a table whose first batch has these columns."""
    return pa.schema([column.with_nullable(True) for column in incoming])


def united(theirs: pa.Schema, ours: pa.Schema) -> pa.Schema:
    """Return the schema of a table that two concurrent writers changed: columns of `theirs`, then new ones of `ours`.

    Raises UserError with the name of a column whose two types cannot represent each other's values.
    """
    merge = _Merge(policy=SchemaPolicy(type_change="text"), missing="null", fixed={}, both=True)
    merged_columns = [
        column.with_type(merge.merged(column.name, column.type, ours.field(column.name).type))
        if column.name in ours.names
        else column
        for column in theirs
    ]
    both = pa.schema([*merged_columns, *(column for column in ours if column.name not in theirs.names)])
    _check_names(both)
    return both


def provided_columns(table: pa.Schema, batch: pa.Schema) -> tuple[str, ...] | None:
    """Return the columns of `table` that a batch provides; None if it provides all."""
    names = tuple(name for name in table.names if name in batch.names)
    return names if len(names) < len(table) else None


def promotion(narrow: pa.DataType, wide: pa.DataType) -> Promotion | None:
    """Return the effect on `narrow` values when they are stored as `wide`; None if Hudi has no such promotion."""
    if narrow == wide:
        return Promotion.EXACT
    if narrow in _WIDENING and wide in _WIDENING:
        if _WIDENING.index(narrow) > _WIDENING.index(wide):
            return None
        return Promotion.ROUNDS if (narrow, wide) in ROUNDING else Promotion.EXACT
    if pa.types.is_string(wide):
        if narrow in _WIDENING or pa.types.is_date32(narrow):
            return Promotion.TEXT
        return Promotion.EXACT if pa.types.is_binary(narrow) else None
    if pa.types.is_binary(wide):
        return Promotion.EXACT if pa.types.is_string(narrow) else None
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        digits: bool = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return Promotion.EXACT if digits and bool(wide.scale >= narrow.scale) else None
    return None


#: Maximum nesting depth. A list has two levels in a Parquet schema, and Arrow reads at most a hundred levels.
_DEEPEST = 40


def normalise(schema: pa.Schema) -> pa.Schema:
    """Return the schema in the types that Hudi stores: wider small integers, times in microseconds, no large types.

    Raises UserError for a column with more levels of nesting than Parquet readers support.
    """
    for column in schema:
        _check_depth(column)
    return pa.schema([field.with_type(_stored(field.name, field.type)).remove_metadata() for field in schema])


def _check_depth(column: pa.Field) -> None:
    """Raise UserError for types with too many levels: Arrow can write such files but cannot read them."""
    level, types = 0, [column.type]
    while types:
        level += 1
        if level > _DEEPEST:
            raise UserError(
                f"column {column.name!r} has more than {_DEEPEST} nested levels of lists, maps and structs; "
                "Parquet files of such columns cannot be read. Write it as JSON text, or flatten it",
                column=column.name,
            )
        types = [kind.field(n).type for kind in types if pa.types.is_nested(kind) for n in range(kind.num_fields)]


def _check_names(schema: pa.Schema) -> None:
    """Raise UserError for columns, or fields of one struct, that differ only in case: Spark cannot read such files."""
    _check_case(schema.names, "columns", "")
    pending = [(column.name, column.type) for column in schema]
    while pending:
        path, kind = pending.pop()
        if not pa.types.is_nested(kind):
            continue
        fields = [kind.field(n) for n in range(kind.num_fields)]
        if pa.types.is_struct(kind):
            _check_case([part.name for part in fields], "fields", f" of {path!r}")
        pending += [(f"{path}.{part.name}", part.type) for part in fields]


def _check_case(names: Sequence[str], kind: str, place: str) -> None:
    by_lower_case: dict[str, str] = {}
    for name in names:
        if name.lower() in by_lower_case:
            first = by_lower_case[name.lower()]
            raise UserError(f"{kind} {first!r} and {name!r}{place} differ only in case; rename one")
        by_lower_case[name.lower()] = name


#: Types that are stored as a different type with the same values.
_STORED_AS: dict[pa.DataType, pa.DataType] = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}


def _stored(name: str, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _stored(name, kind.value_type)
    if kind in _STORED_AS:
        return _STORED_AS[kind]
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _stored(name, kind.value_type), kind.value_field.nullable))
    if pa.types.is_map(kind):
        item = pa.field("value", _stored(name, kind.item_type), kind.item_field.nullable)
        return pa.map_(pa.field("key", _stored(name, kind.key_type), False), item)
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_stored(f"{name}.{f.name}", f.type)) for f in kind])
    if pa.types.is_null(kind):
        raise UserError(f"column {name!r} has no type, because all its values are null; cast it to the intended type")
    return kind


@dataclass(slots=True, kw_only=True)
class _Merge:
    """Merges the types of a batch into the types of a table and records the changes.

    With `both`, the two sides are concurrent writers to one table, so neither side's values may be rounded.
    """

    policy: SchemaPolicy
    missing: str
    fixed: Mapping[str, frozenset[Role]]
    both: bool = False
    drift: list[ColumnDrift] = field(default_factory=list)

    def merged(self, name: str, table: pa.DataType, batch: pa.DataType) -> pa.DataType:
        """Return the type of the column after the write; raise UserError if the change is refused."""
        if table == batch:
            return table
        if pa.types.is_struct(table) and pa.types.is_struct(batch):
            return self._struct(name, table, batch)
        if pa.types.is_list(table) and pa.types.is_list(batch):
            return pa.list_(self._field(f"{name}.element", table.value_field, batch.value_field))
        if pa.types.is_map(table) and pa.types.is_map(batch):
            if table.key_type != batch.key_type:
                raise _illegal(name, table, batch)
            return pa.map_(table.key_field, self._field(f"{name}.value", table.item_field, batch.item_field))
        up = promotion(batch, table)
        if up is not None and not (self.both and up is Promotion.ROUNDS):
            self._check_cast_up(name, table, batch, up)
            return table
        kind = promotion(table, batch)
        if kind is None:
            raise _illegal(name, table, batch)
        self._check_fixed(name, table, batch, kind)
        if not self._allows(kind):
            raise _not_allowed(name, table, batch, kind, self.policy.type_change)
        self.drift.append(ColumnDrift(column=name, change=_DRIFTS[kind], before=str(table), after=str(batch)))
        return batch

    def lacks(self, column: pa.Field, names: tuple[str, ...], prefix: str = "") -> None:
        """Record a column that the batch lacks; raise UserError if the policy refuses it.

        A missing field of a struct is written as null, because the struct is one value that replaces the stored one.
        """
        name = prefix + column.name
        if self.missing != "fail":
            if not column.nullable:
                raise UserError(
                    f"column {name!r} of the table is not in the data and must not be null. Add it.", column=name
                )
            stays = self.missing == "keep" and not prefix
            self.drift.append(ColumnDrift(column=name, change=Drift.KEPT if stays else Drift.NULLED))
            return
        why = " This write replaces rows, so their values cannot be kept." if self.policy.missing == "keep" else ""
        raise UserError(
            f"column {name!r} of the table is not in the data.{nearest(column.name, names)}{why} "
            f"Add it, or set {MISSING_COLUMN}=null (hoodie.write.set.null.for.missing.columns=true) to write nulls, or "
            f"{MISSING_COLUMN}=keep to let upserts keep stored values.",
            column=name,
        )

    def adds(self, name: str, names: tuple[str, ...], marks: Collection[str] = ()) -> bool:
        """Record a column that the table lacks; return whether it is added. Raise UserError if it is refused."""
        if self.policy.new_column == "fail":
            last = name.rpartition(".")[2]
            raise UserError(
                f"column {name!r} of the data is not in the table.{nearest(last, names)} Rename or remove it, or set "
                f"{NEW_COLUMN}=add to add it to the table, or {NEW_COLUMN}=ignore to drop its values.",
                column=name,
            )
        added = self.policy.new_column == "add" or name in marks
        self.drift.append(ColumnDrift(column=name, change=Drift.ADDED if added else Drift.IGNORED))
        return added

    def _struct(self, name: str, table: pa.StructType, batch: pa.StructType) -> pa.StructType:
        incoming = {f.name: f for f in batch}
        fields = []
        for inner in table:
            if inner.name in incoming:
                fields.append(self._field(f"{name}.{inner.name}", inner, incoming[inner.name]))
            else:
                # A value inside a nested column may become optional.
                optional = inner.with_nullable(True)
                if not self.both:
                    self.lacks(optional, tuple(incoming), prefix=f"{name}.")
                fields.append(optional)
        names = [f.name for f in table]
        added = [f for f in batch if f.name not in names and (self.both or self.adds(f"{name}.{f.name}", tuple(names)))]
        return pa.struct([*fields, *(f.with_nullable(True) for f in added)])

    def _field(self, name: str, table: pa.Field, batch: pa.Field) -> pa.Field:
        # Engines differ in the nullability of nested values. The difference does not lose rows, so it is accepted.
        kind = self.merged(name, table.type, batch.type)
        return table.with_type(kind).with_nullable(table.nullable or batch.nullable)

    def _allows(self, kind: Promotion) -> bool:
        if kind is Promotion.EXACT:
            return self.policy.type_change != "fail"
        return self.policy.rounds if kind is Promotion.ROUNDS else self.policy.makes_text

    def _check_fixed(self, name: str, table: pa.DataType, batch: pa.DataType, kind: Promotion) -> None:
        """Raise UserError if the type change affects the string form or order of stored values of a column with a role.

        Record keys, partition paths and ordering depend on them.
        """
        for role in sorted(self.fixed.get(name, ())):
            if role is Role.ORDERING:
                stays = kind is Promotion.EXACT and not pa.types.is_binary(table) and not pa.types.is_string(table)
            else:
                stays = _same_text(table, batch)
            if not stays:
                raise _another(name, table, batch, role)

    def _check_cast_up(self, name: str, table: pa.DataType, batch: pa.DataType, kind: Promotion) -> None:
        """Raise UserError if a cast to the table's string type affects the string form or order of batch values."""
        if kind is Promotion.TEXT:
            for role in sorted(self.fixed.get(name, ())):
                if role is Role.ORDERING or not _same_text(batch, table):
                    raise _another(name, table, batch, role)


def _same_text(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether every value has the same string form in keys and partition paths with both types."""
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        return bool(narrow.scale == wide.scale)
    if pa.types.is_string(wide):
        return bool(pa.types.is_integer(narrow) or pa.types.is_date32(narrow))
    return bool(pa.types.is_integer(narrow) and pa.types.is_integer(wide))


def _another(name: str, table: pa.DataType, batch: pa.DataType, role: Role) -> UserError:
    what = "text (1 and 1.0, say), so stored rows would not be found again"
    if role is Role.ORDERING:
        what = "order (as text, '9' is greater than '10'; as rounded numbers, different versions are equal)"
    return UserError(
        f"column {name!r} is {table} in the table and {batch} in the data, and it is a {role} column: the change would "
        f"give its values another {what}. Cast the column to {table}; a pandas column of integers with a missing value "
        "becomes float64, convert it with astype('Int64').",
        column=name,
    )


def _not_allowed(name: str, table: pa.DataType, batch: pa.DataType, kind: Promotion, chosen: str) -> UserError:
    allow = {
        Promotion.EXACT: (f"{TYPE_CHANGE} is {chosen}", "promote", "promote the column, which changes no value"),
        Promotion.ROUNDS: ("numbers above 2^53 (2^24 in a float) would lose digits", "lossy", "allow this change"),
        Promotion.TEXT: ("all values of the column would become text", "text", "allow this change"),
    }
    why, option, what = allow[kind]
    return UserError(
        f"column {name!r} is {table} in the table and {batch} in the data: {why}. Cast the column, or set "
        f"{TYPE_CHANGE}={option} to {what}.",
        column=name,
    )


def _illegal(name: str, table: pa.DataType, batch: pa.DataType) -> UserError:
    return UserError(
        f"column {name!r} is {table} in the table and {batch} in the data; legal changes are int -> long -> float -> "
        "double -> string, date -> string, string <-> bytes and wider decimals. Cast the column.",
        column=name,
    )
