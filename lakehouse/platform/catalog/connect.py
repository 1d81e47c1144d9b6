"""Connection to the catalog's database: its URL, sessions and schema.

    LAKEHOUSE_CATALOG          the URL of the default catalog, such as postgresql+psycopg://user:password@host/lakehouse
    LAKEHOUSE_CATALOG_<NAME>   the URL of the catalog <name>
                               both also accept file:/path of a file with the URL, or airflow:<connection id>
    neither                    SQLite in `LAKEHOUSE_HOME`/catalog.db, if LAKEHOUSE_HOME is set

SQLite serves one host, and each process that opens it upgrades its schema. The schema of a shared database is changed
only by `lakehouse catalog upgrade`.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session

from lakehouse.errors import RetryableError, UserError
from lakehouse.spec.private_files import private_file, private_folder
from lakehouse.spec.secrets import redact_text, resolve_secret
from lakehouse.spec.table.location import HOME

VARIABLE = "LAKEHOUSE_CATALOG"
DEFAULT = "default"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_BUSY_S = 30
_CONNECT_S = 10
_IDLE_S = 20
_MIGRATION_LOCK = 0x6C616B65
_READS = "lakehouse_reads"


def catalog_url(name: str, environ: Mapping[str, str]) -> str:
    """Return the URL of a catalog: `name` itself if it is a URL, otherwise the URL that the environment configures.

    Raises UserError with the name of the missing variable.
    """
    if "://" in name:
        return name
    if not _NAME.fullmatch(name):
        raise UserError(f"catalog {name!r} is neither a URL nor a name of letters, digits and '_'", catalog=name)
    variable = VARIABLE if name == DEFAULT else f"{VARIABLE}_{name.upper()}"
    if environ.get(variable):
        return resolve_secret(environ[variable], environ, key=variable)
    if name == DEFAULT and environ.get(HOME):
        return f"sqlite:///{os.path.abspath(environ[HOME])}/catalog.db"
    raise UserError(
        f"no catalog {name!r}: set {variable} to its URL, such as postgresql+psycopg://user@host/lakehouse or "
        f"sqlite:////path/catalog.db{f', or set {HOME} for one in that directory' if name == DEFAULT else ''}",
        catalog=name,
    )


def is_configured(environ: Mapping[str, str]) -> bool:
    """Return whether a default catalog is configured."""
    return bool(environ.get(VARIABLE) or environ.get(HOME))


class Database:
    """Sessions on the catalog's database; the schema is checked or upgraded when it is opened."""

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self.where = self.engine.url.render_as_string(hide_password=True)
        self.is_embedded = self.engine.dialect.name == "sqlite"
        if self.is_embedded:
            self.upgrade()
        else:
            self._require_schema()

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Run one transaction: commit at the end, roll back after an error. Database errors become RetryableError."""
        with self._translated(), Session(self.engine) as session, session.begin():
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Run one transaction that only reads: with SQLite it neither waits for writers nor blocks them."""
        engine = self.engine.execution_options(**{_READS: True})
        with self._translated(), Session(engine) as session, session.begin():
            yield session

    def upgrade(self) -> str:
        """Upgrade the schema to the newest revision and return it; concurrent upgrades are serialised."""
        with self._translated():
            return upgrade(self.engine)

    def close(self) -> None:
        """Close the pooled connections."""
        self.engine.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        with translated_errors(self.where):
            yield

    def _require_schema(self) -> None:
        with self._translated(), self.engine.connect() as connection:
            revision = MigrationContext.configure(connection).get_current_revision()
        newest = _script().get_current_head()
        if revision != newest:
            self.close()
            raise UserError(
                f"catalog {self.where} has schema revision {revision or 'none'}, but this version of lakehouse needs "
                f"{newest}; run `lakehouse catalog upgrade`",
                catalog=self.where,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseState:
    """The schema revision of a database (None if it has no schema), the newest revision, and the database's clock.

    `where` is the URL without password. `now_ms` is None for SQLite, which has no server clock.
    """

    where: str
    revision: str | None
    newest: str
    now_ms: int | None


def database_state(url: str) -> DatabaseState | None:
    """Return the state of a database without changing it, or None if it is an SQLite file that does not exist.

    Raises UserError for an unusable URL, RetryableError if the database does not answer.
    """
    parsed = _parsed(url)
    if parsed.get_backend_name() == "sqlite" and not (parsed.database and os.path.exists(parsed.database)):
        return None
    engine = _engine(url)
    where = engine.url.render_as_string(hide_password=True)
    try:
        with translated_errors(where), engine.connect() as connection:
            revision = MigrationContext.configure(connection).get_current_revision()
            now_ms = None
            if engine.dialect.name == "postgresql":
                now_ms = int(connection.scalar(text("SELECT extract(epoch FROM clock_timestamp()) * 1000")))
    finally:
        engine.dispose()
    return DatabaseState(where=where, revision=revision, newest=str(_script().get_current_head()), now_ms=now_ms)


@contextmanager
def translated_errors(where: str) -> Iterator[None]:
    """Raise RetryableError without secrets for errors of the database at `where` in a block."""
    try:
        yield
    except DBAPIError as error:
        raise RetryableError(f"catalog {where}: {redact_text(str(error.orig))}", catalog=where) from error
    except SQLAlchemyError as error:
        raise RetryableError(f"catalog {where}: {redact_text(str(error))}", catalog=where) from error


def is_duplicate(error: RetryableError) -> bool:
    """Return whether a transaction failed because another one inserted the same key first."""
    return isinstance(error.__cause__, IntegrityError)


def is_outage(error: RetryableError) -> bool:
    """Return whether the database failed, so that a later attempt may succeed."""
    return isinstance(error.__cause__, SQLAlchemyError)


def upgrade(engine: Engine) -> str:
    """Run the missing migrations of a database; return its revision."""
    config = _config()
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _MIGRATION_LOCK})
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _MIGRATION_LOCK})
            connection.commit()
    return str(_script().get_current_head())


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database:
            path = Path(os.path.abspath(parsed.database))
            private_folder(path.parent)
            # SQLite creates its journal files with the mode of this file.
            private_file(path)
        # An unreachable server must not block a run until the TCP timeout, which takes minutes.
        timeouts = {"connect_timeout": _CONNECT_S} if parsed.get_backend_name() == "postgresql" else {}
        engine = create_engine(parsed, pool_pre_ping=True, connect_args=timeouts)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError, TypeError, ValueError, OSError) as error:
        raise _unusable(error) from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    elif engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError) as error:
        raise _unusable(error) from None


def _unusable(error: Exception) -> UserError:
    # The password in a URL that does not parse cannot be hidden, so the URL is not shown.
    unreadable = isinstance(error, ArgumentError | ValueError)
    why = "it is not a database URL" if unreadable else redact_text(str(error))
    return UserError(
        f"the catalog's URL cannot be used: {why}. Write postgresql+psycopg://user@host/database or "
        "sqlite:////path, and install the driver."
    )


def _prepare_sqlite(connection: Any, record: Any) -> None:
    del record
    # Python's driver begins transactions late. Two transactions that read first and then write would both fail.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", f"busy_timeout={_BUSY_S * 1000}", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _prepare_postgresql(connection: Any, record: Any) -> None:
    del record
    # A process that is suspended in a transaction must not lock rows for ever. The lock timeout of waiting sessions
    # is longer than this idle timeout.
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = {_IDLE_S * 1000}")
        cursor.execute(f"SET lock_timeout = {_BUSY_S * 1000}")
    connection.commit()


def _begin_sqlite(connection: Any) -> None:
    if not connection.connection.driver_connection.in_transaction:
        reads = connection.get_execution_options().get(_READS)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())
