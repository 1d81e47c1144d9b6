"""`lakehouse ingest status` and `stop` on a table without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.cli.main import main
from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import UserError
from lakehouse.platform.ingest.stream_files import StreamFiles, open_lease
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.contracts.stream import StreamState, StreamStatus

STATUS = StreamStatus(
    run_id="r/1",
    table="t",
    started_ms=1_000,
    written_ms=3_000,
    commits=2,
    committed_ms=2_000,
    report=IngestReport(status=JobStatus.COMMITTED, table="t", instant="i7", rows=7),
)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The flag that names the spec of a table."""
    (tmp_path / "t.yaml").write_text(f"{{table: t, location: {tmp_path}/t, record_key: id, ingest: {{path: landing}}}}")
    return ["--table", str(tmp_path / "t.yaml")]


def test_status_and_stop_show_a_stream_from_its_start_to_its_end(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = Env(storage=open_storage(str(tmp_path / "t")))

    def shown(verb: str = "status") -> str:
        assert main(["ingest", verb, *words]) == 0
        return capsys.readouterr().out

    assert "none has run" in shown()
    lease = open_lease(env)
    assert lease.try_acquire() == 1
    StreamFiles(env.storage).put_status(STATUS)
    running = shown()
    assert "runs on host" in running
    assert "2 commits with 7 rows, the newest one is i7" in running
    assert "and has a request to end" in shown("stop")
    assert StreamFiles(env.storage).stop().run_id == "r/1"
    lease.release()
    assert "crashed on host" in shown()
    assert main(["ingest", "status", *words, "--output", "json"]) == 0
    assert StreamState.from_json(capsys.readouterr().out).status == STATUS


def test_stop_without_a_stream_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ingest", "stop", *words]) == UserError.exit_code
    assert "table t has no running stream, so there is nothing to stop" in capsys.readouterr().err


def test_name_that_is_no_spec_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ingest", "status", "--table", "sales.orders"]) == UserError.exit_code
    assert "give the file of a table spec" in capsys.readouterr().err
