"""The corpus: statements with their rows, or with the message of the refusal, run by DuckDB in the order of the files.

STATEMENT;
-- > [[1, "a"]]       the rows as JSON; in any order unless the statement has ORDER BY
-- ! message          a regular expression that the message of the refusal matches
-- only: spark        runs by one engine only
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.sql.session import SqlSession
from tests.support.sql_corpus import CORPUS, problems, statements


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*.sql")), ids=lambda file: file.stem)
def test_statements_of_the_corpus_return_their_rows_or_are_refused(file: Path, session: SqlSession) -> None:
    assert list(problems(session, file, "duckdb")) == []


def test_corpus_has_at_least_300_statements() -> None:
    assert sum(len(statements(file)) for file in CORPUS.glob("*.sql")) >= 300
