"""Names in statements: keywords, other scripts, case, quotes with dots, and namespaces before columns."""

from __future__ import annotations

import pytest

from lakehouse.errors import UserError
from lakehouse.sql.session import SqlSession
from tests.unit.sql.conftest import rows_of

KEYWORDS = (
    "CREATE TABLE `select`.`table` (`id` INT, `order` STRING, `group` STRING, `from` STRUCT<`select`: INT, `where`: "
    "STRING>, `Case` INT) USING lakehouse PARTITIONED BY (`order`) TBLPROPERTIES (primaryKey = 'id')"
)
LETTERS = (
    "CREATE TABLE x.t (`schlüssel` INT, `größe` INT, `名` STRING, s STRUCT<`naïve`: INT>) USING lakehouse "
    "PARTITIONED BY (`名`) TBLPROPERTIES (primaryKey = 'schlüssel', orderingFields = 'größe', type = 'mor')"
)


@pytest.fixture
def keywords(session: SqlSession) -> SqlSession:
    """Return a session with a table whose names are keywords."""
    session.execute(KEYWORDS)
    session.execute("INSERT INTO `select`.`table` VALUES (1, 'a', 'g', {'select': 7, 'where': 'w'}, 1)")
    return session


def test_keywords_are_names_in_every_clause(keywords: SqlSession) -> None:
    name = "`select`.`table`"
    keywords.execute(f"INSERT INTO {name} (`id`, `order`, `Case`) VALUES (2, 'b', 1)")
    keywords.execute(f"INSERT OVERWRITE {name} PARTITION (`order` = 'b') (`id`, `group`) VALUES (3, 'h')")
    keywords.execute(f"UPDATE {name} AS `where` SET `where`.`group` = 'x' WHERE `where`.`from`.`select` = 7")
    keywords.execute(f"UPDATE {name} SET {name}.`case` = {name}.`Case` + 1 WHERE {name}.`order` = 'a'")
    keywords.execute(
        f"MERGE INTO {name} USING (SELECT 3 AS `id`, 'b' AS `order`) AS `using` ON {name}.`id` = `using`.`id` "
        f"WHEN MATCHED AND {name}.`group` = 'h' THEN UPDATE SET {name}.`Case` = {name}.`id` + 6"
    )
    query = f"SELECT `id`, t.`order`, `group`, t.`from`.`select`, `Case` FROM {name} t ORDER BY `id`"
    assert rows_of(keywords, query) == [(1, "a", "x", 7, 2), (3, "b", "h", None, 9)]
    assert rows_of(keywords, f"SHOW PARTITIONS {name} PARTITION (`order` = 'a')") == [("a",)]
    for text in ("select.table", "`select`.`table`", '"select"."table"'):
        assert rows_of(keywords, f"SELECT count(*) FROM hudi_table_changes('{text}', 'latest_state', 'earliest')")
        assert rows_of(keywords, f"CALL show_commits(table => '{text}', limit => 1)")


def test_created_statement_of_a_table_creates_it_again(session: SqlSession) -> None:
    session.execute(
        "CREATE TABLE `my-ns`.`my-table` (`größe` INT, `order` STRING) USING lakehouse "
        "TBLPROPERTIES (primaryKey = 'größe')"
    )
    text = rows_of(session, "SHOW CREATE TABLE `my-ns`.`my-table`")[0][0]
    assert text.startswith("CREATE TABLE `my-ns`.`my-table` (\n  `größe` INT,")
    session.execute("DROP TABLE `my-ns`.`my-table` PURGE")
    session.execute(text)
    assert rows_of(session, "SHOW COLUMNS IN `my-ns`.`my-table`") == [("größe",), ("order",)]


