"""Binlog positions: GTIDs of MySQL and MariaDB, files and offsets, and the ordering value of changes.

A MySQL position is a GTID set, `uuid:1-5:7,uuid:1-3`. GTID sets are not totally ordered: transactions from several
sources interleave, and the set may have gaps. A MariaDB position is the newest GTID per domain,
`domain-server-sequence`.

The ordering value of a change is an int64 that grows along the log of one server:

    file number (20 bits) | offset of the transaction in the file (33 bits) | row number (10 bits)

The row number overflows into the offset. It stays below the ordering value of the next transaction, because a row takes
more than 1/1024 byte in the log even if MariaDB compresses it; the decoder checks this. Reading the same log again
gives the same values. The values do not continue after a failover, because another server has other files: the log is
then read from the GTIDs, and changes are ordered by commit. File numbers above 1,048,575 and files above 8 GiB are an
error.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from lakehouse.errors import UnsupportedError, UserError

MYSQL, MARIADB = "mysql", "mariadb"
OFFSET_BITS, ROW_BITS, _FILE_BITS = 33, 10, 20
_MARIADB_GTID = re.compile(r"(\d+)-(\d+)-(\d+)")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def ordering_value(file: str, offset: int) -> int:
    """Return the ordering value of a log position; changes after the position have larger values.

    Raises UnsupportedError if the file's number or the offset is too large.
    """
    number = file.rpartition(".")[2]
    if not number.isdigit() or int(number) >= 1 << _FILE_BITS:
        raise UnsupportedError(
            f"the binlog file {file!r} has no number below {1 << _FILE_BITS:,}, so its changes cannot be ordered; "
            "start the numbers again (RESET MASTER), then read all tables again"
        )
    if offset >= 1 << OFFSET_BITS:
        raise UnsupportedError(f"offset {offset:,} of the binlog file {file!r} is larger than 8 GiB")
    return (int(number) << OFFSET_BITS | offset) << ROW_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class BinlogPosition:
    """A log position between two transactions.

    Attributes:
        flavor: `mysql` or `mariadb`.
        gtid: The GTIDs of all transactions before the position, as the server prints them; empty without GTIDs, and for
            the server's first log.
        file: The file of the log; empty if it is not known.
        offset: The offset in the file.
        committed_us: The commit time of the last transaction before the position, in microseconds; 0 if not known.
        created_s: The time at which the server created the file, in seconds; 0 if not known. After RESET MASTER a file
            with the same name has a different time.
    """

    flavor: str
    gtid: str = ""
    file: str = ""
    offset: int = 0
    committed_us: int = 0
    created_s: int = 0

    @property
    def order(self) -> int:
        """The ordering value of the position; 0 if the file is not known."""
        return ordering_value(self.file, self.offset) if self.file else 0

    def to_json(self) -> str:
        """Return the position as one line of JSON."""
        names = ("flavor", "gtid", "file", "offset", "committed_us", "created_s")
        return json.dumps({name: getattr(self, name) for name in names})

    @classmethod
    def from_json(cls, text: str) -> BinlogPosition:
        """Parse the output of `to_json`; raise UserError for any other string."""
        try:
            given = json.loads(text)
            return cls(
                flavor=str(given["flavor"]),
                gtid=str(given["gtid"]),
                file=str(given["file"]),
                offset=int(given["offset"]),
                committed_us=int(given["committed_us"]),
                # Positions from earlier releases lack it.
                created_s=int(given.get("created_s", 0)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{text!r} is not a binlog position") from error


def covers(position: BinlogPosition, other: BinlogPosition) -> bool:
    """Return whether all transactions before `other` are before `position`; by GTID if both have one, else by file."""
    if position.gtid and other.gtid:
        if position.flavor == MYSQL:
            return MysqlGtids.parse(position.gtid).covers(MysqlGtids.parse(other.gtid))
        return MariadbGtids.parse(position.gtid).covers(MariadbGtids.parse(other.gtid))
    return position.order >= other.order


class MysqlGtids:
    """A mutable MySQL GTID set.

    Attributes:
        intervals: Per UUID the intervals `[first, end)`, ascending and not adjacent.
    """

    def __init__(self, intervals: Mapping[str, list[list[int]]] | None = None) -> None:
        self.intervals: dict[str, list[list[int]]] = dict(intervals or {})

    @classmethod
    def parse(cls, text: str) -> MysqlGtids:
        """Parse a set such as `uuid:1-5:7`; raise UserError for an invalid string."""
        gtids = cls()
        for part in filter(None, (part.strip().lower() for part in text.replace("\n", "").split(","))):
            uuid, *ranges = (piece.strip() for piece in part.split(":"))
            matches = [_RANGE.fullmatch(piece) for piece in ranges]
            if not _UUID.fullmatch(uuid) or not ranges or not all(matches):
                raise UserError(f"{part!r} is not a MySQL GTID set; sets with tags are not supported")
            for match in matches:
                assert match is not None
                gtids.add(uuid, int(match[1]), int(match[2] or match[1]) + 1)
        return gtids

    def add(self, uuid: str, first: int, end: int) -> None:
        """Add a server's transaction numbers in `[first, end)`."""
        ranges = self.intervals.setdefault(uuid, [])
        if ranges and ranges[-1][1] == first:
            ranges[-1][1] = end
            return
        merged: list[list[int]] = []
        for one in sorted([*ranges, [first, end]]):
            if merged and one[0] <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], one[1])
            else:
                merged.append(list(one))
        self.intervals[uuid] = merged

    def covers(self, other: MysqlGtids) -> bool:
        """Return whether the set contains all GTIDs of another one."""
        for uuid, wanted in other.intervals.items():
            own = self.intervals.get(uuid, [])
            for first, end in wanted:
                place = bisect_right(own, first, key=lambda one: one[0]) - 1
                if place < 0 or own[place][1] < end:
                    return False
        return True

    def __str__(self) -> str:
        def text(first: int, end: int) -> str:
            return f"{first}-{end - 1}" if end - first > 1 else str(first)

        parts = sorted(self.intervals.items())
        return ",".join(":".join([uuid, *(text(*one) for one in ranges)]) for uuid, ranges in parts if ranges)


class MariadbGtids:
    """The newest GTID per MariaDB domain.

    Attributes:
        newest: Per domain the server and the sequence number.
    """

    def __init__(self) -> None:
        self.newest: dict[int, tuple[int, int]] = {}

    @classmethod
    def parse(cls, text: str) -> MariadbGtids:
        """Parse a position such as `0-1-100,5-2-7`; raise UserError for an invalid string."""
        gtids = cls()
        for part in filter(None, (part.strip() for part in text.split(","))):
            match = _MARIADB_GTID.fullmatch(part)
            if match is None:
                raise UserError(f"{part!r} is not a MariaDB GTID")
            gtids.set(int(match[1]), int(match[2]), int(match[3]))
        return gtids

    def set(self, domain: int, server: int, sequence: int) -> None:
        """Record a domain's newest GTID."""
        self.newest[domain] = (server, sequence)

    def covers(self, other: MariadbGtids) -> bool:
        """Return whether each domain has reached another position."""
        return all(
            domain in self.newest and self.newest[domain][1] >= sequence
            for domain, (_, sequence) in other.newest.items()
        )

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.newest.items()))


def gtids(flavor: str, text: str) -> MysqlGtids | MariadbGtids:
    """Parse GTIDs as a server of this flavor prints them."""
    return MysqlGtids.parse(text) if flavor == MYSQL else MariadbGtids.parse(text)
