"""The interactive shell of `lakehouse sql`: history and completion by prompt_toolkit, otherwise plain input."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from lakehouse.cli.group import Given
from lakehouse.cli.sql import print_rows
from lakehouse.errors import LakehouseError
from lakehouse.model.texts import printable
from lakehouse.spec.secrets import redact_text
from lakehouse.sql.procedures import PROCEDURES
from lakehouse.sql.session import SqlSession
from lakehouse.sql.tokens import split_statements

_PROMPT, _MORE = "sql> ", "...> "
_WELCOME = "Statements end with `;`. SHOW TABLES IN namespace, DESCRIBE, CALL lakehouse.help(); `exit` or Ctrl-D ends."
_ENDS = ("exit", "quit", "\\q")
_KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "WITH", "INSERT INTO", "INSERT OVERWRITE"),
    *("VALUES", "UPDATE", "SET", "DELETE FROM", "MERGE INTO", "USING", "WHEN MATCHED THEN", "WHEN NOT MATCHED THEN"),
    *(
        "CREATE TABLE",
        "USING lakehouse",
        "PARTITIONED BY",
        "TBLPROPERTIES",
        "ALTER TABLE",
        "DROP TABLE",
        "TRUNCATE TABLE",
    ),
    *("SHOW TABLES", "SHOW NAMESPACES", "SHOW PARTITIONS", "SHOW CREATE TABLE", "DESCRIBE", "USE", "CALL"),
    *("VERSION AS OF", "TIMESTAMP AS OF", "hudi_table_changes(", "hudi_query_timeline("),
)


def run_shell(session: SqlSession, catalog: Any, given: Given) -> None:
    """Read statements and print their rows until the user ends the shell. An error does not end it."""
    read = _reader(catalog)
    print(_WELCOME)
    for statement in _statements(read, session.engine.dialect):
        try:
            print_rows(session.execute(statement), given.format, given.limit)
        except LakehouseError as error:
            print(f"{type(error).__name__}: {printable(redact_text(str(error)), keep=chr(10))}", file=sys.stderr)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)


def completions(catalog: Any, word: str) -> list[str]:
    """Return the keywords, procedures and table names that begin with the typed characters."""
    names = [entry.identifier for entry in catalog.list_tables()]
    procedures = [f"lakehouse.{name}" for name in PROCEDURES]
    candidates = [*_KEYWORDS, *names, *procedures]
    return [name for name in candidates if name.lower().startswith(word.lower())]


def _statements(read: Callable[[str], str], dialect: str) -> Iterator[str]:
    """Yield complete statements; Ctrl-C drops the lines of an incomplete one."""
    lines: list[str] = []
    while True:
        try:
            line = read(_MORE if lines else _PROMPT)
        except KeyboardInterrupt:
            lines = []
            continue
        except EOFError:
            return
        if not lines and line.strip().rstrip(";").lower() in _ENDS:
            return
        lines.append(line)
        text = "\n".join(lines)
        if not text.strip():
            lines = []
        elif text.rstrip().endswith(";") and _is_complete(text, dialect):
            lines = []
            yield from split_statements(text, dialect)


def _is_complete(text: str, dialect: str) -> bool:
    """Return whether the last semicolon is not inside of a string or a comment."""
    try:
        return bool(split_statements(text + " SELECT", dialect)[-1] == "SELECT")
    except LakehouseError:
        return False


def _reader(catalog: Any) -> Callable[[str], str]:
    try:
        toolkit = import_module("prompt_toolkit")
        completion, history = import_module("prompt_toolkit.completion"), import_module("prompt_toolkit.history")
    except ImportError:
        return input

    class Names(completion.Completer):  # type: ignore[misc, name-defined]
        """Completes the word before the cursor."""

        def get_completions(self, document: Any, _: Any) -> Iterator[Any]:
            """Yield the completions of prompt_toolkit."""
            word = document.get_word_before_cursor(WORD=True)
            if word:
                yield from (completion.Completion(name, -len(word)) for name in completions(catalog, word))

    prompt = toolkit.PromptSession(
        history=history.FileHistory(str(_history())), completer=Names(), complete_while_typing=False
    )
    return lambda text: str(prompt.prompt(text))


def _history() -> Path:
    """Return the file of the history, which only this user can read."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "lakehouse"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "sql_history"
    if not file.exists():
        file.touch(mode=0o600)
    return file
