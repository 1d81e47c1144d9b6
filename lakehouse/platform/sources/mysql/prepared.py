"""Prepared XA transactions, whose rows are in the log before others see them."""

from __future__ import annotations

import logging

from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import LakehouseError, OpenTransactionsError
from lakehouse.platform.sources.binlog.positions import MARIADB
from lakehouse.platform.sources.mysql.connection import Questions

log = logging.getLogger(__name__)
_CLOCK = SystemClock()
_WAIT_S, _POLL_S = 60.0, 0.5
#: Errors of MySQL for a user without the right to list them; MariaDB needs no right.
_DENIED = (1227, 1401)


class PreparedTransactions:
    """Waits for the end of prepared XA transactions, in total for a minute.

    A snapshot does not see the rows of such a transaction, and its log has them before the snapshot. So they would be
    missing after its commit.
    """

    def __init__(self, server: Questions, flavor: str) -> None:
        self._server = server
        self._statement = "xa recover format = 'SQL'" if flavor == MARIADB else "xa recover convert xid"
        self._deadline: float | None = None

    def wait(self, table: str) -> None:
        """Wait for those that are prepared now; raise OpenTransactionsError for a table if they do not end."""
        prepared = self._prepared()
        if not prepared:
            return
        log.info("waits up to %.0f s for prepared XA transactions: %s", _WAIT_S, ", ".join(sorted(prepared)))
        self._deadline = self._deadline or _CLOCK.monotonic_s() + _WAIT_S
        while prepared:
            if _CLOCK.monotonic_s() > self._deadline:
                raise OpenTransactionsError(
                    f"XA transactions have been prepared for more than {_WAIT_S:.0f} seconds "
                    f"({', '.join(sorted(prepared))}). A snapshot of {table} would lack their rows, so the table is "
                    "read after their end. Run XA COMMIT or XA ROLLBACK for each (XA RECOVER lists them), then run "
                    "again",
                    table=table,
                )
            _CLOCK.sleep(_POLL_S)
            prepared &= self._prepared()

    def _prepared(self) -> set[str]:
        try:
            rows = self._server.rows(self._statement)
        except LakehouseError as error:
            if error.facts.get("code") not in _DENIED:
                raise
            log.info("prepared XA transactions cannot be listed: %s", error.message)
            return set()
        return {str(row["data"]) for row in rows}
