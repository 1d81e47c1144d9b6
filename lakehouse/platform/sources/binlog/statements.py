"""Determine the effects of query-event statements on tables. Statements are tokenized; nothing else is parsed.

The session's `sql_mode` decides how quotes in a statement are interpreted. An unknown statement, or one without a name
where a name is required, is `UNKNOWN`: it could change a table without a row event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from lakehouse.platform.sources.binlog.changes import TableName

BEGIN, COMMIT, ROLLBACK, SAVEPOINT, ROLLBACK_TO, XA = "begin", "commit", "rollback", "savepoint", "rollback_to", "xa"
DML, DDL, OTHER, UNKNOWN = "dml", "ddl", "other", "unknown"
#: SQL modes: double quotes enclose names; a backslash in a string is an ordinary character.
ANSI_QUOTES, NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20


@lru_cache
def _token(mode: int) -> re.Pattern[str]:
    """Return the pattern of a token in a mode."""
    inner = "[^{0}]|{0}{0}" if mode & NO_BACKSLASH_ESCAPES else r"[^{0}\\]|\\.|{0}{0}"
    single, double = (f"{quote}(?:{inner.format(quote)})*{quote}" for quote in "'\"")
    names, texts = r"`(?:[^`]|``)*`", f"{single}|{double}"
    if mode & ANSI_QUOTES:
        names, texts = rf'{names}|"(?:[^"]|"")*"', single
    return re.compile(
        r"(?P<space>\s+|/\*(?!M?!).*?\*/|--(?=[\x00-\x20])[^\n]*|--$|\#[^\n]*)|(?P<hint>/\*M?!\d*|\*/)"
        rf"|(?P<name>{names})|(?P<text>{texts})|(?P<word>[\w$@\u0080-\U0010ffff]+)|(?P<sign>.)",
        re.DOTALL,
    )


#: Statements that change rows, and the words after their table names.
_DML = {
    "insert": ("values", "value", "set", "select", "(", "on"),
    "replace": ("values", "value", "set", "select", "(", "on"),
    "update": ("set",),
    "delete": ("where", "order", "limit", "returning"),
    "load": (),
    "with": (),
    "table": (),
}
#: Statements that call functions, which can change any table.
_CALLS = ("call", "do", "select", "values", "(")
#: Statements that change no table rows, and kinds of objects other than tables, as the words after a verb.
_HARMLESS_VERBS = (
    *("analyze", "change", "check", "checksum", "explain", "flush", "grant", "install", "kill", "lock", "optimize"),
    *("purge", "repair", "reset", "revoke", "set", "show", "shutdown", "start", "stop", "uninstall", "unlock", "use"),
)
_OBJECTS = (
    *("aggregate", "algorithm", "catalog", "database", "definer", "event", "fulltext", "function", "index"),
    *(
        "instance",
        "library",
        "logfile",
        "package",
        "prepare",
        "procedure",
        "resource",
        "role",
        "schema",
        "sequence",
        "server",
    ),
    *("spatial", "sql", "srs", "tablespace", "trigger", "undo", "unique", "user", "vector", "view"),
)
_QUOTES = ("'", '"', "`")
#: Words between a verb and its table name.
_FILLERS = ("if", "not", "exists", "ignore", "online", "offline", "or", "replace", "temporary")
#: Clauses of ALTER TABLE that change no row, by their first words.
_HARMLESS = (
    ("add", "index"),
    ("add", "key"),
    ("add", "unique"),
    ("add", "fulltext"),
    ("add", "spatial"),
    ("add", "constraint"),
    ("add", "foreign"),
    ("add", "check"),
    ("drop", "index"),
    ("drop", "key"),
    ("drop", "foreign"),
    ("drop", "constraint"),
    ("drop", "check"),
    ("rename", "index"),
    ("rename", "key"),
    ("alter", "index"),
    ("comment",),
    ("auto_increment",),
    ("algorithm",),
    ("lock",),
    ("engine",),
    ("row_format",),
    ("force",),
    ("disable",),
    ("enable",),
    ("analyze",),
    ("rebuild",),
    ("optimize",),
    ("check",),
    ("reorganize",),
    ("stats_persistent",),
    ("page_compressed",),
)
# Status variables that precede the character set in a query event: their size, or a length-prefixed string.
_MODE, _CHARSET, _STATUS_BYTES, _STATUS_TEXTS = 1, 4, {0: 4, 1: 8, 3: 4}, (6,)
#: Words that give a new column a value in existing rows. Clauses contain no string literals.
_VALUE = re.compile(r"\bnot null\b|\bdefault (?!null\b)|\bdefault$|\bas \(|\bgenerated\b|\bauto_increment\b|\bserial\b")
_INDEX_WORDS = {"index", "key", "unique", "fulltext", "spatial", "constraint", "foreign", "check", "primary"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatement:
    """A statement that creates, changes or removes a table (see `SchemaEvent`)."""

    kind: str
    table: TableName
    renamed_to: TableName | None = None
    changes_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A classified statement.

    Attributes:
        kind: One of the constants of this module.
        tables: The effects on tables, in statement order, for kind `DDL`.
        names: For kind `DML`, the names that can be tables, and other names such as column names. For kind `UNKNOWN`,
            all names.
        is_opaque: Whether a `DML` statement can change any table.
    """

    kind: str
    tables: tuple[TableStatement, ...] = ()
    names: frozenset[TableName] = frozenset()
    is_opaque: bool = False


