"""All column types of PostgreSQL with extreme values, and the text that the server prints for a value."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

#: Types beside those of the server, by the statements that make them.
MADE = (
    "create type mood as enum ('sad', 'it''s ok', 'ü')",
    "create type pair as (a int, b text)",
    "create domain price as numeric(12, 2)",
    "create domain small as price",
    "create domain word as varchar(20)",
)
#: The values of each type as literals; null comes beside them.
TYPES: dict[str, tuple[str, ...]] = {
    "boolean": ("true", "false"),
    "smallint": ("32767", "-32768"),
    "integer": ("2147483647", "-2147483648"),
    "bigint": ("9223372036854775807", "-9223372036854775808"),
    "oid": ("4294967295", "0"),
    "real": ("1.1", "'NaN'", "'Infinity'", "'-Infinity'", "3.4e38", "1e-45"),
    "double precision": ("1.1", "'NaN'", "'Infinity'", "'-Infinity'", "1.7976931348623157e308", "5e-324", "'-0'"),
    "numeric": ("'NaN'", "'Infinity'", f"{'9' * 60}.{'1' * 40}", "-1.10", "0"),
    "numeric(12, 2)": ("9999999999.99", "-9999999999.99", "0.01", "-0.01", "'NaN'"),
    "numeric(38, 0)": ("9" * 38, "-" + "9" * 38),
    "numeric(38, 38)": (f"0.{'9' * 38}",),
    "numeric(65, 30)": (f"{'9' * 35}.{'9' * 30}", "0." + "0" * 29 + "1"),
    "numeric(3, -2)": ("99900", "-12300"),
    "numeric(3, 5)": ("0.00999", "-0.00001"),
    "price": ("9999999999.99", "'NaN'"),
    "small": ("-0.01",),
    "word": ("'Grüße'",),
    "money": ("92233720368547758.07", "-0.01"),
    "text": ("'Grüße € 你好 😀'", "''", "repeat('x', 3000)", "E'a\\n\\\\b'"),
    "varchar(20)": ("'a  '", "''"),
    "char(5)": ("'ab'", "''", "'ü'"),
    "name": ("'n'",),
    '"char"': ("'c'",),
    "bytea": ("'\\x00ff'", "''", "'\\x5c27'", "decode(repeat('00ff', 2000), 'hex')"),
    "date": ("'2026-01-31'", "'0001-01-01'", "'9999-12-31'", "'infinity'", "'-infinity'", "'0044-03-15 BC'",
             "'5874897-12-31'", "'1969-12-31'"),
    "time": ("'23:59:59.999999'", "'24:00:00'", "'00:00'"),
    "time(0)": ("'01:02:03'",),
    "timetz": ("'01:02:03.5+14'", "'24:00:00-15:59'"),
    "timestamp": ("'2026-01-31 01:02:03.123456'", "'0001-01-01'", "'9999-12-31 23:59:59.999999'", "'infinity'",
                  "'-infinity'", "'0044-03-15 01:02:03 BC'", "'294276-12-31'", "'1969-12-31 23:59:59.1'"),
    "timestamp(3)": ("'2026-01-31 01:02:03.12'",),
    "timestamptz": ("'2026-01-31 01:02:03.123456+05:30'", "'0001-01-01 00:00+00'", "'9999-12-31 23:59:59.999999+00'",
                    "'infinity'", "'0044-03-15 01:02:03+00 BC'", "'1969-12-31 23:59:59.1+00'"),
    "interval": ("'1 year -2 months 3 days 04:05:06.000007'", "'-178000000 years'", "'0'"),
    "uuid": ("'123e4567-e89b-12d3-a456-426655440000'",),
    "json": ("'{\"b\": [1, 2.50, null],  \"a\": \"ü\"}'", "'null'", "'[]'"),
    "jsonb": ("'{\"b\": [1, 2.50, null],  \"a\": \"ü\"}'", "'1e400'"),
    "jsonpath": ("'$.a[*]'",),
    "xml": ("'<a b=\"1\">ü</a>'",),
    "mood": ("'sad'", "'it''s ok'", "'ü'"),
    "pair": ("row(1, 'x, \"y\"')", "row(null, null)"),
    "int[]": ("'{1,NULL,3}'", "'{}'", "'[0:1]={1,2}'"),
    "text[]": ("array['a,b', 'c\"d', null, 'NULL', '']", "'{{a,b},{c,d}}'"),
    "numeric(12, 2)[]": ("'{1.5,NaN}'",),
    "int4range": ("'[1,5)'", "'empty'", "'(,)'"),
    "tstzrange": ("'[2026-01-01 00:00+00,)'",),
    "int4multirange": ("'{[1,3),[5,7)}'",),
    "inet": ("'192.0.2.1'", "'192.0.2.1/24'", "'2001:db8::1'"),
    "cidr": ("'192.0.2.0/24'",),
    "macaddr": ("'08:00:2b:01:02:03'",),
    "macaddr8": ("'08:00:2b:01:02:03:04:05'",),
    "bit(10)": ("b'1000000001'",),
    "varbit(20)": ("b'101'", "b''"),
    "point": ("'(1.5,-2)'",),
    "polygon": ("'((0,0),(1,0),(1,1))'",),
    "circle": ("'<(0,0),1>'",),
    "box": ("'(1,1),(0,0)'",),
    "path": ("'[(0,0),(1,1)]'",),
    "line": ("'{1,2,3}'",),
    "lseg": ("'[(0,0),(1,1)]'",),
    "tsvector": ("'a:1 b:2A'",),
    "tsquery": ("'a & b'",),
    "pg_lsn": ("'16/B374D848'",),
    "xid8": ("'18446744073709551615'",),
    "regclass": ("'pg_class'",),
    "timestamptz(0)": ("'2026-01-31 01:02:03+00'",),
}  # fmt: skip


def matrix(table: str) -> tuple[str, list[str]]:
    """Return the statement that creates a table with all types, and those that insert its rows."""
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(TYPES))
    rows = max(len(values) for values in TYPES.values())
    inserts = [f"insert into {table} (id) values (0)"]
    for row in range(rows):
        values = ", ".join(values[row % len(values)] for values in TYPES.values())
        inserts.append(f"insert into {table} values ({row + 1}, {values})")
    # A null between values, and a value between nulls.
    for number, values in enumerate(TYPES.values()):
        inserts.append(f"insert into {table} (id, c{number}) values ({100 + number}, {values[-1]})")
    return f"create table {table} (id int primary key, {columns})", inserts


def printed(table: str) -> str:
    """Return the query of all rows as the server prints their values."""
    columns = ", ".join(f"case when num_nonnulls(c{n}) = 1 then format('%s', c{n}) end" for n in range(len(TYPES)))
    return f"select id, {columns} from {table} order by id"


def expected(kind: pa.DataType, text: str | None) -> Any:
    """Return the value that a text of the server stands for in an Arrow type."""
    if text is None or pa.types.is_string(kind):
        return text
    if pa.types.is_boolean(kind):
        return text == "t"
    if pa.types.is_binary(kind):
        return bytes.fromhex(text.removeprefix("\\x"))
    if pa.types.is_decimal(kind):
        return None if text == "NaN" else Decimal(text)
    if pa.types.is_floating(kind):
        return "NaN" if text == "NaN" else (np.float32(text).item() if kind == pa.float32() else float(text))
    if pa.types.is_integer(kind):
        return int(text)
    is_outside = "infinity" in text or text.endswith("BC") or text.index("-") != 4
    if pa.types.is_date(kind):
        return None if is_outside else date.fromisoformat(text)
    if is_outside:
        return None
    return datetime.fromisoformat(text).astimezone(UTC) if kind.tz else datetime.fromisoformat(text)


def plain(value: Any) -> Any:
    """Return a value that equals itself."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
