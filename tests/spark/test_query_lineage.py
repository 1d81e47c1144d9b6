"""Column lineage of SQL transforms: sources of each column, from the plan that Spark analyses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, StringType, StructType

from lakehouse.spark.plan_lineage import NotUnderstoodError, Origin, plan_lineage
from lakehouse.spark.query_lineage import query_lineage, select_lineage
from lakehouse.spec.contracts.lineage import LineageKind

pytestmark = pytest.mark.spark

TAGS = ArrayType(StringType())
A = StructType().add("id", "string").add("v", "integer").add("at", "integer").add("tags", TAGS)
B = StructType().add("id", "string").add("w", "integer")
KINDS = {"": LineageKind.IDENTITY, "T": LineageKind.TRANSFORMATION, "A": LineageKind.AGGREGATION}
STAR = {name: f"a.{name}" for name in A.names}

#: Queries over a (id, v, at, tags) and b (id, w): the sources of each column by kind, and of the rows.
LINEAGE: list[tuple[str, dict[str, str], str]] = [
    ("SELECT id AS k, v + 1 AS n, 7 AS c FROM a", {"k": "a.id", "n": "a.v:T", "c": ""}, ""),
    ("SELECT *, CAST(v AS string) AS t FROM a", {**STAR, "t": "a.v:T"}, ""),
    ("SELECT v AS x, x * 2 AS y FROM a", {"x": "a.v", "y": "a.v:T"}, ""),
    ("SELECT A.ID FROM a AS A WHERE v > 0 ORDER BY at", {"ID": "a.id"}, "a.v:FILTER a.at:SORT"),
    ("SELECT a.id, w FROM a JOIN b ON a.id = b.id", {"id": "a.id", "w": "b.w"}, "a.id:JOIN b.id:JOIN"),
    ("SELECT id, w FROM a FULL JOIN b USING (id)", {"id": "a.id:T b.id:T", "w": "b.w"}, "a.id:JOIN b.id:JOIN"),
    ("SELECT v FROM a LEFT SEMI JOIN b ON a.id = b.id", {"v": "a.v"}, "a.id:JOIN b.id:JOIN"),
    ("SELECT x.v, y.at FROM a x CROSS JOIN a y", {"v": "a.v", "at": "a.at"}, ""),
    (
        "SELECT id, sum(v) + 1 AS s, count(*) AS n FROM a GROUP BY id HAVING max(at) > 0",
        {"id": "a.id", "s": "a.v:A", "n": ""},
        "a.id:GROUP_BY a.at:FILTER",
    ),
    ("SELECT sum(v) FILTER (WHERE at > 0) AS s FROM a", {"s": "a.v:A a.at:FILTER"}, ""),
    ("SELECT id, sum(v) AS s FROM a GROUP BY ROLLUP (id)", {"id": "a.id", "s": "a.v:A"}, "a.id:GROUP_BY"),
    (
        "SELECT sum(v) OVER (PARTITION BY id ORDER BY at) AS s, rank() OVER (ORDER BY v) AS r,"
        " lag(v) OVER (ORDER BY at) AS l FROM a",
        {"s": "a.v:A a.id:WINDOW a.at:WINDOW", "r": "a.v:WINDOW", "l": "a.v:T a.at:WINDOW"},
        "",
    ),
    ("SELECT id, v FROM a UNION ALL SELECT id, w + 1 FROM b", {"id": "a.id b.id", "v": "a.v b.w:T"}, ""),
    ("SELECT id FROM a UNION SELECT 'none'", {"id": "a.id"}, ""),
    ("SELECT id FROM a INTERSECT SELECT id FROM b", {"id": "a.id"}, "b.id:FILTER"),
    (
        "WITH t AS (SELECT id, v * 2 AS d FROM a), unused AS (SELECT id FROM b WHERE w > 0) SELECT p.id, q.d"
        " FROM t p JOIN t q ON p.id = q.id",
        {"id": "a.id", "d": "a.v:T"},
        "a.id:JOIN",
    ),
    ("SELECT s.n FROM (SELECT max(v) AS n FROM a) s", {"n": "a.v:A"}, ""),
    (
        "SELECT id, (SELECT max(w) FROM b WHERE b.id = a.id) AS m FROM a",
        {"id": "a.id", "m": "b.w:A"},
        "a.id:FILTER b.id:FILTER",
    ),
    ("SELECT v FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.id = a.id)", {"v": "a.v"}, "a.id:FILTER b.id:FILTER"),
    ("SELECT v FROM a WHERE id NOT IN (SELECT id FROM b)", {"v": "a.v"}, "a.id:FILTER b.id:FILTER"),
    (
        "SELECT CASE WHEN v > 0 THEN id WHEN at > 0 THEN 'x' ELSE tags[0] END AS c, if(v > 1, at, 0) AS i FROM a",
        {"c": "a.id:T a.tags:T a.v:CONDITIONAL a.at:CONDITIONAL", "i": "a.at:T a.v:CONDITIONAL"},
        "",
    ),
    ("SELECT plus_one(v) AS p, upper(id) AS u, current_date() AS d FROM a", {"p": "a.v:T", "u": "a.id:T", "d": ""}, ""),
    ("SELECT id, tag FROM a LATERAL VIEW explode(tags) t AS tag", {"id": "a.id", "tag": "a.tags:T"}, ""),
    ("SELECT transform(tags, one -> concat(one, id)) AS t FROM a", {"t": "a.tags:T a.id:T"}, ""),
    ("SELECT l.z FROM a, LATERAL (SELECT w + v AS z FROM b) l", {"z": "a.v:T b.w:T"}, ""),
    (
        "SELECT * FROM (SELECT id, v FROM a) PIVOT (sum(v) FOR id IN ('x', 'y'))",
        {"x": "a.v:A a.id:CONDITIONAL", "y": "a.v:A a.id:CONDITIONAL"},
        "a.id:GROUP_BY",
    ),
    ("SELECT DISTINCT id, p FROM a CROSS JOIN VALUES (1) AS t(p) LIMIT 3", {"id": "a.id", "p": ""}, ""),
]


def origins(text: str) -> set[Origin]:
    """Return `a.v:T` and `b.id:JOIN` as origins."""
    found = set()
    for word in text.split():
        source, _, kind = word.partition(":")
        view, _, column = source.partition(".")
        found.add((view, column, KINDS[kind] if kind in KINDS else LineageKind(kind)))
    return found


@pytest.mark.parametrize(("sql", "columns", "influences"), LINEAGE)
def test_query_lineage_names_the_sources_of_each_column_and_of_the_rows(
    sql: str, columns: dict[str, str], influences: str, spark: SparkSession
) -> None:
    spark.udf.register("plus_one", lambda value: value)
    found = query_lineage(spark, sql, {"a": A, "b": B})
    assert [(one.name, set(one.origins)) for one in found.columns] == [(k, origins(v)) for k, v in columns.items()]
    assert found.influences == origins(influences)
    assert not spark.catalog.tableExists("a"), "the views are dropped"


def test_select_lineage_names_the_sources_of_expressions_and_of_a_star(spark: SparkSession) -> None:
    found = select_lineage(spark, ["*", "cast(v AS string) AS t", "at AS v2", "v2 + 1 AS v3"], "a", A)
    assert {one.name: set(one.origins) for one in found.columns} == {
        **{name: origins(text) for name, text in STAR.items()},
        "t": origins("a.v:T"),
        "v2": origins("a.at"),
        "v3": origins("a.at:T"),
    }


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT x.id FROM a JOIN other x", "view other is no input"),
        ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT n FROM t", "UnionLoop"),
    ],
)
def test_query_lineage_refuses_a_plan_that_it_does_not_understand(sql: str, message: str, spark: SparkSession) -> None:
    spark.range(3).createOrReplaceTempView("other")
    try:
        with pytest.raises(NotUnderstoodError, match=message):
            query_lineage(spark, sql, {"a": A})
    finally:
        spark.catalog.dropTempView("other")


def test_plan_lineage_of_an_analysed_frame_over_another_relation_is_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1)], "id string, v int").selectExpr("id")
    with pytest.raises(NotUnderstoodError, match="LogicalRDD is not understood"):
        plan_lineage(frame._jdf.queryExecution().analyzed().toJSON(), ["a"])


def node(kind: str, *children: list[Any], **fields: Any) -> list[Any]:
    """Return a node of a plan as Spark prints it: a list in preorder."""
    own = {"class": f"org.apache.spark.sql.{kind}", "num-children": len(children), **fields}
    return [own, *(one for child in children for one in child)]


def column(name: str, number: int) -> list[Any]:
    return node("AttributeReference", name=name, exprId={"id": number})


def alias(name: str, number: int, value: list[Any]) -> list[Any]:
    return node("Alias", value, name=name, exprId={"id": number})


def project(below: list[Any], *columns: list[Any]) -> list[Any]:
    return node("Project", below, projectList=list(columns))


VIEW = node(
    "View",
    node("LogicalRDD", output=[column("id", 1), column("v", 2)]),
    desc={"identifier": {"table": "a"}},
    isTempView=True,
)
#: An expression that keeps a column where this project does not look for one.
UNKNOWN = node("Mystery", hidden=column("v", 2))


def test_expression_of_unknown_lineage_makes_only_the_columns_that_use_it_unknown() -> None:
    below = project(VIEW, column("id", 1), alias("m", 3, UNKNOWN), alias("n", 4, node("Abs", column("v", 2))))
    sums = alias("s", 5, node("Add", column("m", 3), column("n", 4)))
    union = node("Union", project(below, column("id", 1), sums, column("n", 4)), project(VIEW, *[column("id", 1)] * 3))
    found = plan_lineage(json.dumps(union), ["a"])
    assert [(one.name, set(one.origins), one.unknown) for one in found.columns] == [
        ("id", origins("a.id"), ""),
        ("s", set(), "expression Mystery is not understood"),
        ("n", origins("a.v:T a.id"), ""),
    ]


def test_condition_of_unknown_lineage_makes_the_rows_and_so_the_plan_unknown() -> None:
    below = project(VIEW, column("id", 1), alias("m", 3, UNKNOWN))
    for condition in (UNKNOWN, column("m", 3)):
        with pytest.raises(NotUnderstoodError, match="expression Mystery is not understood"):
            plan_lineage(json.dumps(node("Filter", below, condition=condition)), ["a"])