class _Tokens:
    """The tokens of a statement. Names are without quotes, words in lower case."""

    def __init__(self, items: Sequence[tuple[str, str]], database: str) -> None:
        self.database = database
        self.items = items
        self.place = 0
        #: Whether a required name was missing.
        self.lacks_name = False

    def word(self, ahead: int = 0) -> str:
        """Return the current word in lower case; empty for another token, such as a quoted name."""
        place = self.place + ahead
        kind, text = self.items[place] if place < len(self.items) else ("", "")
        return text.lower() if kind in ("word", "sign") else ""

    def skip(self, *words: str) -> bool:
        """Skip consecutive words; return whether they are present."""
        if all(self.word(n) == word for n, word in enumerate(words)):
            self.place += len(words)
            return True
        return False

    def skip_any(self, words: Sequence[str]) -> None:
        """Skip words in a list."""
        while self.word() in words:
            self.place += 1

    def name(self) -> str:
        """Return the current name and skip it."""
        kind, text = self.items[self.place] if self.place < len(self.items) else ("", "")
        self.place += 1
        self.lacks_name |= kind not in ("name", "word")
        return text[1:-1].replace(text[0] * 2, text[0]) if kind == "name" else text

    def table(self) -> TableName:
        """Return the current table name, in the default database if it is not qualified, and skip it."""
        # `.t` is the table `t` of the default database.
        self.skip(".")
        first = self.name()
        if self.word() == ".":
            self.place += 1
            return TableName(first, self.name())
        return TableName(self.database, first)

    def tables(self) -> Iterator[TableName]:
        """Yield comma-separated table names."""
        yield self.table()
        while self.skip(","):
            yield self.table()


def _tokens(text: str, mode: int) -> Iterator[tuple[str, str]]:
    for match in _token(mode & (ANSI_QUOTES | NO_BACKSLASH_ESCAPES)).finditer(text):
        kind = match.lastgroup or ""
        if kind not in ("space", "hint"):
            yield kind, match[0]


def classify(text: str, database: str, mode: int = 0) -> Statement:
    """Return a statement's kind and the tables that it changes.

    Args:
        text: The statement.
        database: Its default database.
        mode: The session's `sql_mode` in the log.
    """
    items = list(_tokens(text, mode))
    items = items[_statement_place(items) :]
    tokens = _Tokens(items, database)
    statement = _classified(tokens)
    is_damaged = any(kind == "sign" and text in _QUOTES for kind, text in items) or any(
        kind in ("name", "word") and "\ufffd" in text for kind, text in items
    )
    if statement.kind in (DDL, OTHER) and (is_damaged or tokens.lacks_name):
        statement = Statement(kind=UNKNOWN)
    return replace(statement, names=_mentioned(items, database)) if statement.kind == UNKNOWN else statement


def _mentioned(items: Sequence[tuple[str, str]], database: str) -> frozenset[TableName]:
    """Return each name, or pair of names, that can be a table, even inside string literals."""
    names = [("word", text[1:-1]) if kind == "text" else (kind, text) for kind, text in items]
    return _named(_Tokens(names, database), ())


