"""The table description before row events: TABLE_MAP with full metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lakehouse.errors import CorruptLogError, UnsupportedError, UserError
from lakehouse.platform.sources.binlog import charsets
from lakehouse.platform.sources.binlog.changes import TableName
from lakehouse.platform.sources.binlog.columns import SourceColumn, arrow_type
from lakehouse.platform.sources.binlog.events import length_encoded
from lakehouse.platform.sources.binlog.positions import MARIADB

# Column types in the log.
_INTEGERS = {1: ("tinyint", 1), 2: ("smallint", 2), 9: ("mediumint", 3), 3: ("int", 4), 8: ("bigint", 8)}
_FLOAT, _DOUBLE, _DATE, _YEAR, _VARCHAR, _BIT, _TIMESTAMP_2, _DATETIME_2, _TIME_2 = 4, 5, 10, 13, 15, 16, 17, 18, 19
_BLOB_COMPRESSED, _VARCHAR_COMPRESSED, _VECTOR, _JSON, _DECIMAL = 140, 141, 242, 245, 246
_ENUM, _SET, _BLOBS, _VAR_STRING, _STRING, _GEOMETRY = 247, 248, (249, 250, 251, 252), 253, 254, 255
_OLD = {0: "decimal", 7: "timestamp", 11: "time", 12: "datetime", 14: "date"}
#: Metadata size per type in bytes; other types have none.
_METADATA_BYTES = {
    **dict.fromkeys((_FLOAT, _DOUBLE, _JSON, _GEOMETRY, _TIMESTAMP_2, _DATETIME_2, _TIME_2, *_BLOBS), 1),
    **dict.fromkeys((_BLOB_COMPRESSED, _VECTOR), 1),
    **dict.fromkeys((_VARCHAR, _BIT, _DECIMAL, _ENUM, _SET, _VAR_STRING, _STRING, _VARCHAR_COMPRESSED), 2),
}
#: Size of 0 to 9 decimal digits in bytes.
DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
# Optional metadata fields.
_SIGNS, _CHARSET, _CHARSETS, _NAMES, _SET_VALUES, _ENUM_VALUES = 1, 2, 3, 4, 5, 6
_KEY, _KEY_WITH_PREFIX, _LIST_CHARSET, _LIST_CHARSETS = 8, 9, 10, 11
_BINARY_COLLATION = 63
_BLOB_NAMES = {1: "tinyblob", 2: "blob", 3: "mediumblob", 4: "longblob"}
_TEXT_NAMES = {1: "tinytext", 2: "text", 3: "mediumtext", 4: "longtext"}
#: MariaDB types that are `binary(n)` in the log. Only the catalog distinguishes them.
_HIDDEN = {"uuid": 16, "inet6": 16, "inet4": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class WireColumn:
    """A column and the encoding of its values in the log.

    Attributes:
        column: The column.
        width: The size of each value in bytes; 0 if it varies.
        prefix: The size of the length before a value in bytes; 0 if all have `width` bytes.
    """

    column: SourceColumn
    width: int = 0
    prefix: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMap:
    """A table description in the log.

    Attributes:
        name: The table.
        columns: The columns in order.
        key: The indexes of the primary key columns; empty if there is none.
    """

    name: TableName
    columns: tuple[WireColumn, ...]
    key: tuple[int, ...]


def name_of(body: bytes) -> tuple[TableName, int]:
    """Return the table name in a TABLE_MAP body after its table id, and the offset behind it."""
    # Two bytes of flags, then both names: length-prefixed and zero-terminated.
    place, names = 2, []
    for _ in range(2):
        size = body[place] if place < len(body) else 0
        raw = body[place + 1 : place + 1 + size]
        if len(raw) < size or body[place + 1 + size : place + 2 + size] != b"\0":
            raise CorruptLogError("a TABLE_MAP event ends within a name")
        names.append(raw.decode("utf-8", "strict"))
        place += size + 2
    return TableName(*names), place


def parse_table_map(
    flavor: str, body: bytes, collations: Mapping[int, str], catalog: Sequence[SourceColumn] = ()
) -> TableMap:
    """Parse the body of a TABLE_MAP event without its table id.

    Args:
        flavor: `mysql` or `mariadb`.
        body: The body, without header, table id and checksum.
        collations: The character set per collation id.
        catalog: The table's columns from the catalog, for types that the log cannot express.

    Raises:
        UserError: The event lacks column names.
        UnsupportedError: A column has a type or a character set that is not supported.
        CorruptLogError: The body contradicts itself.
    """
    name, place = name_of(body)
    count, place = length_encoded(body, place)
    codes = body[place : place + count]
    size, place = length_encoded(body, place + count)
    metadata = body[place : place + size]
    # One bit per column: whether it is nullable; which values are null is in the rows.
    place += size + (count + 7) // 8
    if len(codes) < count or len(metadata) < size or place > len(body):
        raise CorruptLogError(f"the TABLE_MAP event of {name} ends within its columns")
    kinds = _kinds(name, codes, metadata, is_mariadb=flavor == MARIADB)
    fields = _fields(name, body, place)
    if _NAMES not in fields and count:
        raise UserError(
            f"the log lacks the column names of {name}. Set binlog_row_metadata=FULL on the server",
            table=str(name),
        )
    columns = _described(name, kinds, fields, collations)
    return TableMap(
        name=name,
        columns=tuple(_hidden(one, catalog) for one in columns),
        key=_key(name, fields, count),
    )


@dataclass(slots=True)
class _Kind:
    """A column before its name, signedness and character set are set."""

    code: int
    metadata: bytes
    is_mariadb: bool

    @property
    def is_list(self) -> bool:
        return self.code in (_ENUM, _SET)

    @property
    def is_text(self) -> bool:
        """Whether the character-set list contains the column; MariaDB's list also contains geometries."""
        if self.code == _GEOMETRY:
            return self.is_mariadb
        return self.code in (_VARCHAR, _VAR_STRING, _STRING, *_BLOBS, _BLOB_COMPRESSED, _VARCHAR_COMPRESSED)

    @property
    def is_number(self) -> bool:
        """Whether the signedness list contains the column; MariaDB's list also contains years."""
        if self.code == _YEAR:
            return self.is_mariadb
        return self.code in (*_INTEGERS, _FLOAT, _DOUBLE, _DECIMAL)


