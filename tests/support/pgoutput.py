"""Messages of pgoutput as a server writes them, and the changes that they stand for, one by one."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from lakehouse.platform.sources.databases.server import CONTROL, Changes, LogEnd, SchemaEvent
from lakehouse.platform.sources.pgoutput.columns import INT4, NUMERIC, TEXT
from lakehouse.platform.sources.pgoutput.decoder import Decoder

OID = 16_385
#: A value that was not sent.
UNSENT = object()
#: 2000-01-01 in microseconds since 1970.
EPOCH_US = 946_684_800_000_000
COLUMNS = (("id", INT4, -1), ("a", TEXT, -1), ("b", NUMERIC, (12 << 16 | 2) + 4))
Value = object | None


def begin(commit: int, time_us: int = EPOCH_US) -> bytes:
    return struct.pack(">cqqi", b"B", commit, time_us - EPOCH_US, 7)


def commit(place: int, time_us: int = EPOCH_US) -> bytes:
    return struct.pack(">cBqqq", b"C", 0, place, place + 40, time_us - EPOCH_US)


def relation(
    columns: Sequence[tuple[str, int, int]] = COLUMNS,
    *,
    name: str = "t",
    oid: int = OID,
    key: Iterable[str] = ("id",),
    identity: str = "d",
) -> bytes:
    parts = [struct.pack(">cI", b"R", oid), b"public\0", name.encode() + b"\0", identity.encode()]
    parts.append(struct.pack(">H", len(columns)))
    for column, kind, modifier in columns:
        parts += [bytes([column in key]), column.encode() + b"\0", struct.pack(">Ii", kind, modifier)]
    return b"".join(parts)


def values(row: Sequence[Value]) -> bytes:
    parts = [struct.pack(">H", len(row))]
    for value in row:
        if value is None or value is UNSENT:
            parts.append(b"n" if value is None else b"u")
        else:
            text = str(value).encode()
            parts.append(b"t" + struct.pack(">I", len(text)) + text)
    return b"".join(parts)


def insert(row: Sequence[Value], oid: int = OID) -> bytes:
    return struct.pack(">cIc", b"I", oid, b"N") + values(row)


def update(row: Sequence[Value], old: Sequence[Value] | None = None, tag: bytes = b"K") -> bytes:
    before = b"" if old is None else tag + values(old)
    return struct.pack(">cI", b"U", OID) + before + b"N" + values(row)


def delete(row: Sequence[Value], tag: bytes = b"K") -> bytes:
    return struct.pack(">cIc", b"D", OID, tag) + values(row)


def truncate(*oids: int) -> bytes:
    return struct.pack(f">cIB{len(oids)}I", b"T", len(oids), 0, *oids)


def transaction(*messages: bytes, first: int = 1000, step: int = 100) -> list[tuple[bytes, int]]:
    """Return the messages of a transaction with their places; its commit is behind them."""
    places = [(message, first + step * number) for number, message in enumerate(messages)]
    end = first + step * len(messages)
    return [(begin(end), first), *places, (commit(end), end)]


def decoded(
    messages: Iterable[tuple[bytes, int]], key: Sequence[str] = ("id",), end: int = 1 << 40
) -> list[Changes | SchemaEvent | LogEnd]:
    """Return what a decoder makes of messages."""
    decoder = Decoder(end=end, keys={"public.t": key})
    for data, place in messages:
        if not decoder.feed(data, place):
            break
    return [*decoder.take()]


def rows_of(found: Iterable[object]) -> list[tuple[object, ...]]:
    """Return the kind, the values as texts and the columns without value of each change."""
    rows = []
    for changes in found:
        if isinstance(changes, Changes):
            names = [name for name in changes.rows.column_names if name not in CONTROL]
            for row in changes.rows.to_pylist():
                texts = (None if row[name] is None else str(row[name]) for name in names)
                rows.append((row["_change"], *texts, tuple(row.get("_unavailable") or ())))
    return rows
