"""Positions at which the log of single tables begins, after the position from which the log is read for other tables.

Changes before a table's start are never decoded: a table that is read again needs none of them, and they may contain
the event that caused the new snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.platform.sources.binlog.changes import TableName
from lakehouse.platform.sources.binlog.positions import MYSQL, BinlogPosition, MysqlGtids, covers


class TableStarts:
    """The starts of tables whose log begins after the start of a read.

    Args:
        read: The position from which the log is read.
        starts: The position at which each table's log begins.
    """

    def __init__(self, read: BinlogPosition, starts: Mapping[TableName, BinlogPosition]) -> None:
        self._all = tuple(starts)
        self._sets: dict[TableName, MysqlGtids] = {}
        self._orders: dict[TableName, int] = {}
        for name, place in starts.items():
            if covers(read, place):
                continue
            if place.flavor == MYSQL and place.gtid:
                self._sets[name] = MysqlGtids.parse(place.gtid)
            else:
                self._orders[name] = place.order

    def skipped(self, gtid: tuple[str, int] | tuple[int, int, int] | None, order: int) -> frozenset[TableName]:
        """Return the tables whose log begins behind a transaction.

        Args:
            gtid: The GTID of the transaction; None if it has none.
            order: The ordering value at which the transaction begins.
        """
        if not self._sets and not self._orders:
            return frozenset()
        names = {name for name, place in self._orders.items() if order < place}
        if self._sets and gtid is not None:
            number = int(gtid[1])
            own = MysqlGtids({str(gtid[0]): [[number, number + 1]]})
            names |= {name for name, place in self._sets.items() if place.covers(own)}
        return frozenset(names)

    def begun(self, skipped: frozenset[TableName]) -> tuple[str, ...] | None:
        """Return the tables that are not skipped; None if the tables of the read are not listed."""
        return tuple(str(name) for name in self._all if name not in skipped) if self._all else None