def _kinds(name: TableName, codes: bytes, metadata: bytes, *, is_mariadb: bool) -> list[_Kind]:
    kinds, place = [], 0
    for code in codes:
        width = _METADATA_BYTES.get(code, 0)
        own = metadata[place : place + width]
        if len(own) < width:
            raise CorruptLogError(f"the TABLE_MAP event of {name} ends within the metadata of its columns")
        place += width
        if code == _STRING:
            # The first byte contains the type of enum and set, and bits 8 and 9 of a char's length.
            if own[0] & 0x30 != 0x30:
                code, own = _STRING, ((((own[0] & 0x30) ^ 0x30) << 4) | own[1]).to_bytes(2, "little")
            elif own[0] in (_ENUM, _SET):
                code, own = own[0], own[1:]
            else:
                own = own[1:] + b"\0"
        kinds.append(_Kind(code, own, is_mariadb))
    if place != len(metadata):
        raise CorruptLogError(f"the TABLE_MAP event of {name} has metadata of more columns than it lists")
    return kinds


def _fields(name: TableName, body: bytes, place: int) -> dict[int, bytes]:
    """Return the optional metadata fields by type."""
    fields = {}
    while place < len(body):
        kind = body[place]
        size, place = length_encoded(body, place + 1)
        fields[kind] = body[place : place + size]
        place += size
        if place > len(body):
            raise CorruptLogError(f"the TABLE_MAP event of {name} ends within its optional metadata")
    return fields


def _numbers(data: bytes) -> list[int]:
    numbers, place = [], 0
    while place < len(data):
        number, place = length_encoded(data, place)
        numbers.append(number)
    return numbers


def _texts(data: bytes, place: int, count: int) -> tuple[list[bytes], int]:
    texts = []
    for _ in range(count):
        size, place = length_encoded(data, place)
        texts.append(data[place : place + size])
        place += size
    if place > len(data):
        raise CorruptLogError("a TABLE_MAP event ends within a text of its metadata")
    return texts, place


def _charsets(fields: Mapping[int, bytes], count: int, default: int, each: int) -> list[int | None]:
    """Return the collation per column for `count` columns; None if the log does not contain it."""
    if default in fields:
        first, *pairs = _numbers(fields[default])
        exceptions = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return [exceptions.get(number, first) for number in range(count)]
    if each in fields:
        numbers = _numbers(fields[each])
        if len(numbers) == count:
            return list(numbers)
        raise CorruptLogError(f"a TABLE_MAP event has {len(numbers)} character sets for {count} columns")
    return [None] * count