def _statement_place(items: Sequence[tuple[str, str]]) -> int:
    """Return the index of the statement after MariaDB's `SET STATEMENT variable = value FOR`; 0 without this prefix."""
    words = [text.lower() if kind == "word" else "" for kind, text in items]
    return words.index("for") + 1 if words[:2] == ["set", "statement"] and "for" in words else 0


def _classified(tokens: _Tokens) -> Statement:
    first, second = tokens.word(), tokens.word(1)
    if first == "begin" or (first, second) == ("start", "transaction"):
        return Statement(kind=BEGIN)
    if first == "commit":
        return Statement(kind=COMMIT)
    if first == "rollback":
        is_partial = any(tokens.word(n) == "to" for n in (1, 2))
        return Statement(kind=ROLLBACK_TO if is_partial else ROLLBACK)
    if first in ("savepoint", "release"):
        return Statement(kind=SAVEPOINT)
    if first == "xa":
        return Statement(kind=XA)
    if first in _CALLS:
        return Statement(kind=DML, is_opaque=True)
    if first in _DML:
        return Statement(kind=DML, names=_named(tokens, _DML[first]))
    statements = tuple(_table_statements(tokens))
    if statements:
        return Statement(kind=DDL, tables=statements)
    is_known = first in (*_HARMLESS_VERBS, "") or (first in _VERBS and _is_of_object(tokens))
    return Statement(kind=OTHER if is_known else UNKNOWN)


#: Statement verbs for tables and for other objects.
_VERBS = ("create", "alter", "drop", "rename")


def _is_of_object(tokens: _Tokens) -> bool:
    """Return whether a statement affects a temporary table or an object other than a table."""
    words = [text.lower() if kind == "word" else "" for kind, text in tokens.items[1:6]]
    return any(word in ("temporary", *_OBJECTS) for word in words)


def folded(statement: Statement) -> Statement:
    """Return a statement with names in lower case, for a server that stores them so and accepts any case."""

    def lower(name: TableName) -> TableName:
        return TableName(name.database.lower(), name.table.lower())

    tables = tuple(
        replace(one, table=lower(one.table), renamed_to=None if one.renamed_to is None else lower(one.renamed_to))
        for one in statement.tables
    )
    return replace(statement, tables=tables, names=frozenset(map(lower, statement.names)))


def mode_of(status: bytes) -> int:
    """Return a statement's `sql_mode` from its event's status variables; 0 if they lack it."""
    place = 0
    while place < len(status) and status[place] in _STATUS_BYTES:
        if status[place] == _MODE:
            return int.from_bytes(status[place + 1 : place + 9], "little")
        place += 1 + _STATUS_BYTES[status[place]]
    return 0


def charset_of(status: bytes, collations: Mapping[int, str]) -> str:
    """Return a statement's character set from its event's status variables; utf8mb4 if they lack it."""
    place = 0
    while place < len(status):
        code = status[place]
        if code == _CHARSET:
            charset = collations.get(int.from_bytes(status[place + 1 : place + 3], "little"), "utf8mb4")
            return "utf8mb4" if charset == "binary" else charset
        if code in _STATUS_TEXTS:
            place += 2 + status[place + 1]
        elif code in _STATUS_BYTES:
            place += 1 + _STATUS_BYTES[code]
        else:
            break
    return "utf8mb4"


def _named(tokens: _Tokens, ends: Sequence[str]) -> frozenset[TableName]:
    """Return each name, or dotted pair of names, that can be a table, before the first word in `ends`."""
    names = set()
    for place, (kind, text) in enumerate(tokens.items):
        if kind in ("word", "sign") and text.lower() in ends:
            break
        if kind in ("name", "word"):
            tokens.place = place
            names.add(tokens.table())
    return frozenset(names)


def _table_statements(tokens: _Tokens) -> Iterator[TableStatement]:
    if tokens.skip("truncate"):
        tokens.skip("table")
        yield TableStatement(kind="truncate", table=tokens.table())
    elif tokens.skip("drop"):
        yield from _drop(tokens)
    elif tokens.skip("rename", "table") or tokens.skip("rename", "tables"):
        yield from _rename(tokens)
    elif tokens.skip("create"):
        is_temporary = "temporary" in (tokens.word(n) for n in range(3))
        is_replacing = tokens.word() == "or"
        tokens.skip_any(_FILLERS)
        if tokens.skip("table") and not is_temporary:
            tokens.skip_any(_FILLERS)
            yield TableStatement(kind="create", table=tokens.table(), changes_rows=is_replacing)
    elif tokens.skip("alter"):
        tokens.skip_any(_FILLERS)
        if tokens.skip("table"):
            yield from _alter(tokens)


