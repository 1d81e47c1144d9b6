"""Indexes on expressions: declared, built beside writers, maintained by each action, and used by reads."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.metadata.place import listed_partitions
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.metadata import metadata_of
from lakehouse.core.operations.services.index import Indexed
from lakehouse.core.table.table import Table
from lakehouse.errors import UnsupportedError, UserError

Row = tuple[str, str, int, int | None, str | None]

HOUR, DAY, UPPER = "by_hour=hour(at)", "by_day=from_unixtime(ts, yyyy-MM-dd)", "by_name=bloom_filters:upper(name)"
#: Conditions with the record keys of the rows that `rides` leaves.
CONDITIONS = {
    "hour(at) = 4": ["k2", "k6"],
    "hour(at) IN (22, 6)": ["k1", "k3", "k7"],
    "hour(at) > 20": ["k1"],
    "hour(at) BETWEEN 2 AND 4": ["k2", "k5", "k6"],
    "hour(at) IS NULL": ["n"],
    "hour(at) IS NOT NULL AND day = 'd'": ["k3", "k7"],
    "NOT hour(at) > 2": ["k0", "k4", "k5"],
    "NOT (hour(at) = 4 OR hour(at) = 6)": ["k0", "k1", "k4", "k5"],
    "hour(at) != 0": ["k1", "k2", "k3", "k5", "k6", "k7"],
    "from_unixtime(ts, 'yyyy-MM-dd') = '2023-11-16'": ["k2"],
    "from_unixtime(ts, 'yyyy-MM-dd') >= '2027'": ["k1"],
    "from_unixtime(ts, 'yyyy-MM-dd') LIKE '2023-11-1%'": ["k0", "k2", "k3", "k4", "k5"],
    "upper(name) = 'NAME5'": ["k5"],
    "upper(name) IN ('ZOË', 'NAME6')": ["k1", "k6"],
    "upper(name) = 'name5'": [],
    "length(name) = 3": ["k1"],
    "year(at) = 2024 AND hour(at) = 0": ["k0", "k4"],
    "year(at) < 2024": [],
}


def rides(*rows: Row) -> pa.Table:
    times = [None if row[3] is None else dt.datetime(2024, 1, 1, row[3], 30) for row in rows]
    return pa.table(
        {
            "id": [row[0] for row in rows],
            "day": [row[1] for row in rows],
            "ts": pa.array([row[2] for row in rows], pa.int64()),
            "at": pa.array(times, pa.timestamp("us", "UTC")),
            "name": pa.array([row[4] for row in rows], pa.string()),
        }
    )


def new_table(folder: Path, *declared: str, kind: str = "COPY_ON_WRITE", **settings: Any) -> Table:
    table = Table.create(
        str(folder / "rides"),
        name="rides",
        record_key="id",
        ordering="ts",
        table_type=kind,
        **{"partition_by": "day", **settings},
    )
    for text in declared:
        table.services.create_expression_index(text)
    return table


def indexed_table(folder: Path, kind: str, *declared: str) -> Table:
    """Return a table in which hours, days and names differ by partition."""
    table = new_table(folder, *declared, kind=kind)
    first = [(f"k{n}", "abcd"[n % 4], 1_700_000_000 + 86_400 * n, 2 * (n % 4), f"Name{n}") for n in range(8)]
    table.upsert(rides(*first))
    assert isinstance(table.services.index.run(), Indexed)
    table.upsert(rides(("k1", "b", 1_800_000_000, 22, "Zoë"), ("n", "d", 1, None, None), ("x", "c", 5, 1, "x")))
    table.delete(["x"])
    return table


def names_of(table: Table, where: str) -> list[str]:
    return sorted(table.scan(["id"], where).to_arrow().column(0).to_pylist())


def assert_valid(table: Table) -> None:
    report = table.metadata.validate()
    assert report.ok, [f"{check!r} {check.examples}" for check in report.checks if not check.ok]


def records(table: Table, name: str) -> list[dict[str, Any]]:
    metadata = metadata_of(table.refresh())
    assert metadata is not None
    found: list[dict[str, Any]] = metadata.records(name).to_pylist()
    return found


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_rows_of_a_condition_with_functions_do_not_depend_on_indexes(kind: str, tmp_path: Path) -> None:
    declared = (HOUR, DAY, UPPER) if kind == "COPY_ON_WRITE" else (HOUR, DAY)
    table = indexed_table(tmp_path, kind, *declared)
    with_index = {where: names_of(table, where) for where in CONDITIONS}
    used = {where: [step.name for step in table.scan(["id"], where).explain()] for where in CONDITIONS}
    for text in declared:
        table.services.drop_index(text.partition("=")[0])
    assert with_index == CONDITIONS == {where: names_of(table, where) for where in CONDITIONS}
    assert sum(bool({"expression_index", "expression_partitions"} & set(steps)) for steps in used.values()) >= 10


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_ranges_of_results_skip_files_that_ranges_of_the_column_do_not(kind: str, tmp_path: Path) -> None:
    table = indexed_table(tmp_path, kind, HOUR)
    # Rows of partitions describe the newest version only, so the files of another one are judged one by one.
    newest = table.timeline.writes().instants[-1].requested
    steps = table.scan(["id"], "hour(at) = 0", as_of=newest).explain()
    assert steps.step("column_stats").slices == 4
    assert steps.step("expression_index").slices == 1
    assert steps.step("expression_index").reason == "by_hour: results of functions exclude 3 slices"
    assert table.scan(["id"], "hour(at) = 23", as_of=newest).explain().step("expression_index").slices == 0


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_ranges_of_results_in_partitions_skip_partitions(kind: str, tmp_path: Path) -> None:
    table = indexed_table(tmp_path, kind, HOUR)
    steps = table.scan(["id"], "hour(at) = 0 AND upper(name) != 'X'").explain()
    assert steps.step("partition_stats").partitions == 4
    assert steps.step("expression_partitions").partitions == steps.step("files").partitions == 1
    assert steps.step("expression_partitions").reason == "by_hour: results of functions exclude 3 partitions"
    assert table.scan(["id"], "hour(at) = 23").explain().step("files").files == 0
    either = table.scan(["id"], "hour(at) = 0 OR hour(at) > 21")
    assert either.explain().step("expression_partitions").partitions == 2
    assert sorted(either.to_arrow().column(0).to_pylist()) == ["k0", "k1", "k4"]
    assert table.scan(["id"], "hour(at) = 0 OR name = 'Name6'").explain().step("expression_partitions").partitions == 4
    assert table.scan(["id"], "hour(at) IS NULL").explain().step("expression_partitions").partitions == 1


def test_rows_of_a_partition_that_an_overwrite_or_a_later_write_changes_are_found(tmp_path: Path) -> None:
    table = indexed_table(tmp_path, "COPY_ON_WRITE", HOUR)
    table.upsert(rides(("k0", "a", 2 * 10**9, 13, "v"), ("new", "e", 1, 14, "w")))
    table.insert_overwrite(rides(("k9", "b", 1, 15, "x")))
    found = {hour: names_of(table, f"hour(at) = {hour}") for hour in (13, 14, 15, 22)}
    assert found == {13: ["k0"], 14: ["new"], 15: ["k9"], 22: []}
    assert table.scan(["id"], "hour(at) = 22").explain().step("expression_partitions").partitions == 0


def test_bloom_filters_of_results_skip_files(tmp_path: Path) -> None:
    table = indexed_table(tmp_path, "COPY_ON_WRITE", UPPER)
    assert table.scan(["id"], "upper(name) = 'NAME5'").explain().step("expression_index").slices == 1
    other = table.scan(["id"], "upper(name) = 'ZOË'").explain().step("expression_index")
    assert other.slices == 4, "Hudi adds other characters than ASCII in the encoding of its process"
    assert table.scan(["id"], "upper(name) > 'A'").explain().step("expression_index").slices == 4


def test_functions_that_keep_order_prune_by_ranges_of_the_column_without_an_index(tmp_path: Path) -> None:
    table = indexed_table(tmp_path, "COPY_ON_WRITE", HOUR)
    assert table.scan(["id"], "year(at) > 2024").explain().step("partition_stats").partitions == 0
    late = table.scan(["id"], "from_unixtime(ts) > '2027'")
    assert late.explain().step("partition_stats").partitions == 1
    assert late.to_arrow().column(0).to_pylist() == ["k1"]


def test_index_on_other_arguments_is_not_used(tmp_path: Path) -> None:
    table = indexed_table(tmp_path, "COPY_ON_WRITE", DAY)
    names = [step.name for step in table.scan(["id"], "from_unixtime(ts, 'yyyy') = '2023'").explain()]
    assert "expression_index" not in names


def test_earlier_versions_are_pruned_by_the_records_of_their_files(tmp_path: Path) -> None:
    table = indexed_table(tmp_path, "COPY_ON_WRITE", HOUR)
    first = table.timeline.writes().instants[0].requested
    scan = table.scan(["id"], "hour(at) = 2", as_of=first)
    assert sorted(scan.to_arrow().column(0).to_pylist()) == ["k1", "k5"]
    assert scan.explain().step("expression_index").slices == 1


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("when", ["after", "between"])
def test_each_action_maintains_an_index_that_is_built_or_being_built(kind: str, when: str, tmp_path: Path) -> None:
    declared = (HOUR, DAY, UPPER) if kind == "COPY_ON_WRITE" else (HOUR, DAY)
    table = new_table(tmp_path, *declared, kind=kind)
    table.upsert(rides(*((f"k{n}", "abc"[n % 3], n * 10**6, n, f"v{n}") for n in range(9))))
    table.services.index.schedule()
    if when == "after":
        assert isinstance(table.services.index.run(), Indexed)
    table.upsert(rides(("k0", "a", 10**9, 23, "changed"), ("new", "a", 5, 4, "v0")))
    table.delete(["k2"])
    table.bulk_insert(rides(("bulk", "b", 77, None, None)))
    table.upsert(rides(("k4", "b", 10**9 + 1, 1, "$\\x"), ("only", "z", 3, 3, "z")))
    if kind == "MERGE_ON_READ":
        assert isinstance(table.services.compaction.run(force=True), Committed)
        table.upsert(rides(("k4", "b", 10**9 + 2, 2, "later")))
    table.insert_overwrite(rides(("over", "c", 9, 9, "v3")))
    table.delete_partitions("b")
    if when == "between":
        assert isinstance(table.services.index.run(), Indexed)
    assert_valid(table)
    table.services.clustering.run(force=True)
    table.services.clean.run(force=True)
    assert_valid(table)
    usable, building = listed_partitions(table.refresh().config.raw)
    assert {f"expr_index_{text.partition('=')[0]}" for text in declared} <= set(usable) and not building
    assert names_of(table, "hour(at) = 23") == ["k0"]
    assert table.scan(["id"], "hour(at) = 23").explain().step("expression_index").slices == 1


def test_rows_of_partitions_are_those_of_the_newest_files_as_in_hudi(tmp_path: Path) -> None:
    table = indexed_table(tmp_path, "COPY_ON_WRITE", HOUR)
    found = {row["name"]: row for row in records(table, "expr_index_by_hour") if row["type"] == 6}
    shown = ("min_number", "max_number", "value_count", "null_count", "tight", "type_ordinal")
    assert {name: tuple(row[key] for key in shown) for name, row in found.items()} == {
        "a": (0, 0, 2, 0, True, 3),
        "b": (2, 22, 2, 0, True, 3),
        "c": (4, 4, 2, 0, True, 3),
        "d": (6, 6, 2, 1, True, 3),
    }
    table.delete_partitions("d")
    assert {row["name"] for row in records(table, "expr_index_by_hour") if row["type"] == 6} == {"a", "b", "c"}


def test_table_without_partitions_has_one_row_for_all_files(tmp_path: Path) -> None:
    table = new_table(tmp_path, HOUR, partition_by=None)
    table.upsert(rides(("a", "x", 1, 3, "n")))
    table.services.index.run()
    table.upsert(rides(("b", "x", 1, 7, "n")))
    rows = [row for row in records(table, "expr_index_by_hour") if row["type"] == 6]
    assert [(row["name"], row["min_number"], row["max_number"]) for row in rows] == [("", 3, 7)]
    assert_valid(table)


def test_rollback_takes_back_what_a_write_recorded(tmp_path: Path) -> None:
    table = indexed_table(tmp_path, "COPY_ON_WRITE", HOUR)
    before = {row["key"]: (row["min_number"], row["max_number"]) for row in records(table, "expr_index_by_hour")}
    outcome = table.upsert(rides(("k0", "a", 2 * 10**9, 13, "v")))
    assert isinstance(outcome, Committed) and names_of(table, "hour(at) = 13") == ["k0"]
    table.rollback(outcome.instant.requested)
    after = {row["key"]: (row["min_number"], row["max_number"]) for row in records(table, "expr_index_by_hour")}
    assert before == after and names_of(table, "hour(at) = 13") == []
    assert_valid(table)


def test_value_whose_result_depends_on_the_engine_widens_the_bounds_and_is_found(tmp_path: Path) -> None:
    table = new_table(tmp_path, "u=upper(name)")
    table.upsert(rides(("a", "x", 1, 1, "\u019b"), ("b", "y", 1, 1, "b")))
    table.services.index.run()
    assert names_of(table, "upper(name) = 'B'") == ["b"]
    assert table.scan(["id"], "upper(name) = 'C'").explain().step("expression_index").slices == 1
    unsure = "\u019b".upper()
    assert names_of(table, f"upper(name) = '{unsure}'") == ["a"]
    assert table.scan(["id"], f"upper(name) = '{unsure}'").explain().step("expression_index").slices == 2


def test_numbers_that_are_not_a_number_are_found_with_an_index_on_identity(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id")
    table.services.create_expression_index("i=identity(f)")
    table.upsert(pa.table({"id": ["a", "b", "c"], "f": [1.0, float("nan"), None]}))
    table.services.index.run()
    assert names_of(table, "identity(f) = 1.0") == ["a"]
    assert names_of(table, "identity(f) > 5") == names_of(table, "f > 5")
    assert names_of(table, "identity(f) != 1.0") == ["b"] == names_of(table, "f != 1.0")
    assert_valid(table)


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("u=uper(name)", "'uper' of an expression index is unknown. Did you mean 'upper'"),
        ("u=upper(nam)", "column 'nam' is not in the table"),
        ("h=hour(name)", "takes timestamps, and the column has the type string"),
        ("m=minute(at)", "Apache Hudi has no function 'minute'"),
        ("d=date_format(at)", "date_format needs a format"),
        ("d=from_unixtime(ts, yy)", "'yy' is not supported"),
        ("h=hour(at, HH)", "has no option 'format'"),
        ("s=substring(name, 2)", "'substring' of an expression index has no 'len'. Its form is substring"),
        ("s=substring(name, one, 2)", "option 'pos' of an expression index: 'one' is not a whole number"),
        ("d=date_add(at, 99999999999)", "'99999999999' is not a whole number"),
        (
            "d=to_date(name, MM-dd)",
            "'MM-dd' of an expression index: to parse texts it begins with a unit, has the year",
        ),
        ("d=to_date(name, yyyy-MM-dd E)", "' E' is not supported|'E' is not supported"),
        ("s=split(name, -)", "'split' of an expression index gives a list of strings, which has no bounds"),
        ("r=regexp_extract(name, '(?i)a', 0)", "the pattern .*is not supported; supported are"),
        ("r=regexp_extract(name, '(a)', 2)", "has 1 groups, so there is no group 2"),
        ("r=regexp_replace(name, 'a*', 'b')", "may match an empty text"),
        ("r=regexp_replace(name, 'a', '$0')", "has a `.` or a backslash"),
        ("i=bloom_filters:identity(at)", "bloom filters take texts, whole numbers and booleans"),
    ],
)
def test_declaration_that_cannot_be_maintained_is_refused(declaration: str, message: str, tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.upsert(rides(("a", "x", 1, 3, "n")))
    with pytest.raises(UserError, match=message):
        table.services.create_expression_index(declaration)
    assert not table.services.index.due().due


def test_unknown_function_is_refused_before_the_first_write(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown"):
        new_table(tmp_path, "u=uper(name)")


def test_bloom_filters_of_results_are_refused_for_merge_on_read_tables(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write log files"):
        new_table(tmp_path, UPPER, kind="MERGE_ON_READ")


def test_index_declared_by_options_is_built_and_dropped(tmp_path: Path) -> None:
    table = new_table(tmp_path).with_options({"lakehouse.index.expressions": f"{HOUR}; {UPPER}"})
    table.upsert(rides(("a", "x", 1, 3, "n")))
    assert table.services.index.due().missing == ("expr_index_by_hour", "expr_index_by_name")
    assert isinstance(table.services.index.run(), Indexed)
    dropped = table.services.drop_index("by_hour")
    assert dropped.partitions == ("expr_index_by_hour",)
    assert not list((tmp_path / "rides" / ".hoodie" / "metadata" / "expr_index_by_hour").rglob("*.*"))
    table.upsert(rides(("a", "x", 2, 4, "m")))
    assert_valid(table)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_version_8_tables_have_indexes_with_records_of_version_1(kind: str, tmp_path: Path) -> None:
    table = new_table(tmp_path, DAY, kind=kind, options={"hoodie.write.table.version": "8"})
    table.services.create_index("name")
    table.upsert(rides(("a", "x", 1, 3, "n"), ("b", "y", 1, None, "m")))
    assert isinstance(table.services.index.run(), Indexed)
    table.upsert(rides(("a", "x", 2, 4, "o")))
    assert table.refresh().config.version == 8
    assert {row["type_ordinal"] for row in records(table, "expr_index_by_day")} == {None}
    definitions = json.loads((tmp_path / "rides/.hoodie/.index_defs/index.json").read_text())["indexDefinitions"]
    assert {definition["version"] for definition in definitions.values()} == {"V1"}
    assert names_of(table, "hour(at) = 4") == names_of(table, "name = 'o'") == ["a"]
    assert "expression_partitions" in [
        s.name for s in table.scan(["id"], "from_unixtime(ts, 'yyyy-MM-dd') < '2'").explain()
    ]
    with pytest.raises(UserError, match="fail on an index on a function of times"):
        table.services.create_expression_index(HOUR)
    assert table.scan(["id"], "name = 'm'").explain().step("secondary_index")
    assert_valid(table)


def test_write_to_a_table_with_an_index_on_an_unknown_function_names_the_way_out(tmp_path: Path) -> None:
    table = indexed_table(tmp_path, "COPY_ON_WRITE", HOUR)
    path = tmp_path / "rides" / ".hoodie" / ".index_defs" / "index.json"
    path.write_text(path.read_text().replace('"hour"', '"soundex"'))
    table = Table.open(table.location)
    with pytest.raises(UnsupportedError, match=r"'soundex' .* is unknown.*`lakehouse index drop`"):
        table.upsert(rides(("k0", "a", 3 * 10**9, 1, "v")))
    table.services.drop_index("by_hour")
    table.upsert(rides(("k0", "a", 3 * 10**9, 1, "v")))
    assert_valid(table)


#: Indexes with a condition and the keys of `texts` that meet it.
PARSED = {
    "by_start=substring(word, 1, 2)": ("substring(word, 1, 2) = 'ab'", ["1", "2"]),
    "by_end=substring(word, -1, 1)": ("substring(word, -1, 1) = 'z'", ["3"]),
    "by_date=to_date(day)": ("to_date(day) = DATE '2024-02-03'", ["2"]),
    "by_format=to_date(day, yyyy-MM-dd)": ("to_date(day, 'yyyy-MM-dd') >= DATE '2024-02-04'", ["3"]),
    "by_time=to_timestamp(at)": ("to_timestamp(at) = TIMESTAMP '2024-02-03 00:00:07'", ["2"]),
    "by_second=unix_timestamp(at, 'yyyy-MM-dd HH:mm:ss')": (
        "unix_timestamp(at, 'yyyy-MM-dd HH:mm:ss') < 1706832008",
        ["1"],
    ),
    "later=date_add(on, 30)": ("date_add(on, 30) = DATE '2024-03-04'", ["2"]),
    "earlier=date_sub(on, 2)": ("date_sub(on, 2) = DATE '2024-02-01'", ["2"]),
    "digits=regexp_extract(word, '([a-z]+)(\\d+)', 2)": ("regexp_extract(word, '([a-z]+)(\\\\d+)', 2) = '7'", ["1"]),
    "masked=regexp_replace(word, '[0-9]', '#')": ("regexp_replace(word, '[0-9]', '#') = 'ab#'", ["1"]),
}


def texts(*rows: tuple[str, str, int, str | None]) -> pa.Table:
    """Return rows of a key, a word, a day of February 2024, and a text of the day or None for the usual one."""
    dates = [dt.date(2024, 2, row[2]) for row in rows]
    days = [str(date) if row[3] is None else row[3] for row, date in zip(rows, dates, strict=True)]
    return pa.table(
        {
            "id": [row[0] for row in rows],
            "part": [row[0] for row in rows],
            "word": [row[1] for row in rows],
            "day": days,
            "at": [f"{date} 00:00:07" for date in dates],
            "on": dates,
        }
    )


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_functions_that_parse_or_cut_values_skip_files_and_partitions(kind: str, tmp_path: Path) -> None:
    table = Table.create(
        str(tmp_path / "t"), name="t", record_key="id", partition_by="part", table_type=kind,
        options={"lakehouse.index.expressions": "; ".join(PARSED)},
    )  # fmt: skip
    table.upsert(texts(("1", "ab7", 1, None), ("2", "abc", 3, None), ("3", "xyz", 5, None)))
    assert isinstance(table.services.index.run(), Indexed)
    table.upsert(texts(("1", "ab7", 2, None)))
    newest = table.timeline.writes().instants[-1].requested
    for where, expected in PARSED.values():
        assert names_of(table, where) == expected, where
        partitions = table.scan(["id"], where).explain().step("expression_partitions")
        slices = table.scan(["id"], where, as_of=newest).explain().step("expression_index")
        assert (partitions.partitions, slices.slices) == (len(expected), len(expected)), where
    assert_valid(table)


def test_text_that_engines_parse_differently_widens_the_bounds_of_its_file_only(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", partition_by="part")
    table.services.create_expression_index("by_date=to_date(day, yyyy-MM-dd)")
    table.services.create_expression_index("by_time=to_timestamp(at)")
    table.upsert(texts(("1", "a", 1, "2024-2-1"), ("2", "b", 3, None), ("3", "c", 5, "unknown")))
    table.services.index.run()
    assert_valid(table)
    for where, left in (
        ("to_date(day, 'yyyy-MM-dd') = DATE '2024-02-03'", {"1", "2"}),
        ("to_date(day, 'yyyy-MM-dd') = DATE '1905-01-01'", {"1"}),
        ("to_date(day, 'yyyy-MM-dd') IS NULL", {"1", "3"}),
        ("to_date(day, 'yyyy-MM-dd') IS NOT NULL", {"1", "2"}),
    ):
        scan = table.scan(["id"], where)
        assert scan.explain().step("expression_partitions").partitions == len(left), where
        assert scan.explain().step("files").partitions == len(left), where
    with pytest.raises(UserError, match="to_date has no result for some rows: the time of the text '2024-2-1'"):
        names_of(table, "to_date(day, 'yyyy-MM-dd') = DATE '2024-02-03'")
    assert names_of(table, "to_date(day) = DATE '2024-02-01'") == ["1"]