def _described(
    name: TableName, kinds: Sequence[_Kind], fields: Mapping[int, bytes], collations: Mapping[int, str]
) -> list[WireColumn]:
    names, end = _texts(fields.get(_NAMES, b""), 0, len(kinds))
    if end != len(fields.get(_NAMES, b"")):
        raise CorruptLogError(f"the TABLE_MAP event of {name} has more names than columns")
    signs = _signs(kinds, fields.get(_SIGNS, b""))
    texts = iter(_charsets(fields, sum(kind.is_text for kind in kinds), _CHARSET, _CHARSETS))
    lists = iter(_charsets(fields, sum(kind.is_list for kind in kinds), _LIST_CHARSET, _LIST_CHARSETS))
    values = {_SET: _lists(fields.get(_SET_VALUES, b"")), _ENUM: _lists(fields.get(_ENUM_VALUES, b""))}
    columns = []
    for kind, raw, unsigned in zip(kinds, names, signs, strict=True):
        label = raw.decode("utf-8", "strict")
        collation = next(texts) if kind.is_text else next(lists) if kind.is_list else None
        charset = "" if collation is None else _charset(name, label, collation, collations)
        listed = next(values[kind.code], None) if kind.is_list else ()
        if listed is None or (kind.is_text and collation is None):
            raise UserError(
                f"the log lacks metadata of column {label!r} of {name}. Set binlog_row_metadata=FULL on the server"
            )
        encoding = charset if charset not in ("", "binary") else "utf8mb4"
        try:
            column = _column(kind, label, charset, unsigned)
            _check(column)
            decoded = tuple(charsets.decode(one, encoding) for one in listed)
            column = replace(column, column=replace(column.column, values=decoded))
            arrow_type(column.column)
        except UnsupportedError as error:
            raise UnsupportedError(f"table {name}: {error.message}", **error.facts) from error
        except (IndexError, KeyError, ValueError) as error:
            raise CorruptLogError(
                f"the TABLE_MAP event of {name} describes column {label!r} wrongly: {error}"
            ) from error
        columns.append(column)
    return columns


def _signs(kinds: Sequence[_Kind], data: bytes) -> list[bool]:
    """Return whether each column is unsigned: one bit per numeric column, starting at the top bit."""
    numbers = [place for place, kind in enumerate(kinds) if kind.is_number]
    if len(data) != (len(numbers) + 7) // 8:
        raise CorruptLogError(f"a TABLE_MAP event has {len(data)} bytes of signs for {len(numbers)} numbers")
    signs = [False] * len(kinds)
    for number, place in enumerate(numbers):
        signs[place] = bool(data[number >> 3] & (0x80 >> (number & 7)))
    return signs


def _lists(data: bytes) -> Iterator[list[bytes]]:
    values, place = [], 0
    while place < len(data):
        count, place = length_encoded(data, place)
        texts, place = _texts(data, place, count)
        values.append(texts)
    return iter(values)


def _charset(name: TableName, column: str, collation: int, collations: Mapping[int, str]) -> str:
    if collation == _BINARY_COLLATION:
        return "binary"
    charset = collations.get(collation)
    if charset is None:
        raise UnsupportedError(
            f"column {column!r} of {name} has the collation {collation}, which the server did not list"
        )
    return charset


