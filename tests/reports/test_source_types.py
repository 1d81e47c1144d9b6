"""A column of a source table gets another type that its stored values cannot be read as."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import UserError
from lakehouse.spec.contracts.job import JobStatus
from tests.support.mysql import DatabaseServer
from tests.support.mysql_ingest import Shop

pytestmark = pytest.mark.spark


def test_number_that_becomes_text_is_refused_until_the_spec_allows_it(
    spark: SparkSession, mysql: DatabaseServer, tmp_path: Path
) -> None:
    """apache/paimon#683, apache/paimon#5288: an INT column of the source becomes VARCHAR."""
    shop = Shop(spark, mysql, tmp_path)
    shop.sql("create table t (id int primary key, n int)", "insert into t values (1, 10), (2, 20)")
    shop.run()
    shop.sql("update t set n = 11 where id = 1", "alter table t modify n varchar(10)", "insert into t values (3, 'x')")
    with pytest.raises(UserError, match=r"lakehouse\.schema\.type\.change=text"):
        shop.run()
    shop.settings["type_change"] = "text"
    assert shop.run().status is JobStatus.COMMITTED
    assert shop.stored("id, n") == shop.source("id, n") == [(1, "11"), (2, "20"), (3, "x")]
    assert shop.run().status is JobStatus.NOTHING_TO_DO