def _drop(tokens: _Tokens) -> Iterator[TableStatement]:
    if tokens.skip("temporary"):
        return
    if tokens.skip("database") or tokens.skip("schema"):
        tokens.skip("if", "exists")
        yield TableStatement(kind="drop", table=TableName(tokens.name(), "*"))
    elif tokens.skip("table") or tokens.skip("tables"):
        tokens.skip("if", "exists")
        for table in tokens.tables():
            yield TableStatement(kind="drop", table=table)


def _rename(tokens: _Tokens) -> Iterator[TableStatement]:
    tokens.skip("if", "exists")
    while True:
        old = tokens.table()
        # MariaDB: WAIT n or NOWAIT before TO.
        while tokens.word() not in ("to", ""):
            tokens.place += 1
        if not tokens.skip("to"):
            return
        yield TableStatement(kind="rename", table=old, renamed_to=tokens.table())
        if not tokens.skip(","):
            return


def _alter(tokens: _Tokens) -> Iterator[TableStatement]:
    tokens.skip("if", "exists")
    table = tokens.table()
    if tokens.skip("wait"):
        tokens.place += 1
    tokens.skip("nowait")
    new_name, changes, removes = None, False, False
    exchanged = None
    for clause in _clauses(tokens):
        words = [text.lower() if kind in ("word", "sign") else "" for kind, text in clause]
        if words[:1] == ["rename"] and words[1:2] not in (["column"], ["index"], ["key"]):
            inner = _Tokens(clause[2 if words[1:2] in (["to"], ["as"], ["="]) else 1 :], tokens.database)
            new_name = inner.table()
            tokens.lacks_name |= inner.lacks_name
        elif words[:2] in (["truncate", "partition"], ["drop", "partition"], ["exchange", "partition"]) or (
            words[:1] in (["discard"], ["import"], ["convert"]) and words[1:2] != ["to"]
        ):
            removes = True
            if words[0] == "exchange" and "with" in words:
                inner = _Tokens(clause[words.index("with") + 2 :], tokens.database)
                exchanged = inner.table()
                tokens.lacks_name |= inner.lacks_name
        else:
            changes |= not _is_harmless(words)
    if removes:
        yield TableStatement(kind="truncate", table=table, changes_rows=True)
        if exchanged is not None:
            yield TableStatement(kind="truncate", table=exchanged, changes_rows=True)
    elif new_name is None or changes:
        yield TableStatement(kind="alter", table=table, changes_rows=changes)
    if new_name is not None:
        yield TableStatement(kind="rename", table=table, renamed_to=new_name)


def _clauses(tokens: _Tokens) -> Iterator[list[tuple[str, str]]]:
    """Yield the clauses of ALTER TABLE, separated by commas outside of parentheses."""
    depth = 0
    clause: list[tuple[str, str]] = []
    for kind, text in tokens.items[tokens.place :]:
        if kind == "sign":
            depth += (text == "(") - (text == ")")
        if kind == "sign" and text == "," and depth == 0:
            yield clause
            clause = []
        elif not (kind == "sign" and text == ";"):
            clause.append((kind, text))
    if clause:
        yield clause


def _is_harmless(words: Sequence[str]) -> bool:
    """Return whether a clause leaves the values of all rows as they are."""
    if any(tuple(words[: len(start)]) == start for start in _HARMLESS):
        return True
    if words[:1] == ["drop"]:
        # A dropped column. A dropped primary key changes the key columns.
        return words[1:2] != ["primary"] and words[1:2] != ["system"] and words[1:2] != ["partition"]
    if words[:1] == ["add"] and not set(words[1:3]) & _INDEX_WORDS:
        if words[1:2] in (["partition"], ["system"], ["period"]):
            return words[1] == "partition"
        # Existing rows get null in a new column without a default.
        return _VALUE.search(" ".join(words)) is None
    return False
