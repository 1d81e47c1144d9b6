"""Event types, headers and checksums in the binlogs of MySQL and MariaDB."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from lakehouse.errors import CorruptLogError, UnsupportedError

HEADER_BYTES = 19
CHECKSUM_BYTES = 4
#: The header: time in seconds, type, server id, size, end of the event in the file, flags.
_HEADER = struct.Struct("<IBIIIH")
_CHECKSUM = struct.Struct("<I")
_NO_CHECKSUMS, _CRC32 = 0, 1
_SHORTEST_DESCRIPTION = 80

QUERY, STOP, ROTATE, FORMAT_DESCRIPTION, XID, BEGIN_LOAD_QUERY, EXECUTE_LOAD_QUERY = 2, 3, 4, 15, 16, 17, 18
TABLE_MAP, INCIDENT, HEARTBEAT, GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, XA_PREPARE = 19, 26, 27, 33, 34, 35, 38
PARTIAL_UPDATE_ROWS, TRANSACTION_PAYLOAD, HEARTBEAT_2, TAGGED_GTID = 39, 40, 41, 42
MARIADB_GTID, MARIADB_GTID_LIST, MARIADB_QUERY_COMPRESSED = 162, 163, 165
#: Row events: whether they have extra data in the header (version 2), and whether their rows are compressed.
WRITE_ROWS = {23: (False, False), 30: (True, False), 166: (False, True), 169: (True, True)}
UPDATE_ROWS = {24: (False, False), 31: (True, False), 167: (False, True), 170: (True, True)}
DELETE_ROWS = {25: (False, False), 32: (True, False), 168: (False, True), 171: (True, True)}
#: Events that change no rows by themselves. The statements that follow variable values are checked.
IGNORED = {
    STOP: "STOP",
    5: "INTVAR",
    9: "APPEND_BLOCK",
    11: "DELETE_FILE",
    13: "RAND",
    14: "USER_VAR",
    BEGIN_LOAD_QUERY: "BEGIN_LOAD_QUERY",
    28: "IGNORABLE",
    29: "ROWS_QUERY",
    36: "TRANSACTION_CONTEXT",
    37: "VIEW_CHANGE",
    160: "ANNOTATE_ROWS",
    161: "BINLOG_CHECKPOINT",
    164: "START_ENCRYPTION",
}
#: Known but unsupported events, with the remedy.
REFUSED = {
    TRANSACTION_PAYLOAD: (
        "TRANSACTION_PAYLOAD (compressed transactions of MySQL)",
        "Set binlog_transaction_compression=OFF on the server",
    ),
    TAGGED_GTID: ("GTID_TAGGED (GTIDs with tags)", "Do not set gtid_next to AUTOMATIC:<tag> on the server"),
    INCIDENT: ("INCIDENT (the server lost events)", "Its error log has the cause"),
}


class Header(NamedTuple):
    """The header of an event: time in seconds, type, server, size, end in the file, flags."""

    time_s: int
    kind: int
    server: int
    size: int
    end: int
    flags: int


def header_of(event: bytes) -> tuple[int, int, int, int, int, int]:
    """Return the fields of `Header`; raise CorruptLogError if the event's length is not the one in its header."""
    if len(event) < HEADER_BYTES:
        raise CorruptLogError(f"an event of the binlog has {len(event)} bytes, less than a header")
    fields = _HEADER.unpack_from(event)
    if fields[3] != len(event):
        raise CorruptLogError(
            f"an event of type {fields[1]} that ends at {fields[4]:,} has {len(event):,} bytes; its header says "
            f"{fields[3]:,}"
        )
    return fields


def has_checksums(event: bytes, header: Header) -> bool:
    """Return whether the events after a FORMAT_DESCRIPTION have checksums; the event itself always has one.

    Raises CorruptLogError if its checksum is wrong, UnsupportedError if the algorithm is not known.
    """
    # The byte before the checksum is the algorithm.
    algorithm = event[-CHECKSUM_BYTES - 1] if len(event) > _SHORTEST_DESCRIPTION else -1
    if algorithm not in (_NO_CHECKSUMS, _CRC32):
        raise UnsupportedError(
            f"the binlog has the checksum algorithm {algorithm}; servers before MySQL 5.6 and MariaDB 5.3 are not "
            "supported"
        )
    if algorithm == _CRC32:
        check(event, len(event) - CHECKSUM_BYTES, header.kind)
    return algorithm == _CRC32


def ends_with_checksum(event: bytes) -> bool:
    """Return whether the last four bytes of an event are its checksum."""
    size = len(event) - CHECKSUM_BYTES
    return event[size:] == _CHECKSUM.pack(zlib.crc32(event[:size]))


def check(event: bytes, end: int, kind: int) -> None:
    """Raise CorruptLogError if the checksum of an event, its four bytes from `end` on, is wrong."""
    if zlib.crc32(event[:end]) == int.from_bytes(event[end:], "little") and end >= HEADER_BYTES:
        return
    raise CorruptLogError(
        f"the checksum of an event of type {kind} with {len(event):,} bytes is wrong. The log or the connection is "
        "damaged"
    )


def decompressed(data: bytes, place: int, end: int) -> bytes:
    """Return the data that MariaDB compressed in an event: the size of the length in a byte, the length, zlib data."""
    if place >= end:
        raise CorruptLogError("a compressed event of MariaDB ends before its data")
    head = data[place]
    size_bytes = head & 0x07
    if (head & 0xF0) != 0x80 or not 1 <= size_bytes <= 4:
        raise CorruptLogError(f"a compressed event of MariaDB begins with 0x{head:02x}; its algorithm is not known")
    size = int.from_bytes(data[place + 1 : place + 1 + size_bytes], "big")
    unpack = zlib.decompressobj()
    try:
        content = unpack.decompress(memoryview(data)[place + 1 + size_bytes : end], size + 1)
    except zlib.error as error:
        raise CorruptLogError(f"a compressed event of MariaDB cannot be decompressed: {error}") from error
    if len(content) != size or not unpack.eof or unpack.unused_data:
        raise CorruptLogError(f"a compressed event of MariaDB has {len(content):,} bytes of rows; it says {size:,}")
    return content


def length_encoded(data: bytes, place: int) -> tuple[int, int]:
    """Return a length-encoded number and the offset behind it; raise CorruptLogError for truncated data."""
    try:
        first = data[place]
        if first < 0xFB:
            return first, place + 1
        width = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    except (IndexError, KeyError) as error:
        raise CorruptLogError(f"there is no length-encoded number at byte {place} of an event") from error
    if len(data) < place + 1 + width:
        raise CorruptLogError(f"an event ends within a number at byte {place}")
    return int.from_bytes(data[place + 1 : place + 1 + width], "little"), place + 1 + width
