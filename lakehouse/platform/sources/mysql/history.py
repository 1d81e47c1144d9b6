"""Check that a server's binlog continues from a checkpoint's position, and did not start again behind it.

RESET MASTER empties the log and restarts its numbers, and a server restored from a backup has a different log end. Such
a log reuses the names of older files and GTIDs, so the position exists or will exist, but it belongs to other
transactions. These facts show it:

    file        its number is larger than the newest file number, or the offset lies behind its end
    created     the file was created at another time
    GTIDs       MySQL: the server has not committed all transactions before the position; MariaDB: a domain ends before
    purged      the file was deleted, but the transactions before the position are not among the deleted ones

A file that was created at the same time and contains the offset is the same log. Then GTIDs are not compared: a
transaction is readable in the log before the server counts it as committed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from lakehouse.core.system.clock import SystemClock
from lakehouse.core.system.ids import RandomIds
from lakehouse.errors import SnapshotNeededError, UserError
from lakehouse.platform.sources.binlog.dump import LogRead, file_created_s
from lakehouse.platform.sources.binlog.positions import MARIADB, MYSQL, BinlogPosition, MariadbGtids, ordering_value
from lakehouse.platform.sources.mysql.connection import Questions, connect

_FIRST_OFFSET = 4
_CLOCK = SystemClock()
#: Maximum time until a transaction in the log is counted as committed.
_COMMITTED_S, _POLL_S = 5.0, 0.1


class LogHistory:
    """The history of a server's log.

    Args:
        server: The server.
        flavor: `mysql` or `mariadb`.
        server_ids: The first and the last server id for reads of the log.
    """

    def __init__(self, server: Questions, flavor: str, server_ids: tuple[int, int]) -> None:
        self._server, self._flavor, self._server_ids = server, flavor, server_ids
        # The decoder detects a file that is replaced during a run.
        self._created: dict[str, int] = {}

    def require(self, position: BinlogPosition) -> None:
        """Raise SnapshotNeededError if the log does not continue a position that was read from this server."""
        problem = self._problem(position)
        if not problem:
            return
        row = binlog_status(self._server, self._flavor)
        end = BinlogPosition(
            flavor=self._flavor, gtid=self._executed(), file=str(row["file"]), offset=int(row["position"])
        )
        raise SnapshotNeededError(
            f"the binlog of the server {self._server.access.address} has started again behind the position of the "
            f"table: {problem}. The last commit has the position {_shown(position)}, and the log ends at "
            f"{_shown(end)}. RESET MASTER was run, or the server was restored from a backup, so changes are lost. Read "
            "all tables of the spec again with --full-refresh"
        )

    def created_s(self, file: str) -> int:
        """Return the time at which the server created a log file, in seconds."""
        if file not in self._created:
            first, last = self._server_ids
            read = LogRead(
                start=BinlogPosition(flavor=self._flavor, file=file, offset=_FIRST_OFFSET),
                server_id=first + int(RandomIds().uuid().replace("-", ""), 16) % (last - first + 1),
                wants=lambda _: False,
            )
            self._created[file] = file_created_s(partial(connect, self._server.access), read)
        return self._created[file]

    def _problem(self, position: BinlogPosition) -> str:
        """Return why the log does not continue a position; empty if it does."""
        files = dict(binlog_files(self._server)) if position.file else {}
        if position.file in files:
            if position.offset > files[position.file]:
                return f"{position.file} ends at {files[position.file]}"
            if not position.created_s:
                return self._problem_of_gtids(position)
            is_same = self.created_s(position.file) == position.created_s
            return "" if is_same else f"{position.file} is a new file of this name"
        numbers = {ordering_value(file, 0): file for file in files}
        if numbers and ordering_value(position.file, 0) > max(numbers):
            return f"its newest file is {numbers[max(numbers)]}"
        problem = self._problem_of_gtids(position)
        return problem or (self._problem_of_purged(position, numbers[min(numbers)]) if numbers else "")

    def _problem_of_gtids(self, position: BinlogPosition) -> str:
        """Return the transactions before a position that the server lacks; wait a little for the last transactions."""
        deadline = _CLOCK.monotonic_s() + _COMMITTED_S
        while (lacking := self._lacking(position)) and _CLOCK.monotonic_s() < deadline:
            _CLOCK.sleep(_POLL_S)
        return f"it does not have the transactions {lacking}" if lacking else ""

    def _lacking(self, position: BinlogPosition) -> str:
        """Return the transactions before a position that the server lacks."""
        executed = self._executed()
        if self._flavor == MYSQL:
            return _joined(self._server.value("select gtid_subtract(%s, %s)", (position.gtid, executed)))
        ends = MariadbGtids.parse(executed).newest
        newest = MariadbGtids.parse(position.gtid).newest
        return ",".join(
            f"{domain}-{server}-{sequence}"
            for domain, (server, sequence) in newest.items()
            if domain not in ends or ends[domain][1] < sequence
        )

    def _problem_of_purged(self, position: BinlogPosition, first: str) -> str:
        """Return why a missing file was not deleted by age; empty if it was."""
        if self._flavor == MYSQL:
            purged = self._server.value("select @@global.gtid_purged")
            is_older = self._server.value("select gtid_subset(%s, %s)", (position.gtid, purged))
        else:
            purged = self._server.value("select binlog_gtid_pos(%s, %s)", (first, _FIRST_OFFSET))
            is_older = MariadbGtids.parse(str(purged or "")).covers(MariadbGtids.parse(position.gtid))
        return "" if is_older else f"its first file {first} does not follow {position.file}"

    def _executed(self) -> str:
        """Return the GTIDs of all transactions in the log."""
        name = "gtid_executed" if self._flavor == MYSQL else "gtid_binlog_pos"
        return _joined(self._server.value(f"select @@global.{name}"))


def binlog_status(server: Questions, flavor: str) -> dict[str, Any]:
    """Return the server's description of the log end; raise UserError if it writes no log."""
    major, minor, *_ = str(server.value("select version()")).split(".")
    is_modern = flavor != MARIADB and (int(major), int(minor)) >= (8, 4)
    rows = server.rows("show binary log status" if is_modern else "show master status")
    if not rows:
        raise UserError(f"the server {server.access.address} writes no binlog: start it with --log-bin")
    return rows[0]


def binlog_files(server: Questions) -> list[tuple[str, int]]:
    """Return the log files and their sizes, in order."""
    return [(str(row["log_name"]), int(row["file_size"])) for row in server.rows("show binary logs")]


def _shown(position: BinlogPosition) -> str:
    place = f"{position.file}:{position.offset}" if position.file else "no file"
    return f"{position.gtid or 'no GTID'} ({place})"


def _joined(text: object) -> str:
    return str(text or "").replace("\n", "")
