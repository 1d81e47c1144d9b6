"""Settings and rights of a server without which its log cannot be read, or lacks what is needed."""

from __future__ import annotations

import re

from lakehouse.errors import UserError
from lakehouse.platform.sources.binlog.positions import MARIADB
from lakehouse.platform.sources.mysql.connection import Questions

#: Values that variables must have, and why.
_REQUIRED = (
    ("log_bin", "ON", "the server writes no binlog"),
    ("binlog_format", "ROW", "changes that are logged as statements cannot be applied"),
    ("binlog_row_image", "FULL", "changes would lack the values of columns"),
    ("binlog_row_metadata", "FULL", "changes would lack the names and signs of columns"),
)
_RIGHTS = re.compile(r"\b(REPLICATION SLAVE|REPLICATION REPLICA|ALL PRIVILEGES)\b", re.IGNORECASE)
_STATUS_RIGHTS = re.compile(r"\b(REPLICATION CLIENT|BINLOG MONITOR|SUPER|ALL PRIVILEGES)\b", re.IGNORECASE)
#: A shorter retention leaves too little time to notice a stopped ingestion.
_LEAST_RETENTION_S = 3_600


def check_server(server: Questions, flavor: str, connection: str) -> None:
    """Raise UserError with all problems of a server, each with its value and its remedy."""
    problems = [*_variables(server, flavor), *_rights(server), *_retention(server, flavor)]
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


def _retention(server: Questions, flavor: str) -> list[str]:
    seconds = server.variable("binlog_expire_logs_seconds")
    days = server.variable("expire_logs_days")
    kept = float(seconds or 0) or 86_400 * float(days or 0)
    if 0 < kept < _LEAST_RETENTION_S:
        return [
            f"binlogs are deleted after {kept:.0f} seconds, so a run that is late loses changes: "
            "SET GLOBAL binlog_expire_logs_seconds = 604800"
        ]
    return []
