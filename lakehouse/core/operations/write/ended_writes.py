"""Decide when the only writer of a table looks for files that crashed writes left.

The search lists `.hoodie`. A process that has written, cleaned up and released the lock, and acquires the lock again
before any other process, knows that no write has left files in between. It does not search then. If another process
held the lock in between, the search is made after the commit.
"""

from __future__ import annotations

from lakehouse.core.operations.commit.cleanup import clean_up_ended_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.undo.rollback import roll_back_failed_writes
from lakehouse.spec.options.transaction import TransactionPolicy

#: A write acquires the lock to request its instant and to complete it. If log files are named after their slice, also
#: to start.
_TURNS, _STARTED_TURNS = 2, 3


class EndedWrites:
    """The searches of one write for files of ended writes."""

    def __init__(self, table: LoadedTable, policy: TransactionPolicy) -> None:
        self._policy, self._root = policy, table.env.storage.root
        self._turns, self._process = table.env.process_state.lock_turns, table.env.processes.current()
        self._first = self._turns.count(self._root)
        self._is_clean = self._turns.is_cleaned(self._root, self._process)

    def prepare(self, table: LoadedTable) -> LoadedTable:
        """Roll back failed writes, if this is the only writer, and clean up after ended writes if there may be any."""
        if not self._policy.eager:
            return table
        return roll_back_failed_writes(table, self._policy, is_clean=self._is_clean)

    def finish(self, table: LoadedTable) -> None:
        """Clean up after writes of other processes that ended since `prepare`; call after the cleanup of this write."""
        if not self._policy.eager:
            return
        if not self._turns.uninterrupted(self._root, self._first):
            if self._is_clean:
                clean_up_ended_writes(table, self._policy)
            return
        turns = _STARTED_TURNS if table.config.names_logs_by_slice else _TURNS
        if self._turns.count(self._root) == self._first + turns:
            self._turns.keep_cleaned(self._root, self._process)
