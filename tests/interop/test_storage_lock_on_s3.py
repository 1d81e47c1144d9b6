"""A writer of lakehouse and a writer of Apache Hudi 1.2 write one table on S3 concurrently, with Hudi's storage lock.

Hudi's StorageBasedLockProvider is used as it is: it chooses its client by the scheme of the table's location, and the
lock file by that location. The client is the class of `S3StorageLockClient.java`. The server is moto.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.locks.storage import LOCK_PATH
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import RetryableError
from lakehouse.spec.options.parser import parse_options
from tests.interop.test_concurrent_writers import (
    HUDIS,
    LOCKS,
    OURS,
    SHAPES,
    SharedTable,
    assert_interleaved,
    assert_no_leftovers,
    assert_serial,
    named_commits,
    run,
)
from tests.support.hudi import ROOT, Hudi, find_jar
from tests.support.lock_bridge import S3_CLIENT, compiled
from tests.support.s3 import S3Server
from tests.support.tables import make_table

pytestmark = [pytest.mark.jvm, pytest.mark.s3]

JARS = ROOT / ".jars" / "hudi-s3a"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def hudi_on_s3(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hudi]:
    """Run Hudi on Spark with the jars that open s3://."""
    jars = sorted(JARS.glob("*.jar"))
    if not jars:
        pytest.skip("missing: jars of S3A for Hudi's Spark; `make hudi-s3a` fetches them with mvn")
    settings = {f"spark.hadoop.{key}": value for key, value in s3_server.options.items()}
    settings["spark.hadoop.fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    settings["spark.jars"] = ",".join(map(str, (find_jar(), *jars)))
    process = Hudi(find_jar(), tmp_path_factory.mktemp("hudi-s3"), settings)
    process.load_classes(compiled(tmp_path_factory.mktemp("classes"), S3_CLIENT))
    yield process
    process.close()


@pytest.fixture(params=sorted(SHAPES))
def both(request: pytest.FixtureRequest, s3_server: S3Server, tmp_path: Path) -> SharedTable:
    """A new table on S3, and the options of both writers."""
    shape, (provider, _) = SHAPES[request.param], LOCKS["storage"]
    location = f"s3://{s3_server.bucket}/{tmp_path.name}-{next(_numbers)}/events"
    storage = open_storage(location, s3_server.options)
    ours = {"hoodie.write.lock.provider": provider}
    make_table(shape, env=Env(storage=storage))
    hudis = HUDIS | {
        "hoodie.write.lock.provider": provider,
        "hoodie.test.s3.endpoint": s3_server.endpoint,
        "hoodie.datasource.write.table.type": shape.type,
        "hoodie.index.type": shape.index,
        "hoodie.base.path": location,
        "hoodie.clean.automatic": "false",
        "hoodie.compact.inline": "false",
        "hoodie.write.auto.upgrade": "false",
    }
    table = Table.open(location, options=ours, storage_options=s3_server.options)
    return SharedTable(table=table, options=ours, hudi_options=hudis)


def test_commits_under_the_storage_lock_of_hudi_are_serializable_on_s3(both: SharedTable, hudi_on_s3: Hudi) -> None:
    run_log = run(both, hudi_on_s3)
    assert_serial(both.table, run_log, hudi_on_s3)
    assert_interleaved(named_commits(both.table))
    assert_no_leftovers(both.table, run_log)
    assert both.table.validate(deep=True).corrupt == ()


def test_storage_lock_excludes_hudi_and_lakehouse_from_each_other_on_s3(both: SharedTable, hudi_on_s3: Hudi) -> None:
    hasty = parse_options({**OURS, **both.options, "hoodie.write.lock.wait_time_ms": "700"}).transaction
    env = both.table.services_as_loaded.table.env
    for _ in range(2):
        with table_lock(env, parse_options({**OURS, **both.options}).transaction):
            assert not hudi_on_s3.lock(both.hudi_lock_class, both.hudi_options, wait_ms=1500)
        assert hudi_on_s3.lock(both.hudi_lock_class, both.hudi_options, wait_ms=5000)
        assert b'"expired":false' in env.storage.get(LOCK_PATH)
        with pytest.raises(RetryableError, match="lock"), table_lock(env, hasty):
            pass
        hudi_on_s3.unlock()
    assert b'"expired":true' in env.storage.get(LOCK_PATH)
