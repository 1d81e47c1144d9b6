"""Runs of DAGs: start them, follow them to their end, and show the log of a task that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from demo.airflow import AirflowApi
from demo.progress import Live
from lakehouse.errors import LakehouseError

_PARSED_S, _CREATED_S, _ENDED_S, _POLL_S = 120.0, 90.0, 1_800.0, 1.0
_TAIL_LINES = 40
_ENDED = ("success", "failed")
#: A task in these states makes the demo stop. Airflow would try it again minutes later.
_FAILED = ("failed", "upstream_failed", "up_for_retry")


@dataclass(frozen=True, slots=True, kw_only=True)
class DagRun:
    """A run of a DAG. Times are None before it starts or ends."""

    dag_id: str
    run_id: str
    run_type: str
    state: str
    start: datetime | None
    end: datetime | None
    queued: datetime | None = None

    @property
    def seconds(self) -> float | None:
        """The duration, None before the end."""
        return None if self.start is None or self.end is None else (self.end - self.start).total_seconds()

    def made(self, table: str, operation: str, at: datetime) -> bool:
        """Return whether the run made a commit of this operation and completion time.

        The DAG of an ingestion has the name of its table, and clustering its own operation.
        """
        if self.start is None or self.end is None or not self.start <= at <= self.end:
            return False
        if operation.lower() == "cluster":
            return self.dag_id in ("services.clustering", "services.schedule")
        return self.dag_id == f"ingest.{table}"


def wait_for_dag(api: AirflowApi, dag_id: str, line: Live) -> Mapping[str, Any]:
    """Wait until Airflow has parsed the DAG, and return its description."""
    deadline = api.clock.monotonic_s() + _PARSED_S
    while True:
        dags = api.get(f"dags?dag_id_pattern={quote(dag_id)}&limit=100")["dags"]
        for dag in dags:
            if dag["dag_id"] == dag_id:
                return dict(dag)
        errors = api.get("importErrors")["import_errors"]
        if errors:
            raise LakehouseError(f"Airflow cannot import {errors[0]['filename']}:\n{errors[0]['stack_trace']}")
        if api.clock.monotonic_s() > deadline:
            raise LakehouseError(f"Airflow has no DAG {dag_id} after {_PARSED_S:.0f} s")
        line.state(f"Airflow parses {dag_id}")
        api.clock.sleep(_POLL_S)


def schedule_run(api: AirflowApi, dag_id: str, line: Live, conf: Mapping[str, Any]) -> DagRun:
    """Return the scheduled run that follows when a paused DAG is unpaused. A DAG that is not paused gets a trigger.

    Args:
        api: The API of Airflow.
        dag_id: The DAG.
        line: The line for the progress.
        conf: The parameters of a triggered run.
    """
    if not wait_for_dag(api, dag_id, line)["is_paused"]:
        return trigger_run(api, dag_id, line, conf)
    before = {run.run_id for run in runs_of(api, dag_id)}
    _unpause(api, dag_id)
    deadline = api.clock.monotonic_s() + _CREATED_S
    while api.clock.monotonic_s() < deadline:
        new = [run for run in runs_of(api, dag_id) if run.run_id not in before]
        if new:
            return new[0]
        line.state(f"the scheduler creates a run of {dag_id}")
        api.clock.sleep(_POLL_S)
    raise LakehouseError(f"the scheduler created no run of {dag_id} within {_CREATED_S:.0f} s")


def trigger_run(api: AirflowApi, dag_id: str, line: Live, conf: Mapping[str, Any]) -> DagRun:
    """Trigger a run with the parameters `conf`, and return it; a paused DAG is unpaused."""
    if wait_for_dag(api, dag_id, line)["is_paused"]:
        _unpause(api, dag_id)
    return _run(api.send("POST", f"dags/{dag_id}/dagRuns", {"logical_date": None, "conf": dict(conf)}))


def _unpause(api: AirflowApi, dag_id: str) -> None:
    api.send("PATCH", f"dags/{dag_id}?update_mask=is_paused", {"is_paused": False})


def runs_of(api: AirflowApi, dag_id: str = "~") -> list[DagRun]:
    """Return the newest 50 runs of a DAG, or of all DAGs, newest first."""
    runs = api.get(f"dags/{quote(dag_id)}/dagRuns?order_by=-run_after&limit=50")["dag_runs"]
    return [_run(run) for run in runs]


def end_interrupted_runs(api: AirflowApi, started: datetime) -> None:
    """Mark runs as failed that began before `started` and that an earlier Airflow did not finish.

    Their tasks have no process any more. Airflow would detect that after five minutes, and new runs would wait.
    """
    for run in runs_of(api):
        begun = run.start or run.queued
        if run.state not in _ENDED and begun is not None and begun < started:
            path = f"dags/{run.dag_id}/dagRuns/{quote(run.run_id, safe='')}?update_mask=state"
            api.send("PATCH", path, {"state": "failed"})


def follow(api: AirflowApi, runs: Sequence[DagRun], line: Live) -> list[DagRun]:
    """Show the states of runs until all have ended, and return them.

    Raises:
        LakehouseError: A task failed; the message has the end of its log. The other runs are not waited for.
    """
    deadline = api.clock.monotonic_s() + _ENDED_S
    while True:
        now = [_run(api.get(f"dags/{run.dag_id}/dagRuns/{quote(run.run_id, safe='')}")) for run in runs]
        parts = []
        for run in now:
            tasks = _tasks(api, run)
            _stop_if_failed(api, run, tasks)
            parts.append(f"{run.dag_id} {_state(run, tasks)}")
        line.state("; ".join(parts))
        if all(run.state in _ENDED for run in now):
            return now
        if api.clock.monotonic_s() > deadline:
            raise LakehouseError(f"not finished after {_ENDED_S / 60:.0f} minutes: {'; '.join(parts)}")
        api.clock.sleep(_POLL_S)


def _state(run: DagRun, tasks: Sequence[Mapping[str, Any]]) -> str:
    if run.state in _ENDED:
        return run.state
    active = sorted({str(task["task_id"]) for task in tasks if task["state"] in ("running", "queued", "scheduled")})
    return f"{run.state} (task {', '.join(active)})" if active else run.state


def _stop_if_failed(api: AirflowApi, run: DagRun, tasks: Sequence[Mapping[str, Any]]) -> None:
    failed = [task for task in tasks if task["state"] in _FAILED]
    # The task with a log is the one that failed first.
    failed.sort(key=lambda task: (task["state"] == "upstream_failed", str(task["start_date"])))
    if failed:
        task = failed[0]
        raise LakehouseError(
            f"the task {task['task_id']} of {run.dag_id} failed in the run {run.run_id}; the end of its log:\n"
            + _log_tail(api, run, task)
        )
    if run.state == "failed":
        raise LakehouseError(f"the run {run.run_id} of {run.dag_id} failed before a task started")


def _log_tail(api: AirflowApi, run: DagRun, task: Mapping[str, Any]) -> str:
    path = f"dags/{run.dag_id}/dagRuns/{quote(run.run_id, safe='')}/taskInstances/{task['task_id']}/logs"
    index = task.get("map_index", -1)
    query = f"?map_index={index}" if index is not None and index >= 0 else ""
    content = api.get(f"{path}/{max(1, task['try_number'])}{query}")["content"]
    return "\n".join("\n".join(_log_text(entry) for entry in content).splitlines()[-_TAIL_LINES:])


def _log_text(entry: Mapping[str, Any] | str) -> str:
    """Return a record of a log as text, with the exceptions that it has."""
    if isinstance(entry, str):
        return entry
    errors = entry.get("error_detail") or ()
    return "\n".join([str(entry.get("event")), *(f"{error['exc_type']}: {error['exc_value']}" for error in errors)])


def _tasks(api: AirflowApi, run: DagRun) -> list[Mapping[str, Any]]:
    path = f"dags/{run.dag_id}/dagRuns/{quote(run.run_id, safe='')}/taskInstances?limit=100"
    return list(api.get(path)["task_instances"])


def _run(answer: Mapping[str, Any]) -> DagRun:
    return DagRun(
        dag_id=answer["dag_id"],
        run_id=answer["dag_run_id"],
        run_type=answer["run_type"],
        state=answer["state"],
        start=_time(answer["start_date"]),
        end=_time(answer["end_date"]),
        queued=_time(answer["queued_at"]),
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
