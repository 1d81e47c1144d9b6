"""Credentials of an object store reach the executors of a cluster, and are in nothing that Spark shows or writes.

The store is behind a proxy that records the key and the program of each request.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import psutil
import pyarrow as pa
import pytest

from lakehouse import Table
from tests.clusters.models import JOBS, printed, rows
from tests.support.s3 import FaultyProxy, S3Server
from tests.support.spark import S3A_JARS
from tests.support.spark_cluster import SparkCluster, finished

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.s3]

KEY, SECRET = "SENTINELKEY7c1e", "sentinel-secret-51f7d2"
_LINK = re.compile(r"href=\"(/[^\"#?]*(?:\?[^\"#]*)?)\"")


class RecordingProxy(FaultyProxy):
    """A proxy that records method, path, program and authorization of each request."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.requests: list[tuple[str, str, str, str]] = []

    def _forward(self, method: str, path: str, headers: dict[str, str], body: bytes):
        values = {name.lower(): value for name, value in headers.items()}
        self.requests.append((method, path, values.get("user-agent", ""), values.get("authorization", "")))
        return super()._forward(method, path, headers, body)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[RecordingProxy]:
    proxy = RecordingProxy(s3_server.endpoint)
    yield proxy
    proxy.close()


@pytest.fixture
def jars() -> str:
    """The Hadoop connector, with which Spark's own readers open s3a:// paths."""
    paths = sorted(S3A_JARS.glob("*.jar"))
    if not paths:
        pytest.skip("missing: .jars/s3a; run 'make s3a'")
    return ",".join(map(str, paths))


@contextmanager
def recorded_arguments() -> Iterator[set[str]]:
    """Collect the arguments of all processes of this machine during a block."""
    lines: set[str] = set()
    ended = threading.Event()

    def record() -> None:
        while not ended.wait(0.2):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    lines.add(" ".join(process.cmdline()))

    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        ended.set()
        thread.join()


def pages_of(address: str, paths: tuple[str, ...]) -> str:
    """Return the pages at an address, and all pages that they link to."""
    texts, waiting, seen = [], list(paths), set(paths)
    while waiting and len(seen) < 80:
        path = waiting.pop(0)
        with suppress(HTTPError, URLError, TimeoutError), urlopen(address + path, timeout=20) as answer:
            text = answer.read().decode(errors="replace")
            texts.append(f"{path}\n{text}")
            for link in _LINK.findall(text):
                if link not in seen and "/kill" not in link and "/static" not in link:
                    seen.add(link)
                    waiting.append(link)
    return "\n".join(texts)


def test_credentials_are_used_by_executors_and_shown_nowhere(
    cluster: SparkCluster, s3_server: S3Server, proxy: RecordingProxy, jars: str, tmp_path: Path
) -> None:
    place = f"s3://{s3_server.bucket}/clusters/{tmp_path.name}"
    local = {"AWS_ENDPOINT_URL": proxy.endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    local |= {"AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    Table.create(place, name="t", record_key=["id"], partition_by=["day"], ordering="ts", storage_options=local).upsert(
        _first()
    )
    proxy.requests.clear()
    conf = {
        "spark.jars": jars,
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(tmp_path / "events"),
        "spark.log.level": "INFO",
    }
    (tmp_path / "events").mkdir()
    with recorded_arguments() as arguments:
        job = cluster.submit(JOBS, "with_secret", place, str(tmp_path / "go"), conf=conf, **local)
        lines: list[str] = []
        assert job.stdout is not None
        for line in job.stdout:
            lines.append(line)
            if line.startswith("{"):
                break
        assert lines[-1].startswith("{"), "".join(lines)[-6000:] + cluster.logs()[-3000:]
        answer = printed("".join(lines))
        rest = f"/api/v1/applications/{answer['id']}"
        shown = pages_of(
            str(answer["ui"]), ("/environment/", "/jobs/", "/SQL/", "/executors/", f"{rest}/environment", f"{rest}/sql")
        )
        master = cluster.page.removesuffix("/json/")
        shown += pages_of(master, ("/", f"/app/?appId={answer['id']}", "/json/"))
        for worker in cluster.state()["workers"]:
            shown += pages_of(worker["webuiaddress"], ("/", "/json/"))
        (tmp_path / "go").touch()
        code, output = finished(job)
    assert code == 0, output[-3000:]
    assert answer["rows"] == 40 and answer["sum"] == sum(rows(0, 40, 2).values())

    assert "Environment" in shown and str(answer["id"]) in shown
    assert any("CoarseGrainedExecutorBackend" in line for line in arguments)
    events = "".join(path.read_text(errors="replace") for path in (tmp_path / "events").rglob("*") if path.is_file())
    assert "SparkListenerEnvironmentUpdate" in events
    sources = {"pages": shown, "events": events, "arguments": "\n".join(arguments), "driver": "".join(lines) + output}
    for name, text in {**sources, "logs": cluster.logs()}.items():
        for secret in (SECRET, KEY):
            assert secret not in text, f"{name}: {text[max(0, text.index(secret) - 200) :][:400]}"

    signed = [(method, path, program) for method, path, program, key in proxy.requests if f"Credential={KEY}/" in key]
    assert len(signed) == len(proxy.requests), "all requests are signed with the key"
    written = [path for method, path, _ in signed if method == "PUT" and path.endswith(".parquet")]
    assert written, "executors wrote data files"
    by_spark = [path for _, path, program in signed if "Hadoop" in program and ".parquet" in path]
    assert by_spark, sorted({program for _, _, program in signed})


def _first() -> pa.Table:
    return pa.table({"id": ["0"], "day": ["0"], "v": [0], "ts": [1]})
