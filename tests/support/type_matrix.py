"""All column types of MySQL and MariaDB with extreme values, and the text that the server prints for a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from lakehouse.platform.sources.binlog.columns import GEOMETRIES, SourceColumn

BOTH, MYSQL_ONLY, MARIADB_ONLY = ("mysql", "mariadb"), ("mysql",), ("mariadb",)


@dataclass(frozen=True, slots=True)
class Case:
    """A column type, SQL expressions of its values, and the servers that have it.

    Attributes:
        type: The type in SQL.
        values: Expressions beside null.
        servers: The servers that have the type.
    """

    type: str
    values: tuple[str, ...]
    servers: tuple[str, ...] = BOTH


def _digits(whole: int, scale: int) -> str:
    return "9" * whole + ("." + "9" * scale if scale else "")


def _decimals(precision: int, scale: int) -> Case:
    most = _digits(precision - scale, scale) or "0"
    small = "0." + "0" * (scale - 1) + "1" if scale else "1"
    values = (f"'{most}'", f"'-{most}'", f"'{small}'", f"'-{small}'", "'0'", "'1'" if precision > scale else "'0.5'")
    return Case(f"decimal({precision},{scale})", values)


def _integers(name: str, bits: int) -> tuple[Case, Case]:
    half = 1 << (bits - 1)
    signed = Case(name, (str(half - 1), str(-half), "-1", "0", "1"))
    return signed, Case(f"{name} unsigned", (str(2 * half - 1), str(half), "0", "1"))


_TEXT = "'Grüße € 你好'"
_TIMES = ("'838:59:59'", "'-838:59:59'", "'-01:02:03'", "'00:00:00'", "'-00:00:01'", "'100:00:00'")
_DATES = ("'1000-01-01'", "'9999-12-31'", "'1970-01-01'", "'2000-02-29'", "'1969-12-31'", "'0001-01-01'")

CASES: tuple[Case, ...] = (
    *_integers("tinyint", 8),
    # In MariaDB, a year has a sign in the metadata of the log. Numbers must follow it.
    Case("year", ("1901", "2155", "2026", "0")),
    *_integers("smallint", 16),
    *_integers("mediumint", 24),
    *_integers("int", 32),
    *_integers("bigint", 64),
    Case("tinyint(1)", ("0", "1", "-128")),
    Case("bit(1)", ("b'0'", "b'1'")),
    Case("bit(10)", ("b'1000000001'", "b'0'", "b'1111111111'")),
    Case("bit(64)", ("18446744073709551615", "0", "9223372036854775808")),
    *(_decimals(*size) for size in ((1, 0), (5, 5), (9, 2), (12, 2), (18, 9), (19, 0), (38, 10), (38, 30), (38, 0))),
    *(_decimals(*size) for size in ((39, 3), (65, 0), (65, 30), (60, 30))),
    Case("decimal(12,2) unsigned", ("9999999999.99", "0")),
    Case("float", ("1.1", "-3.4e38", "1e-37", "0", "16777216")),
    Case("double", ("1.1", "-1.7976931348623157e308", "2.2250738585072014e-308", "0", "9007199254740993")),
    Case("date", _DATES),
    *(Case(f"datetime({n})", ("'1000-01-01 00:00:00'", "'9999-12-31 23:59:59.999999' - interval 1 second",
        "'2026-07-04 12:34:56.654321'", "'1969-12-31 23:59:59.1'")) for n in range(7)),
    *(Case(f"timestamp({n}) null", ("'1970-01-01 00:00:01'", "'2038-01-19 03:14:06.999'", "'2026-07-04 12:34:56.654'"))
      for n in range(7)),
    *(Case(f"time({n})", (*_TIMES, "'12:34:56.654321'", "'-01:02:03.000004'", "'-00:00:00.5'")) for n in range(7)),
    Case("char(10)", ("'abc'", "''", "' a '", "'ü'")),
    Case("char(200) character set utf8mb4", ("repeat('ü', 200)", "'x'")),
    Case("varchar(20)", ("'abc'", "''", "'a  '", "'😀'")),
    Case("varchar(1000)", ("repeat('é', 1000)", "''")),
    Case("varchar(50) character set latin1", ("'Grüße €'", "'abc'", "unhex('818D8F909D')")),
    Case("varchar(50) character set gbk", ("'你好'", "'abc'")),
    Case("varchar(50) character set utf16", ("'Grüße 😀'", "'abc'")),
    Case("varchar(50) character set ucs2", ("'Grüße'",)),
    Case("varchar(50) character set utf32", ("'Grüße 😀'",)),
    Case("varchar(50) character set cp1251", ("'Привет'",)),
    Case("varchar(50) character set sjis", ("'テスト'",)),
    Case("varchar(50) character set latin1 collate latin1_bin", ("'é'",)),
    Case("char(20) character set utf16", ("'Grüße'", "''")),
    Case("tinytext", (_TEXT, "''")),
    Case("text", (_TEXT, "''", "repeat('x', 300)")),
    Case("mediumtext", (_TEXT, "repeat('y', 70000)")),
    Case("longtext character set latin1", ("'Grüße'", "''")),
    Case("binary(4)", ("unhex('00ff0000')", "unhex('00000000')", "unhex('deadbeef')")),
    Case("binary(255)", ("unhex('01')",)),
    Case("varbinary(10)", ("unhex('00ff0000')", "''", "unhex('2000')")),
    Case("varbinary(500)", ("repeat(unhex('fe'), 500)", "''")),
    Case("tinyblob", ("unhex('00ff')", "''")),
    Case("blob", ("unhex('00ff')", "repeat(unhex('80'), 400)")),
    Case("mediumblob", ("unhex('00ff')",)),
    Case("longblob", ("unhex('00ff')",)),
    Case("enum('a','b,c','it''s','ü')", ("'a'", "'b,c'", "'it''s'", "'ü'")),
    Case("enum('é','x') character set latin1", ("'é'", "'x'")),
    Case(f"enum({','.join(repr(f'v{n}') for n in range(300))})", ("'v0'", "'v299'", "'v255'", "'v256'")),
    Case("set('x','y','z')", ("''", "'x'", "'x,z'", "'x,y,z'")),
    Case(f"set({','.join(repr(f's{n}') for n in range(64))})", ("'s0'", "'s63'", "'s0,s31,s32,s63'")),
    Case("json", (
        "'{}'", "'[]'",
        "'null'", "'true'", "'1'", "'-1'", "'\"text\"'", "'{\"b\": [1, 2.5, null], \"a\": {\"ü\": \"😀\"}}'",
        "'[65535, 65536, -32769, 4294967296, 18446744073709551615, -9223372036854775808, 1e20, 1e-7, 123456.789]'",
        "'[1.0, -0.0, 1e14, 1e15, 1e-15, 1e-16, -1.5e300, 12345678901234567.0, 123456789012345.6, 0.1, -2.5e-10]'",
        "'[\"a\\\\\"b\\\\\\\\c\\\\n\\\\t\\\\u0001/\"]'", "concat('[\"', repeat('z', 70000), '\"]')",
    )),
    Case("json", (
        "json_array(cast(12.50 as decimal(10,2)), cast('2026-01-02' as date), cast('-10:11:12.5' as time(6)), "
        "cast('2026-01-02 03:04:05.6' as datetime(6)), cast(-0.01 as decimal(4,2)))",
    ), MYSQL_ONLY),
    Case("geometry", ("st_geomfromtext('POINT(1 2)')", "st_geomfromtext('POLYGON((0 0,1 0,1 1,0 0))')")),
    Case("point", ("st_geomfromtext('POINT(-1.5 2)')",)),
    Case("uuid", ("'123e4567-e89b-12d3-a456-426655440000'", "'00000000-0000-0000-0000-000000000000'"), MARIADB_ONLY),
    Case("inet6", (
        "'2001:db8::ff00:42:8329'", "'::'", "'::ffff:192.0.2.128'", "'::1.2.3.4'", "'1:2:3:0:5:6:7:8'", "'::1'",
    ), MARIADB_ONLY),
    Case("inet4", ("'192.0.2.1'", "'0.0.0.0'"), MARIADB_ONLY),
    Case("varchar(100) compressed", ("repeat('ü', 50)", "'x'", "''"), MARIADB_ONLY),
    Case("text compressed", ("repeat('abc', 3000)", "'x'"), MARIADB_ONLY),
    Case("blob compressed", ("repeat(unhex('00ff'), 300)", "unhex('00')"), MARIADB_ONLY),
    Case("varchar(20) character set utf8mb4 collate uca1400_german2_ai_ci", ("'Grüße'",), MARIADB_ONLY),
)  # fmt: skip


def cases_of(server: str) -> list[Case]:
    """Return the types that a server has."""
    return [case for case in CASES if server in case.servers]


def matrix(server: str, table: str) -> tuple[str, list[str]]:
    """Return the statement that creates a table with all types, and those that insert its rows."""
    cases = cases_of(server)
    columns = ", ".join(f"c{n} {case.type}" for n, case in enumerate(cases))
    created = (
        f"create table {table} (id int primary key, {columns}, g int as (id + 1) stored, v int as (id * 2) virtual)"
    )
    rows = max(len(case.values) for case in cases)
    names = ", ".join(f"c{n}" for n in range(len(cases)))
    inserts = []
    for row in range(rows):
        values = ", ".join(case.values[row % len(case.values)] for case in cases)
        inserts.append(f"insert into {table} (id, {names}) values ({row}, {values})")
    inserts.append(f"insert into {table} (id) values ({rows})")
    for n in range(len(cases)):
        # A null between values, and a value between nulls.
        others = ", ".join("null" if k == n else case.values[0] for k, case in enumerate(cases))
        inserts.append(f"insert into {table} (id, {names}) values ({rows + 1 + 2 * n}, {others})")
        inserts.append(f"insert into {table} (id, c{n}) values ({rows + 2 + 2 * n}, {cases[n].values[-1]})")
    return created, inserts


def printed(column: SourceColumn, value: Any) -> str | bytes | None:
    """Return a decoded value as the server prints it."""
    if value is None:
        return None
    if column.type in ("datetime", "timestamp"):
        assert isinstance(value, datetime)
        text = f"{value:%H:%M:%S}" + (f".{value.microsecond:06d}"[: column.scale + 1] if column.scale else "")
        return f"{value.date().isoformat()} {text}"
    if column.type == "date":
        assert isinstance(value, date)
        return value.isoformat()
    if column.type == "decimal":
        return format(value, "f")
    if column.type == "bit":
        return (b"\1" if value else b"\0") if isinstance(value, bool) else bytes(value)
    if isinstance(value, bytes):
        return value
    if column.type == "year":
        return f"{value:04d}"
    return str(value)


def expected(column: SourceColumn, printed_value: Any, value: Any) -> Any:
    """Return what the server printed, as `printed` gives it; a number that is printed with fewer digits is compared."""
    if printed_value is None:
        return None
    if column.type == "float":
        return str(value) if np.float32(printed_value) == np.float32(f"{value:.6g}") else printed_value
    if column.type == "double":
        return str(value) if float(printed_value) == value else printed_value
    if column.type in ("bit", "geometry", "binary", "varbinary") or column.type.endswith("blob"):
        return printed_value if isinstance(printed_value, bytes) else printed_value.encode("latin1")
    return printed_value.decode() if isinstance(printed_value, bytes) else printed_value


def differences(columns: Sequence[SourceColumn], decoded: pa.Table, rows: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return each decoded value that is not as the server prints it; `rows` are printed ones by their ids."""
    found = []
    for column in columns:
        for number, value in zip(decoded["id"].to_pylist(), decoded[column.name].to_pylist(), strict=True):
            is_value = printed(column, value)
            is_printed = expected(column, rows[number][column.name], value)
            if is_value != is_printed:
                found.append(
                    f"{column.name} {column.type} of row {number}: {is_value!r:.80} instead of {is_printed!r:.80}"
                )
    return found


def select_list(columns: Mapping[str, SourceColumn]) -> str:
    """Return the columns of a query; geometries in the well-known format."""
    return ", ".join(f"st_aswkb({name})" if one.type in GEOMETRIES else name for name, one in columns.items())
