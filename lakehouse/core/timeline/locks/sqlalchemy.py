"""Lock provider `sqlalchemy`: a lease in a row of the database table `lakehouse_locks`, which is created if missing.

    name (root of the lake table)   value (the lease record)   version

A swap is an UPDATE with the version in its condition, so any database works that counts the changed rows. SQLite and
PostgreSQL are tested. SQLite excludes only processes of one host.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import BigInteger, Column, MetaData, String, Table, Text, create_engine, func, insert, select, update
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError

from lakehouse.core.env import Env
from lakehouse.core.timeline.locks.lease import LeaseLock
from lakehouse.core.timeline.locks.lease_record import LeaseRecordCodec
from lakehouse.core.timeline.locks.protocol import skew_of
from lakehouse.errors import LakehouseError, RetryableError, TableBusyError, UserError
from lakehouse.spec.options.lock_providers import LockTiming, SqlAlchemyLockOptions
from lakehouse.spec.private_files import private_file
from lakehouse.spec.secrets import redact_text, resolve_secret

_KEY = "lakehouse.lock.sqlalchemy.url"
_RENEWALS_PER_LEASE = 3
# Error codes of SQLite (numbers) and PostgreSQL (SQLSTATE) that mean: another client is writing, so the next try may
# succeed.
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, "40001", "40P01", "55P03")
# Error codes for missing permission to write or to connect.
_REFUSED = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY, "42501", "28000", "28P01", "25006")
# Error codes for disk errors.
_FAILING = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, "53100", "58030")
_METADATA = MetaData()
_LOCKS = Table(
    "lakehouse_locks",
    _METADATA,
    Column("name", String(512), primary_key=True),
    Column("value", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
)


def open_lock(env: Env, options: SqlAlchemyLockOptions, timing: LockTiming) -> DatabaseLock:
    """Return the lock of the table in the database from the options."""
    # The secret is resolved here and never stored, because options are logged and sent to workers.
    row = RowRegister(resolve_secret(options.url, os.environ, key=_KEY), env.storage.root)
    return DatabaseLock(env, row, timing.lease_ms)


class RowRegister:
    """A row as a register; see `Register`."""

    def __init__(self, url: str, name: str) -> None:
        try:
            parsed = make_url(url)
            if parsed.get_backend_name() == "sqlite" and parsed.database and os.path.isdir(_folder(parsed.database)):
                private_file(Path(parsed.database))
            self._engine = create_engine(parsed, pool_size=1, max_overflow=1)
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError, TypeError, ValueError) as error:
            raise UserError(
                f"option {_KEY} cannot be used: {_why_unusable(error)}. Write postgresql+psycopg://user@host/database "
                "or sqlite:////path, and install the driver.",
                option=_KEY,
            ) from None
        self._name = name
        self.where = parsed.render_as_string(hide_password=True)

    def read(self) -> tuple[bytes | None, str | None]:
        """Return the value and the version; two Nones if the row does not exist."""
        query = select(_LOCKS.c.value, _LOCKS.c.version).where(_LOCKS.c.name == self._name)
        try:
            with self._engine.connect() as connection:
                row = connection.execute(query).one_or_none()
        except (SQLAlchemyError, OSError) as error:
            if not _may_lack_table(error):
                raise self._failed(error) from error
            self._make_table()
            with self._begun() as connection:
                row = connection.execute(query).one_or_none()
        return (None, None) if row is None else (row.value.encode(), str(row.version))

    def swap(self, data: bytes, tag: str | None) -> str | None:
        """Update the row if its version is still `tag`; insert it if `tag` is None."""
        version = 1 if tag is None else int(tag) + 1
        changed = {"value": data.decode(), "version": version}
        try:
            with self._begun() as connection:
                if tag is None:
                    connection.execute(insert(_LOCKS).values(name=self._name, **changed))
                    return str(version)
                held = (_LOCKS.c.name == self._name) & (_LOCKS.c.version == int(tag))
                return (
                    str(version) if connection.execute(update(_LOCKS).where(held).values(**changed)).rowcount else None
                )
        except IntegrityError:
            return None

    def _failed(self, error: Exception) -> LakehouseError:
        """Return the lakehouse error for an error of the database: busy, permission denied, or failed."""
        reason = redact_text(str(error)).partition("\n")[0]
        text = f"the table lock of {self._name} in {self.where} failed: {reason}"
        code = _code_of(error)
        if code in _BUSY:
            return TableBusyError(text)
        if code in _REFUSED or isinstance(error, PermissionError):
            return UserError(f"{text}. Grant this user the right to write the table {_LOCKS.name}.", option=_KEY)
        return RetryableError(text)

    def now_ms(self) -> int | None:
        """Return the time of the server in UTC milliseconds; None unless it is PostgreSQL."""
        if self._engine.dialect.name != "postgresql":
            return None
        with self._begun() as connection:
            return int(connection.execute(select(func.extract("epoch", func.clock_timestamp()) * 1000)).scalar_one())

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._engine.dispose()

    def _make_table(self) -> None:
        with suppress(SQLAlchemyError, OSError):
            # An error here may mean that another process created the table. For other errors, the next statement fails.
            _METADATA.create_all(self._engine)

    @contextmanager
    def _begun(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except IntegrityError:
            raise
        except (SQLAlchemyError, OSError) as error:
            raise self._failed(error) from error


def _code_of(error: Exception) -> int | str | None:
    """Return SQLite's primary result code, or PostgreSQL's SQLSTATE."""
    origin = getattr(error, "orig", None)
    number = getattr(origin, "sqlite_errorcode", None)
    return number & 0xFF if number is not None else getattr(origin, "sqlstate", None)


def _may_lack_table(error: Exception) -> bool:
    """Return whether the table may be missing, because no other cause of the error is certain."""
    return isinstance(error, SQLAlchemyError) and _code_of(error) not in _BUSY + _REFUSED + _FAILING


def _folder(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))


def _why_unusable(error: Exception) -> str:
    """Return why SQLAlchemy refused a URL, without the URL: its secret part is unknown if it does not parse."""
    unreadable = isinstance(error, ArgumentError | ValueError)
    return "it is not the URL of a database" if unreadable else redact_text(str(error))


class DatabaseLock(LeaseLock):
    """A lease in a row of a database. `release` closes the connection."""

    def __init__(self, env: Env, row: RowRegister, lease_ms: int) -> None:
        super().__init__(
            env,
            row,
            LeaseRecordCodec(env),
            name=f"{env.storage.root} in {row.where}",
            lease_ms=lease_ms,
            renew_ms=lease_ms // _RENEWALS_PER_LEASE,
        )
        self._row = row

    def skew_ms(self) -> int | None:
        """Return by how much the local clock is ahead of the server's; None for SQLite, which uses the local clock."""
        before_ms = self._env.clock.now_ms()
        theirs_ms = self._row.now_ms()
        return None if theirs_ms is None else skew_of(theirs_ms, before_ms, self._env.clock.now_ms())

    def release(self) -> None:
        """Release the lock if it is held, and close the connection."""
        try:
            super().release()
        finally:
            self._row.close()