def _column(kind: _Kind, name: str, charset: str, unsigned: bool) -> WireColumn:
    code, data = kind.code, kind.metadata
    binary = charset == "binary"
    if code in _INTEGERS:
        label, width = _INTEGERS[code]
        return WireColumn(column=SourceColumn(name=name, type=label, unsigned=unsigned), width=width)
    if code in (_FLOAT, _DOUBLE):
        return WireColumn(column=SourceColumn(name=name, type="float" if data[0] == 4 else "double"), width=data[0])
    if code == _DECIMAL:
        precision, scale = data
        column = SourceColumn(name=name, type="decimal", unsigned=unsigned, precision=precision, scale=scale)
        return WireColumn(column=column, width=decimal_bytes(precision, scale))
    if code == _BIT:
        bits = data[1] * 8 + data[0]
        return WireColumn(column=SourceColumn(name=name, type="bit", precision=bits), width=(bits + 7) // 8)
    if code in (_DATE, _YEAR):
        return WireColumn(
            column=SourceColumn(name=name, type="date" if code == _DATE else "year"), width=3 if code == _DATE else 1
        )
    if code in (_TIMESTAMP_2, _DATETIME_2, _TIME_2):
        label, width = {_TIMESTAMP_2: ("timestamp", 4), _DATETIME_2: ("datetime", 5), _TIME_2: ("time", 3)}[code]
        return WireColumn(column=SourceColumn(name=name, type=label, scale=data[0]), width=width + (data[0] + 1) // 2)
    if code in (_ENUM, _SET):
        column = SourceColumn(name=name, type="enum" if code == _ENUM else "set", charset=charset)
        return WireColumn(column=column, width=data[0])
    if code in (_JSON, _GEOMETRY):
        return WireColumn(column=SourceColumn(name=name, type="json" if code == _JSON else "geometry"), prefix=data[0])
    if code in _BLOBS or code == _BLOB_COMPRESSED:
        label = (_BLOB_NAMES if binary else _TEXT_NAMES)[data[0]]
        packed = code == _BLOB_COMPRESSED
        return WireColumn(
            column=SourceColumn(name=name, type=label, charset=charset, compressed=packed), prefix=data[0]
        )
    length = int.from_bytes(data, "little")
    prefix = 1 if length < 256 else 2
    if code in (_VARCHAR, _VAR_STRING, _VARCHAR_COMPRESSED):
        packed = code == _VARCHAR_COMPRESSED
        label = "varbinary" if binary else "varchar"
        return WireColumn(column=SourceColumn(name=name, type=label, charset=charset, compressed=packed), prefix=prefix)
    if code == _STRING:
        label = "binary" if binary else "char"
        column = SourceColumn(name=name, type=label, charset=charset, length=length if binary else 0)
        return WireColumn(column=column, prefix=prefix)
    raise UnsupportedError(_unsupported(name, code), column=name)


def _check(wire: WireColumn) -> None:
    """Raise ValueError if a column's sizes are invalid for its type."""
    column, width, prefix = wire.column, wire.width, wire.prefix
    widths = {"float": (4, 4), "double": (8, 8), "bit": (1, 8), "enum": (1, 2), "set": (1, 8)}
    least, most = widths.get(column.type, (0, 255))
    is_time = column.type in ("datetime", "timestamp", "time")
    if (not width and not 1 <= prefix <= 4) or not least <= width <= most or (is_time and column.scale > 6):
        raise ValueError(f"values of {column.type} have no {width or prefix} bytes")


def _unsupported(name: str, code: int) -> str:
    if code in _OLD:
        return (
            f"column {name!r} has the old format of {_OLD[code]}, whose fraction the log does not describe; "
            "rewrite the table (ALTER TABLE ... FORCE, in MariaDB with mysql56_temporal_format=ON)"
        )
    label = "vector" if code == _VECTOR else f"type {code}"
    return f"column {name!r} has the type {label}, which is not supported; leave the table out"


def decimal_bytes(precision: int, scale: int) -> int:
    """Return the size of a decimal in the log in bytes."""
    whole = precision - scale
    if whole < 0:
        raise ValueError(f"decimal({precision}, {scale}) does not exist")
    return whole // 9 * 4 + DIGIT_BYTES[whole % 9] + scale // 9 * 4 + DIGIT_BYTES[scale % 9]


def _hidden(wire: WireColumn, catalog: Sequence[SourceColumn]) -> WireColumn:
    """Return the column with its type from the catalog if the log cannot express it."""
    own = wire.column
    hidden = next((one for one in catalog if one.name == own.name and one.type in _HIDDEN), None)
    if hidden is not None and own.type in ("binary", "char") and wire.prefix == 1:
        return replace(wire, column=replace(own, type=hidden.type, length=_HIDDEN[hidden.type]))
    return wire


def _key(name: TableName, fields: Mapping[int, bytes], count: int) -> tuple[int, ...]:
    if _KEY in fields:
        numbers = _numbers(fields[_KEY])
    else:
        # Pairs of an offset and the length of its prefix.
        numbers = _numbers(fields.get(_KEY_WITH_PREFIX, b""))[::2]
    if any(place >= count for place in numbers):
        raise CorruptLogError(f"the TABLE_MAP event of {name} has a key of columns that do not exist")
    return tuple(numbers)
