"""SQL of specs reads its views only: no Java methods, commands, files or variables without permission."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakehouse.errors import UserError
from lakehouse.spark.transforms import run_query, selected_columns
from lakehouse.spec.command_check import check_declared
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.sql_text import ALLOWED_SQL, FILES, REFLECT, SCRIPT, VARIABLES, allowed_features, features_of
from lakehouse.spec.table.table_spec import parse_spec

#: Queries by the feature that they use.
USED = {
    "SELECT reflect('java.lang.System', 'getenv', 'HOME') FROM batch": REFLECT,
    "SELECT JAVA_METHOD ('java.lang.System', 'exit', 0) FROM batch": REFLECT,
    "SELECT try_reflect/* a /* nested */ comment */('java.lang.System', 'getenv', 'HOME') FROM batch": REFLECT,
    "SELECT `reflect`('java.lang.System', 'getenv', 'HOME') FROM batch": REFLECT,
    "SELECT system.builtin.reflect('java.lang.System', 'getenv', 'HOME') FROM batch": REFLECT,
    "SELECT -- comment\rreflect('java.lang.System', 'getenv', 'HOME') FROM batch": REFLECT,
    "SELECT -- comment\nreflect('java.lang.System', 'getenv', 'HOME') FROM batch": REFLECT,
    "SELECT r'\\', reflect('java.lang.System', 'getenv', 'HOME'), r'\\' FROM batch": REFLECT,
    "SELECT 'it''s', reflect('java.lang.System', 'getenv', 'HOME') FROM batch": REFLECT,
    "SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'getenv', 'HOME') FROM batch": REFLECT,
    "WITH a AS (SELECT reflect('java.lang.System', 'getenv', 'HOME') x FROM batch) SELECT * FROM a": REFLECT,
    "SELECT * FROM batch WHERE id IN (SELECT reflect('java.lang.System', 'getenv', 'HOME'))": REFLECT,
    "SELECT TRANSFORM(id) USING 'cat /etc/hostname' AS (id STRING) FROM batch": SCRIPT,
    'SELECT TRANSFORM(id) USING "cat" AS (id STRING) FROM batch': SCRIPT,
    "SELECT * FROM text.`/etc/hostname`": FILES,
    "SELECT * FROM batch JOIN csv . `file:/etc/passwd`": FILES,
    "SELECT '${env:HOME}' FROM batch": VARIABLES,
    "SELECT '${ System:user.home}' FROM batch": VARIABLES,
    "SELECT '${spark.app.name}' FROM batch": VARIABLES,
}
#: Queries that only look like one of them.
PLAIN = (
    "SELECT 'reflect(' AS a, \"java_method(x)\" AS b, id AS reflect FROM batch -- reflect('x')",
    "SELECT /* reflect('java.lang.System') */ id, 'it\\'s reflect(1)' AS a FROM batch",
    "SELECT b.`a/b`, transform(array(1), x -> x + 1) AS c FROM (SELECT id, 1 AS `a/b` FROM batch) b",
    "SELECT a.id FROM batch a JOIN batch b USING (id)",
    "SELECT regexp_replace(id, '[$]{x}', '/') AS id FROM batch",
)


@pytest.fixture(scope="module")
def batch(spark: Any) -> dict[str, Any]:
    """Return the views of a query."""
    return {"batch": spark.createDataFrame([("a",)], "id string")}


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOWED_SQL, raising=False)


def test_query_with_a_feature_beyond_its_views_is_refused(batch: dict[str, Any]) -> None:
    """apache/spark#56509, apache/spark#58604, apache/hive#6102: SQL calls Java methods, and runs scripts."""
    for sql, feature in USED.items():
        assert feature in {found for found, _ in features_of(sql)}, sql
        with pytest.raises(UserError, match=rf"with the rights of the job.*{ALLOWED_SQL}={feature}"):
            run_query(sql, batch)
    with pytest.raises(UserError, match=r"ingest\.select: reflect\(\)"):
        selected_columns(batch["batch"], ["id", "reflect('java.lang.System', 'getenv', 'HOME') AS x"])


def test_query_that_names_such_a_feature_in_literals_and_comments_runs(batch: dict[str, Any]) -> None:
    """apache/spark#58604: a restriction looks at calls, not at words."""
    for sql in PLAIN:
        assert list(features_of(sql)) == [] and run_query(sql, batch).count() == 1, sql
    assert selected_columns(batch["batch"], ["'reflect(1)' AS x"]).collect()[0].x == "reflect(1)"


def test_file_without_a_slash_is_no_relation_and_settings_of_the_session_are_restored(
    batch: dict[str, Any], spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apache/spark#58604: a relation that is a path is resolved by Spark, whatever its text looks like."""
    (tmp_path / "secret").write_text("x\n", encoding="utf-8")
    names = ("spark.sql.runSQLOnFiles", "spark.sql.variable.substitute")
    before = [spark.conf.get(name) for name in names]
    with pytest.raises(UserError, match=r"`text`\.`secret` cannot be found"):
        run_query("SELECT * FROM text.secret", batch)
    assert run_query("SELECT '${spark_app_name}' AS x FROM batch", batch).collect()[0].x == "${spark_app_name}"
    assert [spark.conf.get(name) for name in names] == before
    monkeypatch.setenv(ALLOWED_SQL, "files, Variables,reflect")
    assert run_query(f"SELECT value FROM text.`{tmp_path}/secret`", batch).collect()[0].value == "x"
    shown = run_query("SELECT reflect('java.lang.Math', 'abs', -1) AS x FROM batch", batch).collect()
    assert shown[0].x == "1"
    assert [spark.conf.get(name) for name in names] == before


def test_backslashes_of_the_session_cannot_hide_a_call(batch: dict[str, Any], spark: Any) -> None:
    """apache/spark#56509: the text is read as the session reads it."""
    hidden = "SELECT '\\', reflect('java.lang.Math', 'abs', -1), '\\' FROM batch"
    assert list(features_of(hidden)) == []
    spark.conf.set("spark.sql.parser.escapedStringLiterals", "true")
    try:
        with pytest.raises(UserError, match="reflect"):
            run_query(hidden, batch)
    finally:
        spark.conf.unset("spark.sql.parser.escapedStringLiterals")


SPEC = """
table: sales.orders
location: {place}/orders
record_key: [id]
ingest:
  path: {place}/landing
  format: json
  {section}
"""


def test_check_refuses_the_query_and_names_the_variable_that_allows_it(tmp_path: Path) -> None:
    """apache/spark-website#602: SQL is code, so the deployment decides which of it runs."""
    sections = {
        "transform: {sql: \"SELECT reflect('java.lang.System', 'getenv', 'HOME') AS id FROM batch\"}": REFLECT,
        "select: [\"java_method('java.lang.System', 'getenv', 'HOME') AS id\"]": REFLECT,
    }
    command = IngestCommand(table="orders.yaml")
    for section, feature in sections.items():
        spec = parse_spec(SPEC.format(place=tmp_path, section=section), source="orders.yaml")
        with pytest.raises(UserError, match=rf"orders.yaml: ingest.*{ALLOWED_SQL}={feature}"):
            check_declared(spec, command, {})
        check_declared(spec, command, {ALLOWED_SQL: feature})
    with pytest.raises(UserError, match="'reflects' is no feature of SQL; known are reflect, script"):
        allowed_features({ALLOWED_SQL: "reflects"})