def test_letters_of_all_scripts_are_names_of_columns(session: SqlSession) -> None:
    session.execute(LETTERS)
    session.execute("INSERT INTO x.t VALUES (1, 1, 'a b', {'naïve': 1}), (2, 2, 'ü', {'naïve': 2})")
    session.execute(
        "MERGE INTO x.t AS z USING (SELECT 2 AS `schlüssel`, 9 AS `größe`, 'ü' AS `名`) q "
        "ON z.`schlüssel` = q.`schlüssel` "
        "WHEN MATCHED THEN UPDATE SET `größe` = q.`größe`"
    )
    session.execute("CALL lakehouse.compaction(table => 'x.t', op => 'run', force => true)")
    query = "SELECT schlüssel, `größe`, 名, s.`naïve` FROM x.t WHERE größe >= 1 ORDER BY 1"
    assert rows_of(session, query) == [(1, 1, "a b", 1), (2, 9, "ü", 2)]
    session.execute("ALTER TABLE x.t RENAME COLUMN s TO `straße`")
    session.execute("ALTER TABLE x.t DROP PARTITION (`名` = 'ü')")
    assert rows_of(session, "SELECT straße.`naïve` FROM x.t") == [(1,)]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE `select`.`table` DROP COLUMN `from.where`",
        "ALTER TABLE `select`.`table` RENAME COLUMN `from.where` TO x",
        "ALTER TABLE `select`.`table` ALTER COLUMN `from.where` COMMENT 'x'",
        "UPDATE `select`.`table` SET `from.where` = 'x'",
        "DELETE FROM `select`.`table` WHERE `from.select` = 7",
        "INSERT INTO `select`.`table` (id, `from.where`) VALUES (1, 'x')",
    ],
)
def test_quoted_names_with_dots_do_not_mean_fields(keywords: SqlSession, statement: str) -> None:
    with pytest.raises(UserError, match=r"write `from`\.`(where|select)` for a field"):
        keywords.execute(statement)
    assert rows_of(keywords, "SELECT `from`.`where` FROM `select`.`table`") == [("w",)]


@pytest.mark.parametrize(("name", "similar"), [("a b", "a_b"), ("1st", "_1st"), ("a.b", "a_b"), ("a-b", "a_b")])
def test_illegal_names_of_columns_are_refused_with_a_similar_name(session: SqlSession, name: str, similar: str) -> None:
    declared = "USING lakehouse TBLPROPERTIES (primaryKey = 'id')"
    with pytest.raises(UserError, match=f"for example '{similar}'|no column can have"):
        session.execute(f"CREATE TABLE x.t (id INT, `{name}` INT) {declared}")
    with pytest.raises(UserError, match=f"for example '{similar}'"):
        session.execute(f"CREATE TABLE x.t {declared} AS SELECT 1 AS id, 2 AS `{name}`")
    session.execute(f"CREATE TABLE x.t {declared} AS SELECT 1 AS id, 2 AS `{similar}`")
    with pytest.raises(UserError, match="meta column"):
        session.execute(f"CREATE TABLE x.u (id INT, _hoodie_record_key STRING) {declared}")


def test_names_that_differ_in_case_are_found_unless_several_do(session: SqlSession) -> None:
    declared = "(id INT) USING lakehouse TBLPROPERTIES (primaryKey = 'id')"
    session.execute(f"CREATE TABLE `Sales`.`Orders` {declared}")
    session.execute("INSERT INTO sales.orders VALUES (1)")
    assert rows_of(session, "SELECT id FROM SALES.orders") == [(1,)]
    with pytest.raises(UserError, match=r"Sales\.Orders exists already"):
        session.execute(f"CREATE TABLE sales.ORDERS {declared}")
    session.execute(f"CREATE TABLE sales.items {declared}")
    assert rows_of(session, "SHOW TABLES IN sales") == [("Sales", "Orders", False), ("Sales", "items", False)]
    location = rows_of(session, "SHOW CREATE TABLE sales.orders")[0][0].partition("LOCATION '")[2].partition("'")[0]
    session.execute("DROP TABLE sales.orders")
    session.catalog.register_table("sales.oRDERS", location)
    assert rows_of(session, "SELECT id FROM Sales.Orders") == [(1,)]
