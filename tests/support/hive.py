"""Start a Hive Metastore with its own Derby database on a free port of 127.0.0.1, from the jars in pyspark."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.postgresql import HOST, free_port, wait_for_port

MAIN = "org.apache.hadoop.hive.metastore.HiveMetaStore"
TIMEOUT_S = 4
_ROOT = Path(__file__).resolve().parents[2]


def settings(place: Path, *, in_test: bool) -> dict[str, str]:
    """Return the settings of `hive-site.xml`: all files are below `place`; locks expire within seconds.

    With `in_test` the metastore creates the tables of locks, and refuses lock requests without an operation type, such
    as those of Hudi. Without it only a script of Hive's distribution creates the tables.
    """
    return {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={place}/metastore;create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
        # Spark does not include Hive's default connection pool.
        "datanucleus.connectionPoolingType": "HikariCP",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": f"{place}/warehouse",
        "hive.async.log.enabled": "false",
        "hive.in.test": str(in_test).lower(),
        "hive.support.concurrency": "true",
        "hive.txn.manager": "org.apache.hadoop.hive.ql.lockmgr.DbTxnManager",
        "hive.txn.timeout": f"{TIMEOUT_S}s",
        "hive.compactor.initiator.on": "true",
        "hive.compactor.worker.threads": "0",
        "hive.timedout.txn.reaper.start": "1s",
        "hive.timedout.txn.reaper.interval": "1s",
        "hive.metastore.server.min.threads": "8",
    }


@contextmanager
def metastore_at(place: Path, java: str, *, in_test: bool = True) -> Iterator[str]:
    """Run a metastore whose files are below `place`; yield its URI `thrift://host:port`. See `settings`."""
    jars, port = spark_jars(), free_port()
    assert jars is not None, "they hold the Hive Metastore"
    rows = (
        f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings(place, in_test=in_test).items()
    )
    (place / "conf").mkdir(parents=True, exist_ok=True)
    (place / "conf/hive-site.xml").write_text(f"<configuration>{''.join(rows)}</configuration>")
    classes = f"{place}/conf:{jars}/*"
    with open(place / "log", "wb") as log:
        server = subprocess.Popen(
            [java, "-Xmx384m", f"-Dhive.log.dir={place}", "-cp", classes, MAIN, "-p", str(port)],
            cwd=place,
            stdout=log,
            stderr=log,
        )
    try:
        wait_for_port(server, port, place / "log", seconds=120)
        yield f"thrift://{HOST}:{port}"
    finally:
        server.terminate()
        server.wait(timeout=30)


def spark_jars() -> Path | None:
    """Return the folder of Spark's jars in this environment or in `.venv`; None if neither has Spark."""
    spark = find_spec("pyspark")
    if spark is not None and spark.origin is not None:
        return Path(spark.origin).parent / "jars"
    return next(iter(_ROOT.glob(".venv/lib/python*/site-packages/pyspark/jars")), None)


@pytest.fixture(scope="session")
def hive_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a metastore for the test session; yield its URI `thrift://host:port`."""
    java = shutil.which("java")
    if java is None or spark_jars() is None:
        pytest.skip("missing: java and pyspark, whose jars hold the Hive Metastore")
    with metastore_at(tmp_path_factory.mktemp("hive") / "metastore", java) as uri:
        yield uri
