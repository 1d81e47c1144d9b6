"""The cases of how-to/recover-a-failed-run.md about ingestions: each is provoked by `lakehouse ingest run` on Spark."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pymysql
import pytest
from pyspark.sql import SparkSession

from lakehouse import Table
from lakehouse.core.operations.commit.complete import complete_commit
from tests.support.mysql_ingest import Shop
from tests.support.recovery import Shell, cases, shows
from tests.support.waiting import until

pytestmark = pytest.mark.spark
CASES = cases()
RUN = "lakehouse ingest run --table tables/orders.yaml"
HEADER = "order_id,fare,updated_at\n"
SPEC = """\
table: shop.orders
location: shop/orders
record_key: [order_id]
ordering: updated_at
schema: {order_id: string, fare: double, updated_at: timestamp}
ingest:
  path: landing/orders/
  format: csv
"""


@pytest.fixture
def shell(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """A shell in a folder with a spec, and a table with one row."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    Path("landing/orders").mkdir(parents=True)
    Path("tables").mkdir()
    Path("tables/orders.yaml").write_text(SPEC)
    land("0.csv", f"{HEADER}a,10.5,2026-03-01T00:10:00Z\n")
    made = Shell(capsys)
    assert made.run(RUN)[0] == 0
    return made


def land(name: str, text: str) -> None:
    """Write a file of the landing zone."""
    Path("landing/orders", name).write_text(text)


def keys() -> list[str]:
    """Return the orders that readers see."""
    return sorted(Table.open("shop/orders").scan(columns=["order_id"]).to_arrow()["order_id"].to_pylist())


def test_bad_records_over_the_limit_are_all_in_a_folder(shell: Shell) -> None:
    case = CASES["Bad records over the limit"]
    land("1.csv", f"{HEADER}b,20.0,2026-03-01T01:15:00Z\nc,thirty,2026-03-01T01:20:00Z\n")
    shows(case, shell.run(RUN))
    assert keys() == ["a"]
    refused = list(Path("shop").rglob("refused/part-*"))
    assert refused and "thirty" in "".join(file.read_text() for file in refused)
    shell.recover(case)
    assert keys() == ["a", "b"]


def test_changed_columns_are_refused_until_the_spec_adds_them(shell: Shell) -> None:
    case, spec = CASES["The columns of the files changed"], Path("tables/orders.yaml")
    spec.write_text(f"{SPEC}  new_column: fail\n")
    land("1.csv", "order_id,fare,updated_at,tip\nb,1.0,2026-03-01T02:15:00Z,2.5\n")
    shows(case, shell.run(RUN))
    assert keys() == ["a"]
    shell.recover(case)
    assert Table.open("shop/orders").scan(columns=["order_id", "tip"]).to_arrow()["tip"].to_pylist().count(None) == 1


def test_missing_input_waits_until_its_folder_exists(shell: Shell) -> None:
    case = CASES["The input has not arrived"]
    Path("tables/late.yaml").write_text(
        "table: shop.late\nlocation: shop/late\nrecord_key: [order_id]\nschema: {order_id: string}\ningest:\n"
        "  path: landing/late/{start:%Y-%m-%d}/\n  format: csv\n  missing: wait\n  wait_for: 12h\n"
    )
    interval = "--interval-start 2026-03-01 --interval-end 2026-03-02"
    shows(case, shell.run(f"lakehouse ingest run --table tables/late.yaml {interval}"))
    shell.recover(case)


def test_source_that_keeps_changing_is_not_committed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    case, numbers = CASES["The source changed while it was read"], iter(range(1, 100))
    land("1.csv", f"{HEADER}b,0.0,2026-03-01T01:15:00Z\n")

    def rewritten(*arguments: object, **named: object) -> object:
        land("1.csv", f"{HEADER}b,{next(numbers)}.25,2026-03-01T01:15:00Z\n" + "\n" * next(numbers))
        return complete_commit(*arguments, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr("lakehouse.core.operations.write.write.complete_commit", rewritten)
        shows(case, shell.run(RUN))
    assert keys() == ["a"]
    assert shell.run(RUN)[0] == 0
    assert keys() == ["a", "b"]


def test_purged_binlog_needs_a_full_refresh(shell: Shell, mariadb_shop: Shop) -> None:
    case, shop = CASES["The binlog or the replication slot is gone"], mariadb_shop
    shop.sql("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2)")
    # JSON is YAML.
    ingest = {"source": "mysql", **shop.settings}
    spec = {"table": "shop.t", "location": "shop/t", "record_key": ["id"], "ingest": ingest}
    Path("tables/shop.yaml").write_text(json.dumps(spec))
    run = "lakehouse ingest run --table tables/shop.yaml"
    assert shell.run(run)[0] == 0
    shop.sql("insert into t values (3, 3)", "delete from t where id = 1")
    shop.server.run("flush binary logs")
    (newest, *_) = shop.server.query("show binary logs")[-1]
    assert until(lambda: purged(shop, newest))
    shows(case, shell.run(run))
    shell.recover(case)
    assert sorted(Table.open("shop/t").scan(columns=["id"]).to_arrow()["id"].to_pylist()) == [2, 3]


def purged(shop: Shop, newest: str) -> bool:
    """Purge the binlog before the file `newest`; a log that a connection still reads stays."""
    for thread, _, _, _, command, *_ in shop.server.query("show processlist"):
        if command == "Binlog Dump":
            with suppress(pymysql.MySQLError):
                shop.server.run(f"kill {thread}")
    shop.server.run(f"purge binary logs to '{newest}'")
    return bool(shop.server.query("show binary logs")[0][0] == newest)


@pytest.fixture
def mariadb_shop(spark: SparkSession, mariadb: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    shop = Shop(spark, mariadb, tmp_path)
    for name, value in shop.server.connection.items():
        monkeypatch.setenv(name, value)
    return shop
