"""The replication slot of a spec: the position up to which the server may delete its log.

The slot belongs to the connection's database. The server keeps its log from the position that the last run confirmed; a
slot without a reader keeps the log forever, or up to `max_slot_wal_keep_size`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import RetryableError, SnapshotNeededError, UserError
from lakehouse.platform.sources.pgoutput.decoder import lsn_number, lsn_text
from lakehouse.platform.sources.postgres.connection import Questions

log = logging.getLogger(__name__)
_CLOCK = SystemClock()

PLUGIN = "pgoutput"
_LOST = "lost"
#: To create a slot, the server waits for the end of all open transactions.
_CREATE_TIMEOUT_MS = 600_000
#: Maximum time until the server detects that a read's connection is closed.
_RELEASE_S, _POLL_S = 5.0, 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A replication slot.

    Attributes:
        server: The server.
        name: The name of the slot.
    """

    server: Questions
    name: str

    def state(self) -> Mapping[str, Any] | None:
        """Return the slot's catalog row, or None if it does not exist."""
        rows = self.server.rows(
            "select plugin, database, current_database() as here, temporary, active_pid, wal_status, "
            "confirmed_flush_lsn::text as confirmed, pg_current_wal_insert_lsn() - confirmed_flush_lsn as behind "
            "from pg_replication_slots where slot_name = %s",
            (self.name,),
        )
        return rows[0] if rows else None

    def confirmed(self) -> int | None:
        """Return the first log position in the slot; None if it has none, or while it is created.

        Raises UserError for a slot of another plugin or database.
        """
        state = self.state()
        if state is None or state["wal_status"] == _LOST or _is_created_now(state):
            return None
        if state["plugin"] != PLUGIN or state["database"] != state["here"]:
            raise UserError(
                f"the replication slot {self.name!r} has the plugin {state['plugin']} and the database "
                f"{state['database']}; it needs {PLUGIN} and {state['here']}. Name another one in ingest.slot"
            )
        return lsn_number(str(state["confirmed"]))

    def problem(self) -> str:
        """Return why the slot lacks the log since an earlier run."""
        state = self.state()
        if state is None:
            return f"the replication slot {self.name!r} does not exist any more"
        if _is_created_now(state):
            return f"the replication slot {self.name!r} is a new one, which process {state['active_pid']} creates now"
        return (
            f"the server has removed log that the replication slot {self.name!r} needs (wal_status "
            f"{state['wal_status']}, max_slot_wal_keep_size)"
        )

    def ensure(self, *, resumes: bool) -> None:
        """Create the slot if there is none.

        Args:
            resumes: Whether a table continues an earlier position, whose log a new slot would not have.

        Raises SnapshotNeededError if the log at such a position was deleted, UserError if the account may not create
        slots, RetryableError if another program is creating the slot.
        """
        if self.confirmed() is not None:
            return
        if resumes:
            raise SnapshotNeededError(
                f"{self.problem()}, so changes since the last commit are lost. Read all tables of the spec again with "
                "--full-refresh, which makes a new slot"
            )
        state = self.state()
        if state is not None and _is_created_now(state):
            raise RetryableError(
                f"process {state['active_pid']} of the server creates the replication slot {self.name!r} now, and "
                "waits for the end of all transactions that were open before. Run again later (see pg_stat_activity)"
            )
        if state is not None:
            self.server.rows("select pg_drop_replication_slot(%s)", (self.name,))
        self.server.rows(f"set statement_timeout = {_CREATE_TIMEOUT_MS}")
        try:
            self.server.rows("select pg_create_logical_replication_slot(%s, %s)", (self.name, PLUGIN))
        except RetryableError as error:
            raise RetryableError(
                f"the replication slot {self.name!r} is not created: {error.message}. The server waits for the end of "
                "all transactions that were open before; pg_stat_activity shows them"
            ) from error
        finally:
            self.server.rows("set statement_timeout = 0")

    def confirm(self, place: int) -> None:
        """Confirm a position, so that the server deletes its log before it; if the slot is in use, a later run does."""
        confirmed = self.confirmed()
        if confirmed is None or confirmed >= place:
            return
        deadline = _CLOCK.monotonic_s() + _RELEASE_S
        while (state := self.state()) is not None and state["active_pid"] and _CLOCK.monotonic_s() < deadline:
            _CLOCK.sleep(_POLL_S)
        try:
            self.server.rows("select pg_replication_slot_advance(%s, %s)", (self.name, lsn_text(place)))
        except RetryableError as error:
            # The position is in the commits, so a later run confirms it.
            log.info("the slot %s is not confirmed up to %s now: %s", self.name, lsn_text(place), error.message)


def _is_created_now(state: Mapping[str, Any]) -> bool:
    """Return whether a logical slot has no first position yet. The server drops a slot whose creation fails."""
    return state["plugin"] is not None and state["confirmed"] is None
