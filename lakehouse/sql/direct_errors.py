"""Errors about names and syntax in place of the messages of an engine that does not know the catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lakehouse.errors import UserError, nearest
from lakehouse.sql.engine import EngineError
from lakehouse.sql.references import UnparsedStatement, find_references
from lakehouse.sql.session_tables import SessionTables
from lakehouse.sql.statements import CreateView, DropView, Name, Namespace, SetOption, ShowTables, Statement
from lakehouse.sql.tokens import Cursor, tokens_of

_SHOWN = 60
_CREATE = (
    "A table of the catalog needs USING lakehouse and its key: CREATE TABLE namespace.name (id INT, ...) USING "
    "lakehouse TBLPROPERTIES (primaryKey = 'id')"
)
_LIKE = (
    "CREATE TABLE ... LIKE is not supported: use CREATE TABLE ... USING lakehouse TBLPROPERTIES (primaryKey = 'id') AS "
    "SELECT * FROM t WHERE false"
)
#: Statements of other systems, each with the equivalent.
_OTHERS: Mapping[str, str] = {
    "ANALYZE": "the metadata table keeps the statistics: CALL lakehouse.metadata(table => '...', op => 'show')",
    "CACHE": "every statement reads the newest version; CREATE TEMPORARY VIEW names a query",
    "CLONE": "CREATE TABLE ... USING lakehouse AS SELECT copies a table",
    "MSCK": "partitions are listed from the table itself; nothing is to be repaired",
    "OPTIMIZE": "use CALL lakehouse.clustering(table => '...') or CALL lakehouse.compaction(table => '...')",
    "RESTORE": "use CALL lakehouse.restore(table => '...', to => '...')",
    "TRUNCATE": "write TRUNCATE TABLE before the name",
    "UNDROP": "DROP TABLE keeps the files: CALL lakehouse.register_table(table => '...', location => '...')",
    "VACUUM": "use CALL lakehouse.clean(table => '...')",
}
_FIRST_WORDS = (
    "ALTER", "CALL", "CREATE", "DELETE", "DESCRIBE", "DROP", "EXPLAIN", "INSERT", "MERGE", "REFRESH", "REPLACE",
    "RESET", "SELECT", "SET", "SHOW", "TRUNCATE", "UPDATE", "USE", "VALUES", "WITH",
)  # fmt: skip


def unparsed(text: str, dialect: str, error: UnparsedStatement) -> UserError:
    """Return the error for a statement on tables of the catalog that cannot be parsed."""
    shown = repr(text.strip()[:_SHOWN])
    tokens = tokens_of(text, dialect)
    first = tokens[0].text.upper().split()[0] if tokens and tokens[0].text.strip() else ""
    if first in _OTHERS:
        return UserError(f"{shown}: {first} is not supported for tables of the catalog: {_OTHERS[first]}")
    if first == "CREATE" and any(token.has_word("LIKE") for token in tokens):
        return UserError(_LIKE)
    if first not in _FIRST_WORDS:
        return UserError(
            f"{shown}: there is no statement {first}.{nearest(first, _FIRST_WORDS)} docs/reference/sql.md describes "
            "the statements for tables of the catalog"
        )
    if error.detail:
        return UserError(f"{shown}: {error.detail}")
    return UserError(
        f"{shown}: this statement is not supported for tables of the catalog. docs/reference/sql.md describes the "
        "statements that are"
    )


def direct_error(session: SessionTables, text: str, statement: Statement, error: EngineError) -> UserError:
    """Return an error that names the missing table or namespace, or `error` if none is missing.

    This is for engines without tables; see `missing_table` for Spark.
    """
    if session.engine.session is not None:
        return error
    if isinstance(statement, DropView):
        return UserError(f"there is no view {'.'.join(statement.name)}.{nearest(statement.name[-1], session.views)}")
    created = _created(session, text, error)
    if created is not None:
        return created
    for name in _names(session, text, statement):
        if not session.names.exists(name) and not session.engine.has_relation(name):
            return _missing(session, name)
    return error


def missing_table(session: SessionTables, name: Name) -> UserError | None:
    """Return an error for a table that the engine does not find, if the catalog has its namespace or a similar name.

    The engine may have put the name of its own catalog first.
    """
    name = name[-2:]
    if not name or session.names.exists(name):
        return None
    error = _missing(session, name)
    is_ours = len(name) == 2 and session.names.namespace(name[:1]) is not None
    return error if is_ours or " Did you mean " in str(error) else None


def missing_namespace(session: SessionTables, name: Name) -> UserError | None:
    """Return an error for a namespace that the engine does not find, if the catalog has a similar one."""
    near = nearest(name[-1], session.catalog.list_namespaces()) if name else ""
    return UserError(f"there is no namespace {name[-1]!r}.{near}") if near else None


def _names(session: SessionTables, text: str, statement: Statement) -> Iterator[Name]:
    """Yield the names of tables in a statement that may be missing."""
    name: Name = getattr(statement, "name", ())
    if name and not isinstance(statement, Namespace | ShowTables | SetOption | CreateView):
        yield name
    try:
        query = find_references(text, session.engine.dialect)
    except (UnparsedStatement, UserError):
        return
    for reference in query.references:
        if not reference.function and reference.name[-1].lower() not in session.views:
            yield reference.name


def _created(session: SessionTables, text: str, error: EngineError) -> UserError | None:
    """Return the error for a CREATE TABLE without USING lakehouse that DuckDB refused; None for other statements."""
    cursor = Cursor(text, tokens_of(text, session.engine.dialect))
    cursor.accept("CREATE")
    cursor.accept("OR", "REPLACE")
    if cursor.at == 0 or not cursor.accept("TABLE"):
        return None
    cursor.until("USING")
    if cursor.accept("USING"):
        used = cursor.token.text if cursor.token is not None else ""
        return UserError(f"USING {used}: there is no such format.{nearest(used, ('lakehouse', 'hudi'))} {_CREATE}")
    if "Schema with name" in error.message or "TBLPROPERTIES" in text.upper():
        return UserError(f"{text.strip()[:_SHOWN]!r}: {_CREATE}")
    return None


def _missing(session: SessionTables, name: Name) -> UserError:
    """Return the error for a table that neither the catalog nor the engine has."""
    shown = ".".join(name)
    parts = name[1:] if len(name) == 3 and name[0].lower() == "lakehouse" else name
    space = ".".join(parts[:-1]) or session.names.current
    spaces = session.catalog.list_namespaces()
    existing = session.names.namespace((space,))
    if len(parts) > 1 and existing is None:
        return UserError(f"there is no table {shown}: there is no namespace {space!r}.{nearest(space, spaces)}")
    tables = () if existing is None else session.catalog.list_tables(existing)
    near = nearest(f"{existing}.{parts[-1]}", [entry.identifier for entry in tables])
    if len(parts) == 1 and not near:
        same = next((entry.identifier for entry in session.catalog.list_tables() if entry.name == parts[0]), "")
        near = f" Did you mean {same!r}?" if same else ""
    lists = (
        f"SHOW TABLES IN {existing} lists the tables" if existing is not None else "SHOW NAMESPACES lists namespaces"
    )
    return UserError(f"there is no table {shown}.{near} {lists}", table=shown)
