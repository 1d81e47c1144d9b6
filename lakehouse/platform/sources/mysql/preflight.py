"""Check the server settings and privileges that are required to read a complete log."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lakehouse.errors import UserError
from lakehouse.platform.sources.binlog.positions import MARIADB
from lakehouse.platform.sources.databases.server import SourceTable
from lakehouse.platform.sources.mysql.connection import Questions
from lakehouse.platform.sources.mysql.history import binlog_status

#: Required values of variables, and why.
_REQUIRED = (
    ("log_bin", "ON", "the server writes no binlog"),
    ("binlog_format", "ROW", "changes that are logged as statements cannot be applied"),
    ("binlog_row_image", "FULL", "changes would lack the values of columns"),
    ("binlog_row_metadata", "FULL", "changes would lack the names and signs of columns"),
)
_RIGHTS = re.compile(r"\b(REPLICATION SLAVE|REPLICATION REPLICA|ALL PRIVILEGES)\b", re.IGNORECASE)
_STATUS_RIGHTS = re.compile(r"\b(REPLICATION CLIENT|BINLOG MONITOR|SUPER|ALL PRIVILEGES)\b", re.IGNORECASE)
#: The variable that makes a replica write its primary's changes to its log, by its new and its old name.
_REPLICA_LOGS = ("log_replica_updates", "log_slave_updates")
#: A shorter retention leaves too little time to notice a stopped ingestion.
_LEAST_RETENTION_S = 3_600


def check_server(server: Questions, flavor: str, connection: str, tables: Sequence[SourceTable]) -> None:
    """Raise UserError with all problems of a server, each with value and remedy.

    Args:
        server: The server.
        flavor: `mysql` or `mariadb`.
        connection: The id of the connection.
        tables: The tables that are read.
    """
    problems = [*_variables(server, flavor), *_rights(server), *_retention(server, flavor)]
    # The account needs rights to see the filters.
    problems = problems or [*_filters(server, flavor, tables), *_replication(server, flavor)]
    if problems:
        raise UserError(
            f"the server {server.access.address} of connection {connection!r} cannot be ingested: {'; '.join(problems)}"
        )


def _variables(server: Questions, flavor: str) -> list[str]:
    problems = []
    for name, wanted, why in _REQUIRED:
        value = server.variable(name)
        if value.upper() not in (wanted, "1" if wanted == "ON" else wanted):
            remedy = "start it with --log-bin" if name == "log_bin" else f"SET GLOBAL {name} = {wanted}"
            problems.append(f"{name} is {value or 'not known'}, so {why}: {remedy}, and set it in its configuration")
    if flavor != MARIADB and server.variable("gtid_mode").upper() != "ON":
        problems.append(
            f"gtid_mode is {server.variable('gtid_mode') or 'not known'}, so no position can be named that a later "
            "SELECT is sure to see: set gtid_mode=ON and enforce_gtid_consistency=ON"
        )
    return problems


def _rights(server: Questions) -> list[str]:
    grants = "\n".join(str(value) for row in server.rows("show grants") for value in row.values())
    user = server.access.user
    problems = []
    if not _RIGHTS.search(grants):
        problems.append(f"user {user!r} may not read the binlog: GRANT REPLICATION SLAVE ON *.* TO {user!r}")
    if not _STATUS_RIGHTS.search(grants):
        problems.append(f"user {user!r} may not see the end of the binlog: GRANT REPLICATION CLIENT ON *.* TO {user!r}")
    return problems


def _filters(server: Questions, flavor: str, tables: Sequence[SourceTable]) -> list[str]:
    """Return problems with filters, which limit the log to some databases."""
    status = binlog_status(server, flavor)
    databases = sorted({table.name.partition(".")[0] for table in tables})
    problems = []
    for name, key in (("binlog-do-db", "binlog_do_db"), ("binlog-ignore-db", "binlog_ignore_db")):
        listed = {one.strip() for one in str(status.get(key) or "").split(",")} - {""}
        hidden = [one for one in databases if listed and (one in listed) == (name == "binlog-ignore-db")]
        if hidden:
            problems.append(
                f"its option {name} leaves out the database {', '.join(hidden)}, so the binlog lacks its changes: "
                "remove the option, and restart the server"
            )
    return problems


def _replication(server: Questions, flavor: str) -> list[str]:
    """Return the problem of a replica that does not write its primary's changes to its binlog."""
    name = next((name for name in _REPLICA_LOGS if server.variable(name)), "")
    if not name or server.variable(name).upper() in ("ON", "1"):
        return []
    if flavor == MARIADB:
        is_replica = bool(server.value("select @@global.gtid_slave_pos"))
    else:
        is_modern = name == _REPLICA_LOGS[0]
        is_replica = bool(server.rows("show replica status" if is_modern else "show slave status"))
    if not is_replica:
        return []
    return [
        f"{name} is OFF, and the server is a replica, so its binlog lacks the changes of its primary server: connect "
        f"to the primary server, or set {name}=ON and restart the replica"
    ]


def _retention(server: Questions, flavor: str) -> list[str]:
    seconds = server.variable("binlog_expire_logs_seconds")
    days = server.variable("expire_logs_days")
    seconds_kept = float(seconds or 0) or 86_400 * float(days or 0)
    if 0 < seconds_kept < _LEAST_RETENTION_S:
        return [
            f"binlogs are deleted after {seconds_kept:.0f} seconds, so a run that is late loses changes: "
            "SET GLOBAL binlog_expire_logs_seconds = 604800"
        ]
    return []
