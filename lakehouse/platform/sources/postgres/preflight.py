"""Settings and rights of a server without which its log cannot be read."""

from __future__ import annotations

from lakehouse.errors import UserError
from lakehouse.platform.sources.postgres.connection import Questions

#: Since this version a publication has changes of partitions under the name of the partitioned table.
_LEAST_VERSION = 130_000


def check_server(server: Questions, connection: str, *, needs_slot: bool) -> None:
    """Raise UserError with all problems of a server, each with its value and its remedy.

    Args:
        server: The server.
        connection: The id of the connection.
        needs_slot: Whether a replication slot has to be created.
    """
    problems = [*_settings(server), *_rights(server), *(_slots(server) if needs_slot else ())]
    if problems:
        raise UserError(
            f"the server {server.access.address} of connection {connection!r} cannot be ingested: {'; '.join(problems)}"
        )


def _settings(server: Questions) -> list[str]:
    problems = []
    if int(server.setting("server_version_num")) < _LEAST_VERSION:
        problems.append(f"its version is {server.setting('server_version')}: update it to PostgreSQL 13 or later")
    if server.value("select pg_is_in_recovery()"):
        problems.append("it is a standby, which has no replication slots: connect to the primary server")
    level = server.setting("wal_level")
    if level != "logical":
        problems.append(
            f"wal_level is {level}, so the log has no rows: ALTER SYSTEM SET wal_level = 'logical', and restart it"
        )
    return problems


def _rights(server: Questions) -> list[str]:
    user = server.access.user
    if server.value("select rolreplication or rolsuper from pg_roles where rolname = current_user"):
        return []
    return [f"user {user!r} may not read the log: ALTER ROLE {user} REPLICATION"]


def _slots(server: Questions) -> list[str]:
    most = int(server.setting("max_replication_slots"))
    used = int(server.value("select count(*) from pg_replication_slots"))
    if used < most:
        return []
    return [
        f"all {most} replication slots are in use: drop one without a reader (pg_replication_slots), or ALTER SYSTEM "
        f"SET max_replication_slots = {most + 10}, and restart it"
    ]
