"""Unix sockets between the JVM of a session and its Python workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.spark import session as spark_session
from lakehouse.spark.session import unix_sockets
from lakehouse.spark.versions.choice import spark_version

SOCKETS = spark_version().SOCKETS
if SOCKETS is None:
    pytest.skip("this version of Spark connects Python workers over TCP only", allow_module_level=True)

ENABLED, FOLDER, SWITCH = SOCKETS.enabled, SOCKETS.folder, SOCKETS.switch
ROOT = Path(__file__).resolve().parents[2]
LOCAL = {"spark.master": "local[2]"}
JOB = """
from pathlib import Path
from lakehouse.spark.session import job_session
session = job_session("sockets")
conf = session.sparkContext.getConf()
folder = conf.get("spark.python.unix.domain.socket.dir", "none")
sums = session.sparkContext.parallelize(range(4), 2).map(lambda number: number * 2).sum()
found = [Path(folder).stat().st_mode & 0o777, any(Path(folder).glob(".*.sock"))] if folder != "none" else []
print("found", conf.get("spark.master"), folder, sums, *found)
"""


def run_job(**environ: str) -> list[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "JDK_JAVA_OPTIONS") if name in os.environ}
    variables = {**inherited, "PYTHONPATH": str(ROOT), **environ}
    done = subprocess.run(
        [sys.executable, "-c", JOB], capture_output=True, text=True, timeout=120, check=True, env=variables
    )
    return next(line for line in done.stdout.splitlines() if line.startswith("found")).split()[1:]


def test_workers_of_a_local_session_get_a_private_folder_of_sockets(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get(ENABLED) == "true"
    folder = Path(conf.get(FOLDER) or "")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert spark.sparkContext.parallelize([1, 2], 2).map(lambda number: number + 1).collect() == [2, 3]
    assert [*folder.glob(".*.sock")], "the daemon of the workers and the accumulators listen there"


def test_job_removes_its_folder_and_keeps_settings_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(f"{ENABLED} false\n")
    master, folder, sums, mode, has_sockets = run_job()
    assert (master, sums, mode, has_sockets) == ("local[*]", "12", str(0o700), "True")
    assert not Path(folder).exists()
    assert run_job(SPARK_CONF_DIR=str(tmp_path)) == ["local[*]", "none", "12"]


@pytest.mark.parametrize(
    ("settings", "environ"),
    [
        ({"spark.master": "spark://host:7077"}, {}),
        ({"spark.master": "k8s://https://host"}, {}),
        ({}, {}),
        ({**LOCAL, ENABLED: "true"}, {}),
        ({**LOCAL, ENABLED: "false"}, {}),
        (LOCAL, {SWITCH: "false"}),
    ],
    ids=("standalone", "kubernetes", "no master", "turned on", "turned off", "switch of Spark"),
)
def test_other_sessions_keep_their_settings(settings: dict[str, str], environ: dict[str, str]) -> None:
    assert unix_sockets(settings, environ) == {}


def test_machine_without_unix_sockets_or_with_a_long_temporary_folder_uses_tcp(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as changed:
        changed.delattr(spark_session.socket, "AF_UNIX")
        assert unix_sockets(LOCAL, {}) == {}
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(spark_session, "_folder", lambda: str(long))
    assert unix_sockets(LOCAL, {}) == {}
