"""A continuous ingestion without Spark, in place of spark-submit: its lease, its status and its signals are real.

It parses the arguments of `lakehouse ingest stream` that follow the application. Each of its runs appends one line to
the file in the variable FAKE_STREAM, as a commit of one row.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.platform.ingest.stream import Stop, Stream, run_stream, stop_by_signal
from lakehouse.platform.ingest.stream_files import open_lease
from lakehouse.platform.jobs.run import run_job
from lakehouse.spec.contracts.job import IngestReport, JobStatus, SourceLag
from lakehouse.spec.job_command import StreamCommand, parse_command
from lakehouse.spec.quantities import parse_duration
from lakehouse.spec.sources.stream import StreamSpec
from lakehouse.spec.table.location import stream_location
from lakehouse.spec.table.table_spec import load_spec


def _commit(run_id: str) -> IngestReport:
    with open(os.environ["FAKE_STREAM"], "a+", encoding="utf-8") as file:
        file.write(f"{run_id}\n")
        file.seek(0)
        number = len(file.readlines())
    lag = (SourceLag(source="files", unit="files", left=0),)
    return IngestReport(status=JobStatus.COMMITTED, table="t", instant=f"i{number}", rows=1, lag=lag)


def _work(command: StreamCommand) -> IngestReport:
    spec, stop = load_spec(Path(command.table)), Stop()
    env = Env(storage=open_storage(stream_location(spec, os.environ)))
    assert spec.ingest is not None and spec.ingest.stream is not None
    settings = replace(spec.ingest.stream, run_for_s=parse_duration("--run-for", str(command.run_for)))
    with stop_by_signal(stop):
        return run_stream(_stream(env, settings, stop, str(command.run_id)))


def _stream(env: Env, settings: StreamSpec, stop: Stop, run_id: str) -> Stream:
    return Stream(
        table="t",
        settings=settings,
        run=_commit,
        done=lambda report: None,
        env=env,
        lock=open_lease(env),
        stop=stop,
        run_id=run_id,
    )


if __name__ == "__main__":
    sys.exit(run_job(parse_command(sys.argv[sys.argv.index("ingest") :]), _work, lambda command: ()))
