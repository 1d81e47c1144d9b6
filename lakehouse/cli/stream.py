"""`lakehouse ingest status` and `stop`: show or end the stream of a table, without Spark.

An Airflow trigger runs them as short processes every few seconds, so this module imports little.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lakehouse.cli.group import Given
from lakehouse.cli.output import show, show_document
from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import UserError
from lakehouse.platform.ingest.stream_files import ask_to_stop, read_state
from lakehouse.spark.submitted import submitted_storage_options
from lakehouse.spec.contracts.stream import StopRequest, StreamState, progress_text
from lakehouse.spec.quantities import parse_duration
from lakehouse.spec.table.location import stream_location
from lakehouse.spec.table.table_spec import TableSpec, load_spec


def show_status(given: Given) -> int:
    """Print the state of the stream of a table."""
    spec, env = _opened(given, os.environ)
    _show(read_state(env, spec.ingestion_name, spec.input), given.output)
    return 0


def stop(given: Given) -> int:
    """Request that the stream of a table ends, and print its state."""
    spec, env = _opened(given, os.environ)
    state = read_state(env, spec.ingestion_name, spec.input)
    run_id = given.run_id or (state.status.run_id if state.alive and state.status is not None else "")
    if not run_id:
        raise UserError(
            f"table {spec.ingestion_name} has no running stream, so there is nothing to stop", table=spec.table
        )
    within_s = parse_duration("--within", given.within)
    request = StopRequest(run_id=run_id, within_s=within_s, by=f"`lakehouse ingest stop` of process {os.getpid()}")
    is_its_own = state.alive and state.status is not None and state.status.run_id == run_id
    ask_to_stop(env, request, spec.input, is_alive=is_its_own)
    _show(read_state(env, spec.ingestion_name, spec.input), given.output)
    return 0


def _show(state: StreamState, output: str) -> None:
    """Print the state of a stream as JSON, or a summary for people."""
    if output == "json":
        show_document(state, output)
        return
    facts: dict[str, Any] = {"table": state.table, "stream": _described(state)}
    status = state.status
    if status is not None:
        commit = _moment(status.committed_ms) if status.committed_ms else "none"
        facts |= {"run id": status.run_id, "started": _moment(status.started_ms), "last commit": commit}
        facts["progress"] = progress_text(status)
    show(facts, output)


def _described(state: StreamState) -> str:
    """Describe the state of the stream in one phrase."""
    host = state.host or "unknown"
    if state.alive:
        return f"runs on host {host}" + (", and has a request to end" if state.stop_asked else "")
    if state.status is None:
        return "none has run"
    if not state.status.ended:
        return f"crashed on host {host}; the next stream continues from the last commit"
    error = state.status.report.error
    return f"has ended on host {host}" + ("" if error is None else f" with an error: {error.message}")


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def _opened(given: Given, environ: Mapping[str, str]) -> tuple[TableSpec, Env]:
    """Load the spec, and open the storage folder that contains the stream's lease."""
    path = Path(given.table)
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"--table {given.table}: give the file of a table spec, such as orders.yaml", flag="--table")
    spec = load_spec(path.absolute()).of_input(given.input)
    return spec, Env(storage=open_storage(stream_location(spec, environ), submitted_storage_options(environ)))
